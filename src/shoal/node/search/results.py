"""A document that was found, as an application sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from math import ceil
from typing import Any, Generic, Self, TypeVar

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import show_node_id
from shoal.base.units import ns_of_seconds
from shoal.node.search.client import NodeSearch, Token
from shoal.node.streams.message import LOST, SLOW, Gap
from shoal.protocols.search.commands import (
    FindDocuments,
    Found,
    SearchOver,
    SearchWidened,
    Seen,
    StopSearch,
    Unwatch,
    WatchDocuments,
)
from shoal.protocols.search.documents.document import Document, Kind, Life
from shoal.protocols.search.spaces import Space

_encode = msgspec.json.Encoder().encode


class AnyFound(msgspec.Struct, frozen=True, kw_only=True):
    """One version of something, its owner's signature checked."""

    owner: str
    """Who put it and signed it, 0x..."""
    name: str
    life: Life
    version: int
    """Of two, the larger one is newer."""
    expires: datetime

    @property
    def address(self) -> str:
        """What it is called everywhere: owner and name."""
        return f"{self.owner}/{self.name}"


class FoundDocument(AnyFound, frozen=True, kw_only=True):
    """One version of a document, its owner's signature checked."""

    content: dict[str, Any]
    kind: Kind

    def as_json(self) -> bytes:
        """One line for programs."""
        fields = msgspec.structs.asdict(self)
        try:
            return _encode(fields)
        except RecursionError:  # just shallow enough to be read, and one level deeper here
            return _encode({**fields, "content": "nested too deeply"})


class Hit(FoundDocument, frozen=True, kw_only=True):
    """What a search has found."""

    score: float
    """How well it matches, by the statistics of the node that had it."""


class Sighting(FoundDocument, frozen=True, kw_only=True):
    """What a standing query has met."""

    gap_before: Gap | None = None
    """Some before this one were lost, since the application did not keep up; or may have been,
    since nodes that had the query are gone."""


class FoundData(AnyFound, frozen=True, kw_only=True):
    """One version of what was put into a space, its owner's signature checked."""

    content: bytes


class DataHit(FoundData, frozen=True, kw_only=True):
    """What a search in a space has found."""

    score: float
    """How well it matches, by this node's own matcher."""


class DataSighting(FoundData, frozen=True, kw_only=True):
    """What a standing query of a space has met."""

    gap_before: Gap | None = None
    """Some before this one were lost, since the application did not keep up; or may have been,
    since nodes that had the query are gone."""


F = TypeVar("F", bound=AnyFound)
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, and of Python's calendar


def found_as(kind: type[F], document: Document, **more: Any) -> F:
    """A document for the application."""
    if issubclass(kind, FoundDocument):
        more |= {"content": document.value, "kind": document.kind}
    else:
        more |= {"content": document.content}
    return kind(
        owner=show_node_id(document.owner),
        name=document.name,
        life=document.life,
        version=document.version,
        expires=datetime.fromtimestamp(min(document.expires_ms, _LAST_MS) / 1000, UTC),
        **more,
    )


# A search under way: hits as they come in, and how sure it is that they are all.


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


# A standing query: documents that match, as they are put.


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
