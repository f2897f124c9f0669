"""Search, as an application uses it: the part of Node that is about documents."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from random import Random
from typing import Any

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId, StreamId
from shoal.identity.topics.cid import Cid, show_cid
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.node.announcements import Announcements, PublicStreams
from shoal.node.documents import NodeDocuments, PublishedDocument
from shoal.node.found import FoundDocument, Hit, Sighting, found_as
from shoal.node.measure import Measure
from shoal.node.registry_role import RegistryRole
from shoal.node.search import NodeSearch
from shoal.node.search_results import (
    CONFIDENCE_DEFAULT,
    QUEUE_HITS_MAX,
    WITHIN_S_DEFAULT,
    Search,
)
from shoal.node.search_role import SearchRole
from shoal.node.space import Space
from shoal.node.user_connection import Incoming, Peer, UserConnection, UserConnections
from shoal.node.watch import QUEUE_SIGHTINGS_MAX, Watch
from shoal.protocols.search.commands import OpenSpace
from shoal.protocols.search.document_space import DocumentSpace
from shoal.protocols.search.documents import Kind, Life
from shoal.protocols.search.matched_space import MatchedSpace, Matcher
from shoal.runtime import RuntimeHost

EVERYTHING = "*"


class SearchDoors:
    """What a node in the search network has to offer."""

    def __init__(self, host: RuntimeHost, role: SearchRole, rng: Random) -> None:
        self.door = NodeSearch(host, role, rng)
        self.space = DocumentSpace()
        self.documents = NodeDocuments(self.door, self.space, EVERYTHING)
        self.measure = Measure(self.door)
        self.users = UserConnections(self.door)
        self._announcements = Announcements(self.door, self.documents)
        self._announces = role.section.announce

    def announce_stream(self, id: StreamId, partitions: int) -> None:
        """Have a public stream found, unless the network file says otherwise."""
        if self._announces:
            self._announcements.stream(id, partitions)

    def announce_topic(self, id: Cid, topic: TopicDescriptor | None) -> Awaitable[None] | None:
        """Have a public topic found, unless the network file says otherwise; None: no more."""
        if topic is None:
            return self._announcements.withdraw(show_cid(id))
        return self._announcements.topic(id, topic) if self._announces else None

    def follow(self, registry: RegistryRole, owner: NodeId) -> PublicStreams | None:
        """Have those streams found that the registry shows to everybody, unless the network file
        says otherwise."""
        if not self._announces:
            return None
        streams = PublicStreams(owner, registry, self._announcements)
        self.door.start(streams.run())
        return streams


class Searching:
    """What a node lets an application do in the search network."""

    def __init__(self) -> None:
        self._search: SearchDoors | None = None
        self._closed = False

    async def put(
        self,
        content: Mapping[str, Any],
        *,
        kind: Life = "managed",
        name: str | None = None,
        life: timedelta | float | None = None,
    ) -> PublishedDocument:
        """Have a JSON object found by others, in place of this node's document of the same name;
        without a name it gets one.

        How it is kept: `instant`, not at all, it only meets standing queries; `fading`, by whoever
        it reached; `managed`, the same, as long as this node runs; `durable`, by the network,
        whether this node runs or not. Without a life: for a minute, an hour, always, 30 days.
        """
        if not isinstance(content, Mapping):
            raise UsageError(
                f"a document of type {type(content).__name__}: give a mapping, a JSON object"
            )
        what: Kind = "event" if kind == "instant" else "document"
        return await self.searching.documents.put(content, kind, name, life, what)

    async def delete(self, name: str) -> PublishedDocument:
        """Have this node's document of that name not found any more, by anybody."""
        return await self.searching.documents.delete(name)

    async def get(
        self, name: str, *, owner: str | None = None, within: float = WITHIN_S_DEFAULT
    ) -> FoundDocument:
        """The newest version of a document, by its owner (this node, if none is given) and name."""
        return found_as(FoundDocument, await self.searching.documents.get(name, owner, within))

    def search(
        self,
        query: str,
        *,
        confidence: float = CONFIDENCE_DEFAULT,
        limit: int | None = None,
        within: float = WITHIN_S_DEFAULT,
        queue_max: int = QUEUE_HITS_MAX,
    ) -> Search[Hit]:
        """Documents that match, as they are found, until the search is as sure as it shall be to
        have found each one that is there, or has `limit` of them, or has taken `within` seconds."""
        return Search(
            self.searching.door,
            self.searching.space,
            query,
            Hit,
            confidence=confidence,
            limit=limit,
            within=within,
            queue_max=queue_max,
        )

    def watch(self, query: str, *, queue_max: int = QUEUE_SIGHTINGS_MAX) -> Watch[Sighting]:
        """Documents that match, as they are put from now on."""
        doors = self.searching
        return Watch(doors.door, doors.space, query, Sighting, queue_max=queue_max)

    async def space(self, name: str, matcher: Matcher) -> Space:
        """Have data of our own form found by questions of our own form, by all nodes that open the
        space of this name. It is open until this node's end."""
        door = self.searching.door
        space = MatchedSpace(name, matcher)
        await door.host.issue(door.machine, OpenSpace(space))
        return Space(door, space)

    @property
    def measure(self) -> Measure:
        """Sums, minima and maxima over the whole network, and its size."""
        return self.searching.measure

    def connect(
        self, peer: Peer, type: str, *, addresses: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[UserConnection]:
        """Talk to an application on another node that accepts this type; where it is, if this node
        has not met it."""
        return self.searching.users.connect(peer, type, addresses)

    def accept(self, type: str) -> AbstractAsyncContextManager[Incoming]:
        """Be talked to by applications on other nodes."""
        return self.searching.users.accept(type)

    @property
    def searching(self) -> SearchDoors:
        """The doors to search."""
        if self._closed:
            raise UsageError("this node is closed: open another one")
        if self._search is None:
            raise UsageError("this node is not in the search network: add [search] to its file")
        return self._search
