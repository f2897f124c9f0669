"""Messages of the streams protocol: node to node, node to tracker, tracker to node.

What comes off a link is untrusted, however well it decodes. A `Flood` holds signed bytes; only
after their signature was checked does a `VerifiedMessage` exist.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import ChainName, Contact, Count, Partition, WireNodeId, WireStreamId
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.group_key import POINT_BYTES, KeyId, WrapBytes
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import (
    DEGREE_MAX,
    FRAME_BYTES_MAX,
    HEADS_MAX,
    HOLDERS_MAX,
    HOPS_MAX,
    PROBES_MAX,
    RTT_US_MAX,
    STORAGE_NODES_MAX,
)

REASON_CHARS_MAX = 500
NOTICED_STREAMS_MAX = 256  # in one message to a storage node: 16 KB, mostly
PREFIX_CHARS_MAX = 64  # of IPv6, written out
SIGNAL_BYTES_MAX = 4096  # what two nodes have to tell each other before there is a link

Neighbours = Annotated[tuple[WireNodeId, ...], Meta(max_length=DEGREE_MAX)]


# Node to node


class Flood(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A stream message under way. The hop header is advice: nothing is decided by it."""

    hops: Annotated[int, Meta(ge=0, le=HOPS_MAX)]
    age_us: Count
    seen_us: Count
    signed: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES + 1, max_length=FRAME_BYTES_MAX)]
    """Signature, then the encoded Body: forwarded as it came, never encoded again."""


class Open(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The sender takes the receiver as neighbour in a stream. Data flows once both said so."""

    stream: WireStreamId
    answered: bool
    """The sender has the receiver's Open already."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The sender sends no more data of this stream to the receiver."""

    stream: WireStreamId
    answer: bool
    """Said in return to a Close: ends a closing, never begins one."""


# How far a node is in one chain: the chain, and timestamp and sequence of its newest message. These
# are tuples as the tables of a stream have them: whoever reads Heads looks each of many up.
Head = tuple[tuple[WireNodeId, Partition, ChainName], tuple[Count, Count]]


class Heads(msgspec.Struct, frozen=True, array_like=True, tag=12, gc=False):
    """The newest messages that the sender has: whoever lacks one knows that it missed it."""

    stream: WireStreamId
    chains: Annotated[tuple[Head, ...], Meta(max_length=HEADS_MAX)]


class Fill(msgspec.Struct, frozen=True, array_like=True, tag=13, gc=False):
    """Send me what you have of a chain in (after, upto]: answered by Floods and a FillDone."""

    stream: WireStreamId
    publisher: WireNodeId
    partition: Partition
    chain: ChainName
    after: Position
    upto: Position


class FillDone(msgspec.Struct, frozen=True, array_like=True, tag=14, gc=False):
    """That was all, so many messages."""

    stream: WireStreamId
    publisher: WireNodeId
    partition: Partition
    chain: ChainName
    found: Count


class Feed(msgspec.Struct, frozen=True, array_like=True, tag=17, gc=False):
    """Send me the messages of these chains as they come, or only announce them."""

    stream: WireStreamId
    chains: Annotated[
        tuple[tuple[WireNodeId, Partition, ChainName], ...], Meta(max_length=HEADS_MAX)
    ]
    wanted: bool


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=18, gc=False):
    """I have this message, which you asked me to hold back."""

    stream: WireStreamId
    head: Head


class Want(msgspec.Struct, frozen=True, array_like=True, tag=19, gc=False):
    """Send me what you announced, and what follows of its chain: answered by a Flood."""

    stream: WireStreamId
    head: Head


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Answer at once: the round trip is measured over the link that carries the data."""

    nonce: Count


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Answer to Ping."""

    nonce: Count


# Node to tracker


