"""Answering those who miss events: what they asked for, and what lies behind it."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.identity.topics.cid import Cid
from shoal.kernel.effects import Effect, Send
from shoal.protocols.topics.config import MESSAGES_MAX, RPC_BYTES_MAX, TopicsConfig
from shoal.protocols.topics.log import Entry
from shoal.protocols.topics.messages import Lacks, PublishEvent, Rpc, Want
from shoal.protocols.topics.state import TopicState
from shoal.protocols.topics.tree import say, stamp

ASKED_BYTES_MAX = 2 * RPC_BYTES_MAX  # of events that were named; the asker asks again for the rest


def answer_want(
    state: TopicState, peer: NodeId, want: Want, config: TopicsConfig, now_ns: int
) -> list[Effect]:
    """What was named, each with what lies behind it."""
    held = state.log.events
    found: dict[Cid, Entry] = {}
    lacking: list[Cid] = []
    size = 0
    for id in want.events:
        entry = held.get(id)
        if entry is None:
            lacking.append(id)
        elif size < ASKED_BYTES_MAX:
            found[id] = entry
            size += entry.size
    known = set(want.known)
    room = min(want.behind, config.want_batch)
    room_bytes = config.want_bytes
    ordered: dict[Cid, Entry] = {}
    for id, entry in found.items():
        ordered.setdefault(id, entry)
        parent = entry.event.parent
        while parent is not None and room > 0 and parent not in known and parent not in ordered:
            behind = held.get(parent)
            if behind is None or behind.size > room_bytes:
                break
            ordered[parent] = behind
            room -= 1
            room_bytes -= behind.size
            parent = behind.event.parent
    effects = _in_rpcs(peer, list(ordered.values()), now_ns)
    if lacking:
        effects.append(say(peer, Lacks(state.id, tuple(lacking), stamp(now_ns))))
    return effects


def _in_rpcs(peer: NodeId, entries: list[Entry], now_ns: int) -> list[Effect]:
    effects: list[Effect] = []
    batch: list[PublishEvent] = []
    size = 0
    now = stamp(now_ns)
    for entry in entries:
        # An entry's size counts what it costs in memory, which is more than its bytes.
        grown = size + entry.size
        if batch and (len(batch) == MESSAGES_MAX or grown > RPC_BYTES_MAX):
            effects.append(Send(Rpc(tuple(batch)), (peer,)))
            batch, grown = [], entry.size
        batch.append(PublishEvent(entry.event, now))
        size = grown
    if batch:
        effects.append(Send(Rpc(tuple(batch)), (peer,)))
    return effects
