"""A space of an application: its own data, found by its own questions and its own matcher."""

from __future__ import annotations

from datetime import timedelta

from shoal.base.errors import UsageError
from shoal.node.documents import NodeDocuments, PublishedDocument
from shoal.node.found import DataHit, DataSighting, FoundData, found_as
from shoal.node.search import NodeSearch
from shoal.node.search_results import (
    CONFIDENCE_DEFAULT,
    QUEUE_HITS_MAX,
    WITHIN_S_DEFAULT,
    Search,
)
from shoal.node.watch import QUEUE_SIGHTINGS_MAX, Watch
from shoal.protocols.search.documents import Life
from shoal.protocols.search.matched_space import MatchedSpace


class Space:
    """What Node does with documents, for bytes that a matcher compares. Made by Node.space."""

    def __init__(self, door: NodeSearch, space: MatchedSpace) -> None:
        self.name = space.name
        self._door = door
        self._space = space
        self._data = NodeDocuments(door, space, b"")

    @property
    def failures(self) -> int:
        """How often the matcher raised, or gave what is no score. Others may have sent what it
        cannot read; or it is wrong, see `problem`."""
        return self._space.failures

    @property
    def problem(self) -> str:
        """The last failure."""
        return self._space.problem

    async def put(
        self,
        content: bytes,
        *,
        kind: Life = "managed",
        name: str | None = None,
        life: timedelta | float | None = None,
    ) -> PublishedDocument:
        """As Node.put: have it found by others, in place of this node's data of the same name in
        this space."""
        if not isinstance(content, bytes):
            raise UsageError(f"data of type {type(content).__name__}: give bytes")
        return await self._data.put(content, kind, name, life, self.name)

    async def delete(self, name: str) -> PublishedDocument:
        """Have this node's data of that name not found any more, by anybody."""
        return await self._data.delete(name)

    async def get(
        self, name: str, *, owner: str | None = None, within: float = WITHIN_S_DEFAULT
    ) -> FoundData:
        """The newest version, by its owner (this node, if none is given) and name."""
        return found_as(FoundData, await self._data.get(name, owner, within))

    def search(
        self,
        query: bytes,
        *,
        confidence: float = CONFIDENCE_DEFAULT,
        limit: int | None = None,
        within: float = WITHIN_S_DEFAULT,
        queue_max: int = QUEUE_HITS_MAX,
    ) -> Search[DataHit]:
        """As Node.search: what matches, as it is found."""
        return Search(
            self._door,
            self._space,
            query,
            DataHit,
            confidence=confidence,
            limit=limit,
            within=within,
            queue_max=queue_max,
        )

    def watch(self, query: bytes, *, queue_max: int = QUEUE_SIGHTINGS_MAX) -> Watch[DataSighting]:
        """As Node.watch: what matches, as it is put from now on."""
        return Watch(self._door, self._space, query, DataSighting, queue_max=queue_max)
