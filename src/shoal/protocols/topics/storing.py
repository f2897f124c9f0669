"""What this node has the DHT keep: blocks of its topics and events, until enough nodes hold them.

Publishing does not wait for any of this. Whoever wants to know asks, and is told when so many nodes
hold a block, or when no more will.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b

import msgspec

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.protocols.dht.commands import Put
from shoal.protocols.topics.commands import EventStored

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