class Join(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """Take me into this stream. Epoch and counter are of the newest instruction I know."""

    stream: WireStreamId
    contact: Contact
    epoch: Count
    counter: Count
    neighbours: Neighbours


class Leave(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """I am no longer in this stream."""

    stream: WireStreamId


class Status(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """An instruction was handled: these of its neighbours are connected."""

    stream: WireStreamId
    epoch: Count
    counter: Count
    neighbours: Neighbours


class Rtt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Round trips to a neighbour, as a node measured them lately."""

    peer: WireNodeId
    rtt_us: Annotated[int, Meta(ge=0, le=RTT_US_MAX)]
    """Their mean."""
    deviation_us: Annotated[int, Meta(ge=0, le=RTT_US_MAX)] = 0
    """Their standard deviation; the first nodes did not say."""


class Report(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """What a node saw of its neighbours since the last report: rate-limited."""

    stream: WireStreamId
    rtts: Annotated[tuple[Rtt, ...], Meta(max_length=DEGREE_MAX)]
    lost: Neighbours
    """Links that broke after they were reported connected."""
    accused: Neighbours
    """Neighbours that sent invalid messages."""
    handling_us: Annotated[int, Meta(ge=0, le=RTT_US_MAX)] = 0
    """How long a message stays here before it goes on: the check of its signature, mostly."""


class Probed(msgspec.Struct, frozen=True, array_like=True, tag=20, gc=False):
    """Round trips to whom a Probe named, as far as there were any."""

    stream: WireStreamId
    rtts: Annotated[tuple[Rtt, ...], Meta(max_length=PROBES_MAX)]


class Signal(msgspec.Struct, frozen=True, array_like=True, tag=22, gc=False):
    """Pass this on to my neighbour in a stream, to whom I have no link yet."""

    stream: WireStreamId
    peer: WireNodeId
    payload: Annotated[bytes, Meta(max_length=SIGNAL_BYTES_MAX)]


class FindStorage(msgspec.Struct, frozen=True, array_like=True, tag=15, gc=False):
    """Who keeps this stream? Anybody may ask, whether it is in the stream or not."""

    stream: WireStreamId


class FindHolders(msgspec.Struct, frozen=True, array_like=True, tag=25, gc=False):
    """Whom may I ask for this publisher's keys? For those who may subscribe."""

    request: Count
    stream: WireStreamId
    publisher: WireNodeId


# Tracker to node


class Instruction(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """Your neighbours in this stream, all of them. (epoch, counter) only grows."""

    stream: WireStreamId
    epoch: Count
    counter: Count
    neighbours: Annotated[tuple[Contact, ...], Meta(max_length=DEGREE_MAX)]


class Probe(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    """Measure how far you are from these members of a stream: answered by Probed."""

    stream: WireStreamId
    contacts: Annotated[tuple[Contact, ...], Meta(max_length=PROBES_MAX)]


class Left(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """You are not in this stream: answers a Leave, and whatever a non-member says of a stream."""

    stream: WireStreamId


class Signalled(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """A neighbour of yours in a stream says this; forwards a Signal."""

    stream: WireStreamId
    peer: WireNodeId
    payload: Annotated[bytes, Meta(max_length=SIGNAL_BYTES_MAX)]


class JoinRefused(msgspec.Struct, frozen=True, array_like=True, tag=24, gc=False):
    """You are not taken into this stream, or not any more."""

    stream: WireStreamId
    later: bool
    """The tracker cannot find out what you may do, or has no room: say Join again. Else: you may do
    nothing."""
    problem: Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
    """Why not, for people."""


class StorageNodes(msgspec.Struct, frozen=True, array_like=True, tag=16, gc=False):
    """These keep the stream, in the order that its owner gave; answers FindStorage."""

    stream: WireStreamId
    contacts: Annotated[tuple[Contact, ...], Meta(max_length=STORAGE_NODES_MAX)]


class KeyHolders(msgspec.Struct, frozen=True, array_like=True, tag=26, gc=False):
    """Ask these, who expect you: the publisher first, if it is there; answers FindHolders."""

    request: Count
    contacts: Annotated[tuple[Contact, ...], Meta(max_length=HOLDERS_MAX)]


class Expect(msgspec.Struct, frozen=True, array_like=True, tag=27, gc=False):
    """A reader was told to ask you for keys of this stream: let it."""

    stream: WireStreamId
    reader: Contact


class NewStream(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stream that somebody is in, and whom its name is charged to, if anybody."""

    stream: WireStreamId
    by: WireNodeId | None = None
    """The node that began it at this tracker."""
    prefix: Annotated[str, Meta(max_length=PREFIX_CHARS_MAX)] | None = None
    """The part of the Internet that it called from."""


class KeepStreams(msgspec.Struct, frozen=True, array_like=True, tag=28, gc=False):
    """Somebody is in these streams, and their settings say that you keep them: join them."""

    streams: Annotated[tuple[NewStream, ...], Meta(min_length=1, max_length=NOTICED_STREAMS_MAX)]


# Between nodes, trackers and storage nodes that pin each other


class AskTime(msgspec.Struct, frozen=True, array_like=True, tag=40, gc=False):
    """What time is it? Answered at once, to anybody."""

    nonce: Count


class TellTime(msgspec.Struct, frozen=True, array_like=True, tag=41, gc=False):
    """Answer to AskTime: the answerer's time of day, in Unix milliseconds."""

    nonce: Count
    wall_ms: Count


NODE_MESSAGES = (
    Flood,
    Open,
    Close,
    Heads,
    Fill,
    FillDone,
    Feed,
    Announce,
    Want,
    Ping,
    Pong,
    Instruction,
    Probe,
    Left,
    JoinRefused,
)
TRACKER_MESSAGES = (Join, Leave, Status, Report, Probed, FindStorage, FindHolders)
SIGNAL_MESSAGES = (Signal, Signalled)  # for machines of their own, at trackers and at nodes
READER_MESSAGES = (StorageNodes,)  # for whoever reads history, a machine of its own
STORAGE_MESSAGES = (KeepStreams,)  # for storage nodes
CLOCK_MESSAGES = (AskTime, TellTime)  # for a machine that compares clocks
KEY_MESSAGES = (KeyHolders, Expect)  # for the key exchange, another one

# Messages between a reader who lacks a key and somebody who may have it.


class KeyRequest(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Give me this key. It is to be wrapped for my public key, which is that of my node id."""

    request: Count
    stream: WireStreamId
    key: KeyId
    public_key: Annotated[bytes, Meta(min_length=POINT_BYTES, max_length=POINT_BYTES)]


class KeyAnswer(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The key; or none, for it is not here, or not for you."""

    request: Count
    sealed: WrapBytes | None
