"""A search under way: hits as they come in, and how sure it is that they are all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import ceil
from typing import Any, Generic, Self, TypeVar

from shoal.base.errors import UsageError
from shoal.base.units import ns_of_seconds
from shoal.node.found import AnyFound, found_as
from shoal.node.search import NodeSearch, Token
from shoal.protocols.search.commands import (
    FindDocuments,
    Found,
    SearchOver,
    SearchWidened,
    StopSearch,
)
from shoal.protocols.search.documents import Document
from shoal.protocols.search.spaces import Space

CONFIDENCE_DEFAULT = 0.99
WITHIN_S_DEFAULT = 10.0
H = TypeVar("H", bound=AnyFound)

QUEUE_HITS_MAX = 1000  # more than people read; at most 64 KiB each, mostly far less


class Search(Token, Generic[H]):
    """Iterates over hits, the best of those that are there first. Made by Node.search; it begins
    when it is iterated over, or entered as a context, at whose end it stops. Otherwise it stops by
    itself after `within` seconds.

    An application that reads slowly loses the worst of what waits: `dropped` of them.
    """

    def __init__(
        self,
        door: NodeSearch,
        space: Space,
        query: str | bytes,
        hit: type[H],
        *,
        confidence: float,
        limit: int | None,
        within: float,
        queue_max: int,
        document: bytes | None = None,
    ) -> None:
        space.read(query)  # what is wrong with it is told at once
        if not 0 < confidence < 1:
            raise UsageError(f"confidence={confidence}: give a part of one, as in 0.99")
        if limit is not None and limit < 1:
            raise UsageError(f"limit={limit}: give 1 or more, or none")
        if not within > 0:
            raise UsageError(f"within={within}: give seconds, more than 0")
        if queue_max < 1:
            raise UsageError(f"a queue of {queue_max} hits: give 1 or more")
        self.query = query
        self.confidence = 0.0
        """The probability to have found a document that is there, by the nodes asked so far. The
        last of them may still answer, until the search is over."""
        self.asked = 0
        """Nodes that were asked."""
        self.nodes = 0.0
        """Nodes of the whole network, as it was measured."""
        self.over = False
        """Whether nothing more will come."""
        self.dropped = 0
        """Hits that found no room."""
        self._door = door
        self._hit = hit
        self._command = FindDocuments(
            query, confidence, limit, ns_of_seconds(within), document, space.name
        )
        self._queue_max = queue_max
        self._begun = False
        self._told = 0
        self._waiting: dict[bytes, Found] = {}  # the newest version of each document
        self._wake = asyncio.Event()

    @property
    def cost(self) -> int:
        """Messages that it took, about: one for each node that was asked, one for each answer."""
        return self.asked + self._told

    # What the application does

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    def __aiter__(self) -> AsyncIterator[H]:
        return self

    async def __anext__(self) -> H:
        found = await self._next()
        if found is None:
            raise StopAsyncIteration
        return found_as(self._hit, found.document, score=found.score)

    async def stop(self) -> None:
        """Ask nobody else, and forget what comes."""
        if self._begun and not self.over:
            self.ended()
            await self._door.say_last(StopSearch(), self)

    async def documents(self) -> list[Document]:
        """All that comes, as it was signed."""
        found = []
        while (one := await self._next()) is not None:
            found.append(one.document)
        return found

    # What the machine says

    def heard(self, event: Any) -> None:
        if self.over:
            return
        kind = type(event)
        if kind is Found:
            self._told += 1
            self._add(event)
        elif kind in (SearchWidened, SearchOver):
            self.confidence, self.nodes = event.confidence, event.nodes
            # In a small network a bubble has more positions than there are nodes.
            self.asked = min(event.asked, ceil(event.nodes))
            if kind is SearchOver:
                self._door.forget(self)
                self.over = True
        self._wake.set()

    def ended(self) -> None:
        self.over = True
        self._wake.set()

    # Steps

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        await self._door.when_joined()
        self._door.remember(self)
        try:
            await self._door.say(self._command, self)
        except BaseException:
            self._door.forget(self)
            self.over = True
            raise

    async def _next(self) -> Found | None:
        await self._begin()
        while not self._waiting:
            if self.over:
                return None
            self._wake.clear()
            await self._wake.wait()
        best = max(self._waiting.values(), key=lambda found: found.score)
        return self._waiting.pop(best.document.id)

    def _add(self, found: Found) -> None:
        known = self._waiting.get(found.document.id)
        if known is not None and known.document.rank >= found.document.rank:
            return
        self._waiting[found.document.id] = found
        if len(self._waiting) > self._queue_max:
            worst = min(self._waiting.values(), key=lambda one: one.score)
            del self._waiting[worst.document.id]
            self.dropped += 1
