"""What this node has the DHT keep: blocks of its topics and events, until enough nodes hold them.

Publishing does not wait for any of this. Whoever wants to know asks, and is told when so many nodes
hold a block, or when no more will.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.protocols.dht.commands import Put
from shoal.protocols.topics.commands import EventStored
from shoal.protocols.topics.event_log import Entry
from shoal.protocols.topics.heads import heads_of

if TYPE_CHECKING:
    from shoal.protocols.topics.topic import HeldTopics, TopicState

PUT = "put"  # the token of a put, and the timer of the next try
TRIES_MAX = 6
RETRY_NS = 2 * S_NS  # doubled with each try
PUTS_NS = RETRY_NS << TRIES_MAX  # a put is over by then
KEPT_MAX = 10_000  # blocks whose replicas are remembered


class _Waiter(msgspec.Struct, eq=False):
    event: Cid
    replicas: int
    token: Hashable
    left: int
    """Blocks that are not stored yet."""
    least: int | None = None
    """Replicas of the block that has fewest."""


class _Kept(msgspec.Struct):
    block: bytes
    """Empty once it is stored well enough."""
    number: int
    """A head record is put again and again: which one of them."""
    digest: bytes
    """Of the block, also once that is empty."""
    replicas: int = 0
    tries: int = 0
    waiters: list[_Waiter] = []


class Storing:
    """Blocks on their way into the DHT, by their key there."""

    def __init__(self, here: NodeId, dropped: Callable[[Cid], None]) -> None:
        """Hears of blocks that were dropped because too many are under way."""
        self._here = here
        self._dropped = dropped
        self._number = 0
        self._kept: dict[Cid, _Kept] = {}

    def put(self, id: Cid, block: bytes) -> list[Effect]:
        """Have a block kept; whoever waits for another one under this key waits for this one."""
        self._number += 1
        before = self._kept.pop(id, None)
        self._kept[id] = _Kept(block, self._number, _digest(block))
        if before is not None:
            self._kept[id].waiters = before.waiters
        effects = self._forget_one() if len(self._kept) > KEPT_MAX else []
        return [*effects, *self._try(id, self._kept[id])]

    def awaits(self, id: Cid) -> bool:
        """Whether somebody waits for a block under this key."""
        kept = self._kept.get(id)
        return kept is not None and bool(kept.waiters)

    def replace(self, id: Cid, block: bytes) -> list[Effect]:
        """Put a newer block instead of one that is waited for."""
        return [] if self._kept[id].block == block else self.put(id, block)

    def wait(
        self, event: Cid, blocks: dict[Cid, bytes], replicas: int, token: Hashable
    ) -> list[Effect]:
        """Tell when so many nodes hold all of these; what fewer held before is put again."""
        waiter = _Waiter(event, replicas, token, len(blocks))
        effects: list[Effect] = []
        for id, block in blocks.items():
            kept = self._kept.get(id)
            same = kept is not None and kept.digest == _digest(block)  # or it is an older record
            if kept is not None and same and kept.replicas >= replicas:
                effects += _stored(waiter, kept.replicas)
                continue
            if kept is None or not same or not kept.block:
                effects += self.put(id, block)
            self._kept[id].waiters.append(waiter)
        return effects

    def done(self, id: Cid, number: int, replicas: int, over: bool = True) -> list[Effect]:
        """So many hold a block, and perhaps its try is over. Who waits for no more is told at once,
        whatever the slowest nodes do."""
        kept = self._kept.get(id)
        if kept is None or not kept.block or kept.number != number:
            return []
        kept.replicas = max(kept.replicas, replicas)
        if not over:
            enough_for = [one for one in kept.waiters if one.replicas <= kept.replicas]
            kept.waiters = [one for one in kept.waiters if one.replicas > kept.replicas]
            return [effect for one in enough_for for effect in _stored(one, kept.replicas)]
        enough = max([1, *[waiter.replicas for waiter in kept.waiters]])
        if kept.replicas < enough and kept.tries < TRIES_MAX:
            return [SetTimer((PUT, id), RETRY_NS << (kept.tries - 1))]
        kept.block = b""
        told, kept.waiters = kept.waiters, []
        return [effect for waiter in told for effect in _stored(waiter, kept.replicas)]

    def again(self, id: Cid) -> list[Effect]:
        """Time for another try."""
        kept = self._kept.get(id)
        return [] if kept is None or not kept.block else self._try(id, kept)

    def _try(self, id: Cid, kept: _Kept) -> list[Effect]:
        kept.tries += 1
        token = (PUT, id, kept.number)
        return [Send(Put(id, kept.block, None, token, progress=True), (self._here,))]

    def _forget_one(self) -> list[Effect]:
        for id, kept in self._kept.items():
            if not kept.block:
                del self._kept[id]
                return []
        id = next(iter(self._kept))
        kept = self._kept.pop(id)
        self._dropped(id)
        return [effect for waiter in kept.waiters for effect in _stored(waiter, kept.replicas)]


def _digest(block: bytes) -> bytes:
    return blake2b(block, digest_size=16).digest()


def _stored(waiter: _Waiter, replicas: int) -> list[Effect]:
    waiter.left -= 1
    waiter.least = replicas if waiter.least is None else min(waiter.least, replicas)
    if waiter.left:
        return []
    return [Notify(EventStored(waiter.event, waiter.least, waiter.token))]


# Head records of others, for whoever waits until an event that they published for it is safe.
#
# An event in the DHT is found by those who do not know its CID only if a head record leads to it.
# Our own record we put at once; a publisher that we asked puts its own some seconds after the
# event. So it is looked for until it leads there, and put again from here, to learn how many nodes
# hold it.


LEAD = "lead"  # the timer of the next look


class _RecordWaiter(msgspec.Struct):
    topic: Cid
    entry: Entry
    replicas: int
    token: Hashable
    until_ns: int


class Leads:
    """Who waits for records of others."""

    def __init__(self, held: HeldTopics) -> None:
        self._held = held
        self._waiters: list[_RecordWaiter] = []

    def wait(
        self, state: TopicState, entry: Entry, replicas: int, token: Hashable, now_ns: int
    ) -> list[Effect]:
        """Tell when so many nodes hold an event, and a record that leads to it."""
        first = not self._waits(state)
        until_ns = now_ns + self._held.config.request_patience_ns
        self._waiters.append(_RecordWaiter(state.id, entry, replicas, token, until_ns))
        effects = self.found(state)
        return [*effects, *self.look(state, now_ns)] if first else effects

    def look(self, state: TopicState, now_ns: int) -> list[Effect]:
        """Ask for records as long as somebody waits for one, or for its replicas: it may be
        replaced meanwhile, and nobody takes an old one."""
        effects: list[Effect] = []
        for waiter in [one for one in self._waiters if now_ns >= one.until_ns]:
            self._waiters.remove(waiter)
            effects.append(Notify(EventStored(waiter.entry.id, 0, waiter.token)))
        if not self._waits(state):
            return effects
        timer = SetTimer((LEAD, state.id), self._held.config.sync_retry_ns)
        return [*effects, timer, *self._held.watch(state, now_ns)]

    def found(self, state: TopicState) -> list[Effect]:
        """Records were looked for; they may be newer."""
        storing = self._held.storing
        effects: list[Effect] = []
        if state.may_publish:
            return effects  # our own leads there
        for (key, _), record in state.records.items():
            if storing.awaits(Cid(key)):
                effects += storing.replace(Cid(key), record)
            heads = heads_of(record)[2]
            ours = [one for one in self._waiters if one.topic == state.id]
            led = [one for one in ours if state.log.leads_to(heads, one.entry.id)]
            for waiter in led:
                self._waiters.remove(waiter)
                id = waiter.entry.id
                blocks = {id: encode_descriptor(waiter.entry.event), Cid(key): record}
                effects += storing.wait(id, blocks, waiter.replicas, waiter.token)
        return effects

    def _waits(self, state: TopicState) -> bool:
        """Whether somebody waits for a record, or for its replicas."""
        if any(one.topic == state.id for one in self._waiters):
            return True
        keys = [key for key, _ in state.records]
        return not state.may_publish and any(self._held.storing.awaits(Cid(key)) for key in keys)
