"""A standing query: documents that match, as they are put."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Generic, Self, TypeVar

from shoal.base.errors import UsageError
from shoal.node.found import AnyFound, found_as
from shoal.node.messages import LOST, SLOW, Gap
from shoal.node.search import NodeSearch, Token
from shoal.protocols.search.commands import Seen, Unwatch, WatchDocuments
from shoal.protocols.search.spaces import Space

QUEUE_SIGHTINGS_MAX = 1000


S = TypeVar("S", bound=AnyFound)


class Watch(Token, Generic[S]):
    """Iterates over documents that were put since it was entered as a context, until its end. Made
    by Node.watch. A consumer that falls behind loses the oldest, and is told so: the next one has
    `gap_before`. So has the next one after nodes that had the query were lost: what is kept in the
    network was searched for again, what only passes by may be missing."""

    def __init__(
        self,
        door: NodeSearch,
        space: Space,
        query: str | bytes,
        sighting: type[S],
        *,
        queue_max: int,
    ) -> None:
        space.read(query)  # what is wrong with it is told at once
        if queue_max < 1:
            raise UsageError(f"a queue of {queue_max} documents: give 1 or more")
        self.query = query
        self.queue_max = queue_max
        self._door = door
        self._space = space.name
        self._sighting = sighting
        self._queue: deque[Seen] = deque()
        self._missed = 0
        self._lost = False
        self._begun = False
        self._closed = False
        self._wake = asyncio.Event()

    # What the application does

    async def __aenter__(self) -> Self:
        if self._begun:
            raise UsageError(f"this watch for {self.query!r} was used before: make another one")
        self._begun = True
        await self._door.when_joined()
        self._door.remember(self)
        try:
            await self._door.say(WatchDocuments(self.query, self._space), self)
        except BaseException:
            self._door.forget(self)
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.ended()
        await self._door.say_last(Unwatch(), self)

    def __aiter__(self) -> AsyncIterator[S]:
        if not self._begun:
            raise UsageError("enter it first: async with node.watch(query) as events")
        return self

    async def __anext__(self) -> S:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        missed, self._missed = self._missed, 0
        seen = self._queue.popleft()
        lost, self._lost = self._lost or seen.gap_before, False
        gap = Gap(missed, SLOW) if missed else Gap(None, LOST) if lost else None
        return found_as(self._sighting, seen.document, gap_before=gap)

    # What the machine says

    def heard(self, event: Any) -> None:
        if type(event) is not Seen or self._closed:
            return
        if len(self._queue) >= self.queue_max:
            dropped = self._queue.popleft()
            self._lost = self._lost or dropped.gap_before
            self._missed += 1
        self._queue.append(event)
        self._wake.set()

    def ended(self) -> None:
        self._closed = True
        self._wake.set()
