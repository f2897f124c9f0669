"""Documents that an application puts into the network, looks after, and gets by their names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple, get_args

import msgspec

from shoal.base.errors import ClockWrong, NotFound, SessionReplaced, ShoalError, UsageError
from shoal.base.ids import NodeId, parse_node_id, show_node_id
from shoal.base.units import S_NS, ns_of_seconds
from shoal.node.search.client import NodeSearch
from shoal.node.search.results import (
    CONFIDENCE_DEFAULT,
    QUEUE_HITS_MAX,
    QUEUE_SIGHTINGS_MAX,
    WITHIN_S_DEFAULT,
    AnyFound,
    DataHit,
    DataSighting,
    FoundData,
    Search,
    Watch,
    found_as,
)
from shoal.protocols.search.commands import DocumentPut, PutDocument
from shoal.protocols.search.documents.document import LIFE_NS_MAX, Document, Life, document_id
from shoal.protocols.search.spaces import MatchedSpace
from shoal.protocols.search.spaces import Space as SearchSpace

HOUR_NS = 3600 * S_NS

LIFE_NS: Mapping[Life, int] = {
    "instant": 60 * S_NS,
    "fading": HOUR_NS,
    "managed": 24 * HOUR_NS,
    "durable": 30 * 24 * HOUR_NS,
}
"""How long a document is there if its owner does not say."""

DELETION_SLACK_NS = HOUR_NS  # a deletion has to outlive what it deletes, also where clocks differ
RETRY_S = 10.0  # between two looks at whether the clock is right again
NAMES_MAX = 10_000  # that are remembered; others are looked for when they are to be deleted

log = logging.getLogger("shoal.node")


class PublishedDocument(msgspec.Struct, frozen=True):
    """A document that was put."""

    id: bytes
    """The same for all versions."""
    owner: str
    name: str
    version: int
    nodes: int
    """So many nodes keep it, once it has reached them."""

    @property
    def address(self) -> str:
        """What it is called everywhere: owner and name."""
        return f"{self.owner}/{self.name}"


class _Put(NamedTuple):
    life: Life
    kind: str
    expires_ns: int

    @classmethod
    def of(cls, document: Document) -> _Put:
        return cls(document.life, document.kind, document.expires_ns)


class NodeDocuments:
    """Documents of one running node, in one space."""

    def __init__(self, door: NodeSearch, space: SearchSpace, any_query: str | bytes) -> None:
        self._door = door
        self._space = space
        self._any_query = any_query
        self._put: dict[str, _Put] = {}  # what can be deleted without looking for it
        self._renewals: dict[str, PutDocument] = {}
        self._renewing = False

    async def put(
        self,
        content: Mapping[str, Any] | bytes,
        life: Life,
        name: str | None,
        lasts: timedelta | float | None,
        kind: str,
    ) -> PublishedDocument:
        """Have a document found, in place of one of the same name."""
        if life not in get_args(Life):
            raise UsageError(f"kind={life!r}: give one of {', '.join(get_args(Life))}")
        name = f"{self._door.rng.getrandbits(64):016x}" if name is None else name
        life_ns = LIFE_NS[life] if lasts is None else _ns(lasts)
        command = PutDocument(name, content, life, life_ns, kind)
        await self._may_sign()
        answer = await self._door.ask(command, DocumentPut)
        self._note(answer.document)
        self._renewals.pop(name, None)
        if life == "managed" and lasts is None:
            self._renewals[name] = command
            self._start_renewing()
        return _published(answer)

    async def delete(self, name: str) -> PublishedDocument:
        """Have a document of ours not found any more."""
        await self._may_sign()
        put = self._put.get(name) or _Put.of(await self._find(self._door.node, name))
        self._renewals.pop(name, None)
        left_ns = max(0, put.expires_ns - self._door.host.wall_ns())
        life_ns = min(left_ns + DELETION_SLACK_NS, LIFE_NS_MAX[put.life])
        command = PutDocument(name, None, put.life, life_ns, put.kind)
        answer = await self._door.ask(command, DocumentPut)
        self._put.pop(name, None)
        return _published(answer)

    async def get(self, name: str, owner: str | None, within: float) -> Document:
        """The newest version that somebody has."""
        node = self._door.node if owner is None else parse_node_id(owner)
        return await self._find(node, name, within)

    # Steps

    async def _may_sign(self) -> None:
        """SessionReplaced or ClockWrong while what is signed now would be refused by others, or
        stand above what is signed later."""
        host = self._door.host
        host.demand_session()
        if host.check_clock is not None:
            await host.check_clock()

    async def _find(self, owner: NodeId, name: str, within: float = WITHIN_S_DEFAULT) -> Document:
        async with Search(
            self._door,
            self._space,
            self._any_query,
            AnyFound,
            confidence=CONFIDENCE_DEFAULT,
            limit=None,
            within=within,
            queue_max=1,
            document=document_id(owner, name, self._space.name),
        ) as search:
            found = await search.documents()
        newest = max(found, key=lambda document: document.rank, default=None)
        if newest is None or newest.deleted:
            what = "is deleted" if newest is not None else "is not found"
            raise NotFound(
                f"document {show_node_id(owner)}/{name} {what} ({search.asked} of about"
                f" {search.nodes:.0f} nodes asked, confidence {search.confidence:.3f}): check owner"
                " and name; `shoal doc put NAME FILE` puts one"
            )
        return newest

    def _note(self, document: Document) -> None:
        self._put.pop(document.name, None)
        if document.life != "instant":
            self._put[document.name] = _Put.of(document)
        if len(self._put) > NAMES_MAX:
            del self._put[next(iter(self._put))]

    def _start_renewing(self) -> None:
        if not self._renewing:
            self._renewing = True
            self._door.start(self._renew())

    async def _renew(self) -> None:
        """Sign managed documents anew before they expire, as long as this node runs."""
        while True:
            await asyncio.sleep(LIFE_NS["managed"] / S_NS / 2)
            for name, command in list(self._renewals.items()):
                while self._renewals.get(name) is command:  # or it was deleted or replaced
                    try:
                        await self._may_sign()
                        self._note((await self._door.ask(command, DocumentPut)).document)
                    except ClockWrong:
                        await asyncio.sleep(RETRY_S)
                        continue
                    except SessionReplaced:
                        return  # or it would put old content above what the newer session put
                    except ShoalError as error:
                        log.warning("document %s is not renewed: %s", name, error)
                    break


def split_address(text: str) -> tuple[str | None, str]:
    """NAME, or 0xOWNER/NAME: the owner, if one is named, and the name."""
    owner, slash, name = text.partition("/")
    if not (slash and owner.startswith("0x")):
        return None, text
    return show_node_id(parse_node_id(owner)), name


def _ns(lasts: timedelta | float) -> int:
    given = lasts.total_seconds() if isinstance(lasts, timedelta) else lasts
    if not 0 < given < float("inf"):
        raise UsageError(f"life={lasts}: give a timedelta or seconds, more than 0")
    return ns_of_seconds(given)


def _published(answer: DocumentPut) -> PublishedDocument:
    document = answer.document
    return PublishedDocument(
        document.id, show_node_id(document.owner), document.name, document.version, answer.nodes
    )


# A space of an application: its own data, found by its own questions and its own matcher.


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
