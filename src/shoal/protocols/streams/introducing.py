"""Whom a tracker has a reader ask for keys: the publisher, and a few others who may read.

A reader that lacks a key, and whose neighbours lack it too, is told of members that it has no link
with, and these are told of it: a service link, outside the degree. Nobody hands a key to somebody
who is neither a neighbour nor was announced like this. Whoever asks again is told of the same
others while nobody comes or goes: it learns no more members by it than by a Join.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import chain, islice

from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, Send
from shoal.protocols.streams.config import HOLDERS_MAX, TrackerConfig
from shoal.protocols.streams.messages import Expect, FindHolders, KeyHolders
from shoal.protocols.streams.tracked_stream import TrackedStream

LOOKED_AT_MAX = 64  # members of whom it is looked up whether they may read, for one question


def introduce(
    state: TrackedStream | None,
    reader: NodeId,
    find: FindHolders,
    may_read: Callable[[NodeId], bool],
    gone: Container[NodeId],
    config: TrackerConfig,
    now_ns: int,
) -> list[Effect]:
    """Tell a reader whom to ask, and those of it. `gone` are members that cannot be told."""
    if state is None:
        return [Send(KeyHolders(find.request, ()), (reader,))]
    holders = _holders(state, reader, find.publisher, may_read, gone)
    contacts = tuple([state.members[holder].contact for holder in holders])
    told = Send(KeyHolders(find.request, contacts), (reader,))
    if not holders:
        return [told]
    member = state.members.get(reader)
    if member is not None:
        for holder in holders:
            member.introduced.pop(holder, None)
            member.introduced[holder] = now_ns + config.introduced_ns
        while len(member.introduced) > config.introduced_max:
            del member.introduced[next(iter(member.introduced))]
    # Whoever only reads history is in no stream, and has said nowhere how it is reached: it dials.
    contact = Contact(reader) if member is None else member.contact
    return [Send(Expect(find.stream, contact), tuple(holders)), told]


def _holders(
    state: TrackedStream,
    reader: NodeId,
    publisher: NodeId,
    may_read: Callable[[NodeId], bool],
    gone: Container[NodeId],
) -> list[NodeId]:
    members = state.members
    found = [publisher] if publisher in members else []
    # Each reader begins at another one, so that not all of them ask the first.
    start = int.from_bytes(reader, "big") % len(members)
    in_turn = chain(islice(members, start, None), islice(members, start))
    found += [
        node for node in islice(in_turn, LOOKED_AT_MAX) if node != publisher and may_read(node)
    ]
    return [node for node in found if node != reader and node not in gone][:HOLDERS_MAX]
