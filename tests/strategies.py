"""Shared Hypothesis strategies: ids, contacts, stream messages and bodies, within all limits."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shoal.base.ids import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    CHAIN_CHARS_MAX,
    INT63_MAX,
    NODE_ID_BYTES,
    PARTITIONS_MAX,
    STREAM_ID_CHARS_MAX,
    Contact,
    MessageId,
    NodeId,
    StreamId,
)
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.message_body import Body, Position, encode_body
from shoal.protocols.streams.config import HOLDERS_MAX, HOPS_MAX, RTT_US_MAX
from shoal.protocols.streams.messages import (
    REASON_CHARS_MAX,
    SIGNAL_BYTES_MAX,
    Announce,
    AskTime,
    Close,
    Expect,
    Feed,
    Fill,
    FillDone,
    FindHolders,
    FindStorage,
    Flood,
    Heads,
    Instruction,
    Join,
    JoinRefused,
    KeepStreams,
    KeyHolders,
    Leave,
    Left,
    NewStream,
    Open,
    Ping,
    Pong,
    Probe,
    Probed,
    Report,
    Rtt,
    Signal,
    Signalled,
    Status,
    StorageNodes,
    TellTime,
    Want,
)

node_ids = st.binary(min_size=NODE_ID_BYTES, max_size=NODE_ID_BYTES).map(NodeId)
stream_ids = st.text(min_size=1, max_size=STREAM_ID_CHARS_MAX).map(StreamId)
counts = st.integers(0, INT63_MAX)
partitions = st.integers(0, PARTITIONS_MAX - 1)
chain_names = st.text(min_size=1, max_size=CHAIN_CHARS_MAX)

# Lists of neighbours are cut at DEGREE_MAX = 64; a few are enough to find what goes wrong.
neighbours = st.lists(node_ids, max_size=6).map(tuple)
addresses = st.lists(st.text(max_size=ADDRESS_CHARS_MAX), max_size=ADDRESSES_MAX).map(tuple)
contacts = st.builds(Contact, node_ids, addresses)

message_ids = st.builds(
    MessageId,
    stream=stream_ids,
    partition=partitions,
    timestamp_ms=counts,
    sequence=counts,
    publisher=node_ids,
    chain=chain_names,
)
positions = st.builds(Position, counts, counts)
bodies = st.builds(
    Body,
    id=message_ids,
    previous=st.none() | positions,
    content_type=st.integers(0, 255),
    content=st.binary(max_size=400),
)
signatures = st.binary(min_size=SIGNATURE_BYTES, max_size=SIGNATURE_BYTES)


def signed_bytes() -> st.SearchStrategy[bytes]:
    """A signature, which need not fit, and a body, which mostly is one."""
    body = bodies.map(encode_body) | st.binary(min_size=1, max_size=200)
    return st.builds(bytes.__add__, signatures, body)


RTTS_US = st.integers(0, RTT_US_MAX)
chains = st.tuples(node_ids, partitions, chain_names)
heads = st.tuples(chains, st.tuples(counts, counts))

BY_TYPE: dict[type, st.SearchStrategy[Any]] = {
    Flood: st.builds(Flood, st.integers(0, HOPS_MAX), counts, counts, signed_bytes()),
    Open: st.builds(Open, stream_ids, st.booleans()),
    Close: st.builds(Close, stream_ids, st.booleans()),
    AskTime: st.builds(AskTime, counts),
    TellTime: st.builds(TellTime, counts, counts),
    Ping: st.builds(Ping, counts),
    Pong: st.builds(Pong, counts),
    Join: st.builds(Join, stream_ids, contacts, counts, counts, neighbours),
    Leave: st.builds(Leave, stream_ids),
    Status: st.builds(Status, stream_ids, counts, counts, neighbours),
    Report: st.builds(
        Report,
        stream_ids,
        st.lists(st.builds(Rtt, node_ids, RTTS_US, RTTS_US), max_size=4).map(tuple),
        neighbours,
        neighbours,
        RTTS_US,
    ),
    Instruction: st.builds(
        Instruction, stream_ids, counts, counts, st.lists(contacts, max_size=4).map(tuple)
    ),
    Probe: st.builds(Probe, stream_ids, st.lists(contacts, max_size=4).map(tuple)),
    Probed: st.builds(
        Probed,
        stream_ids,
        st.lists(st.builds(Rtt, node_ids, RTTS_US, RTTS_US), max_size=4).map(tuple),
    ),
    Left: st.builds(Left, stream_ids),
    JoinRefused: st.builds(
        JoinRefused, stream_ids, st.booleans(), st.text(max_size=REASON_CHARS_MAX)
    ),
    Signal: st.builds(Signal, stream_ids, node_ids, st.binary(max_size=SIGNAL_BYTES_MAX)),
    Signalled: st.builds(Signalled, stream_ids, node_ids, st.binary(max_size=SIGNAL_BYTES_MAX)),
    FindHolders: st.builds(FindHolders, counts, stream_ids, node_ids),
    KeyHolders: st.builds(KeyHolders, counts, st.lists(contacts, max_size=HOLDERS_MAX).map(tuple)),
    Expect: st.builds(Expect, stream_ids, contacts),
    KeepStreams: st.builds(
        KeepStreams,
        st.lists(
            st.builds(
                NewStream, stream_ids, st.none() | node_ids, st.none() | st.text(max_size=64)
            ),
            min_size=1,
            max_size=4,
        ).map(tuple),
    ),
    FindStorage: st.builds(FindStorage, stream_ids),
    StorageNodes: st.builds(StorageNodes, stream_ids, st.lists(contacts, max_size=4).map(tuple)),
    Heads: st.builds(Heads, stream_ids, st.lists(heads, max_size=4).map(tuple)),
    Fill: st.builds(Fill, stream_ids, node_ids, partitions, chain_names, positions, positions),
    FillDone: st.builds(FillDone, stream_ids, node_ids, partitions, chain_names, counts),
    Feed: st.builds(Feed, stream_ids, st.lists(chains, max_size=4).map(tuple), st.booleans()),
    Announce: st.builds(Announce, stream_ids, heads),
    Want: st.builds(Want, stream_ids, heads),
}
stream_messages: st.SearchStrategy[Any] = st.one_of(*BY_TYPE.values())
