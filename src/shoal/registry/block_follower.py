"""Following a chain: which block counts, what has changed since, and how old that is.

Every poll asks for the newest block that is deep enough, and for the contracts' logs since the last
one. What was read before and is in none of them is still as it was. So one number says how old all
of the cache is: the time since the last poll that succeeded.

A block that was seen and now has another hash was replaced, deeper than `depth`: everything that
was known is forgotten. A height that the endpoint does not know is one that lags behind: nothing is
forgotten, and everything grows older until it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

from shoal.base.errors import MalformedMessage, RegistryUnavailable, UsageError
from shoal.base.ids import NodeId, StreamId, parse_stream_id, show_node_id
from shoal.registry import contracts
from shoal.registry.chain import Block, Chain, Log
from shoal.registry.config import WATCH_CHANGES_MAX
from shoal.registry.port import Change

log = logging.getLogger("shoal.registry")

_STREAM_EVENTS = {
    "StreamCreated": "created",
    "StreamEdited": "edited",
    "StreamDeleted": "deleted",
    "PermissionsSet": "permissions",
}


class Follower:
    """Where we are in the chain."""

    def __init__(
        self,
        chain: Chain,
        addresses: Sequence[NodeId],
        depth: int,
        head_age_s_max: float | None,
        forget: Callable[[Sequence[Change]], None],
    ) -> None:
        """Of these contracts, the Streams one first. `forget` hears of changes before the block
        they are in is `seen`."""
        self._chain = chain
        self._addresses = addresses
        self._depth = depth
        self._head_age_s_max = head_age_s_max
        self._forget = forget
        self._seen: Block | None = None
        self._as_of_s = 0.0
        self._lock = asyncio.Lock()
        self._failures = 0
        self._watchers: set[asyncio.Queue[Change]] = set()
        self.changes = 0
        """Grows with every change: what was read across one may be of before it."""
        self.problem: str | None = None
        """Why the last poll failed, or None."""

    @property
    def seen(self) -> Block:
        """The newest block that counts. Poll first."""
        assert self._seen is not None, "nothing is known before the first poll"
        return self._seen

    @property
    def age_s(self) -> float:
        """How old everything that is known may be."""
        return time.monotonic() - self._as_of_s

    async def poll(self) -> None:
        """Learn what is new; RegistryUnavailable. Whoever waits for a poll that fails does not try
        again: of many, each would wait for all before it."""
        failures = self._failures
        async with self._lock:
            if self._failures != failures and self.problem is not None:
                raise RegistryUnavailable(self.problem)
            try:
                await self._poll()
            except RegistryUnavailable as error:
                if self.problem is None:
                    log.warning("%s", error)
                self.problem = str(error)
                self._failures += 1
                raise
            if self.problem is not None:
                log.warning("the registry's chain at %s is back", self._chain.where)
            self.problem = None

    async def keep_polling(self, interval_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.poll()
            except RegistryUnavailable:
                continue  # it was said; the next poll finds out whether it is over

    async def watch(self, since: int | None) -> AsyncIterator[Change]:
        """What happened from a block on, and what happens then."""
        queue: asyncio.Queue[Change] = asyncio.Queue(WATCH_CHANGES_MAX)
        self._watchers.add(queue)
        try:
            if since is not None:
                # Later ones are in the queue already.
                for change in await self._changes(since, self.seen.number):
                    yield change
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def _poll(self) -> None:
        started_s = time.monotonic()
        head, last = await self._chain.head(), self._seen
        self._check_age(head)
        number = max(head.number - self._depth, 0)
        block = head if number == head.number else await self._chain.block(number)
        if block is None:
            raise self._confused(f"does not know its block {number}")
        found: list[Change] = []
        if last is not None and block.hash != last.hash:
            found = await self._changes(last.number + 1, number)
            # After the logs: blocks may be replaced while we read. In one batch.
            again, known = await asyncio.gather(
                self._chain.block(number), self._chain.block(last.number)
            )
            if again is None or again.hash != block.hash:
                raise self._confused(f"is replacing its block {number}")
            if known is None or (number <= last.number and known.hash == last.hash):
                raise self._confused(f"lags behind: block {last.number} has been seen")
            if known.hash != last.hash:
                found = [Change("unknown", number)]
                log.warning("blocks up to %d of %s were replaced", last.number, self._chain.where)
        # No await from here on: nobody sees half of it.
        self._forget(found)
        self.changes += len(found)
        self._seen, self._as_of_s = block, started_s
        for change in found:
            for queue in self._watchers:
                _offer(queue, change)

    def _confused(self, how: str) -> RegistryUnavailable:
        return RegistryUnavailable(f"the registry's chain at {self._chain.where} {how}")

    def _check_age(self, head: Block) -> None:
        age_s = time.time() - head.timestamp_s
        if self._head_age_s_max is not None and age_s > self._head_age_s_max:
            raise RegistryUnavailable(
                f"the registry's chain at {self._chain.where} hangs: its newest block is"
                f" {age_s:.0f} s old (head_age_s_max = {self._head_age_s_max:g})"
            )

    async def _changes(self, first: int, last: int) -> list[Change]:
        if first > last or not self._addresses:  # no addresses: endpoints take it for all
            return []
        logs = await self._chain.logs(self._addresses, first, last)
        return [change for log in logs if (change := self._change(log)) is not None]

    def _change(self, log: Log) -> Change | None:
        is_streams = log.address == self._addresses[0]
        contract = contracts.streams() if is_streams else contracts.directory()
        event = contract.event(log)
        if event is None:
            return None
        try:
            values = event.values(log)
            if not is_streams:
                return Change("directory", log.block, who=values.get("node"))
            if event.name == "PublicKeyPut":
                return Change("key", log.block, who=values["who"])
            stream = _stream_id(values["owner"], values["path"])
        except (MalformedMessage, UsageError):
            return None  # a path that is no text: no stream that anybody here can name
        what = _STREAM_EVENTS[event.name]
        return Change(what, log.block, stream, values.get("who"))  # type: ignore[arg-type]


def _stream_id(owner: NodeId, path: str) -> StreamId:
    return parse_stream_id(f"{show_node_id(owner)}/{path}")


def _offer(queue: asyncio.Queue[Change], change: Change) -> None:
    """One who does not keep up hears that, and not of each."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        change = Change("unknown", change.block)
    queue.put_nowait(change)
