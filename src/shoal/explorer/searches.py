"""A search, told as it goes on: whom its bubbles have reached, where they met documents, and how
sure it is by now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import msgspec

from shoal.base.errors import NotFound, UsageError
from shoal.base.ids import NodeId, parse_node_id, show_node_id
from shoal.explorer.nodes import SeenNode, SeenNodes
from shoal.kernel.records import BubbleStep, Record
from shoal.protocols.search.circle.locations import Location
from shoal.protocols.search.documents.document import document_id
from shoal.protocols.search.machine import SearchNode
from shoal.runtime.host import Observer

LOOK_S = 0.1  # between two lines
HITS_MAX = 100
WITHIN_S = 10.0
SEARCHES_MAX = 4  # at once: each costs the whole network something
QUERY_CHARS_MAX = 1000
BUBBLES_MAX = 256  # whose origins are remembered during a search

Place = tuple[NodeId, int]  # on the circle: whose, and which of its locations


class CircleNode(msgspec.Struct, frozen=True):
    """A node of the search network, and its neighbours there."""

    id: str
    neighbours: list[str]
    documents: int
    joined: bool


class Progress(msgspec.Struct, frozen=True, tag_field="kind", tag="progress"):
    """How far a search is."""

    confidence: float
    asked: int
    nodes: float
    reached: list[str]
    """Seen nodes that its bubbles came to."""
    over: bool


class ShownHit(msgspec.Struct, frozen=True, tag_field="kind", tag="hit"):
    """A document that was found."""

    owner: str
    name: str
    score: float
    content: dict[str, Any]
    document: str
    """What it is about: document, stream, topic, ..."""
    holders: list[str]
    """Seen nodes that have it; those that the search has reached are where they met."""


class SearchViews:
    """What a page asks for about search."""

    def __init__(self, nodes: SeenNodes) -> None:
        self._nodes = nodes
        self._running = 0

    def circle(self) -> list[CircleNode]:
        """Seen nodes of the search network, as they follow each other on its circle."""
        seen = {node.id: (node, machine) for node, machine in self._nodes.machines(SearchNode)}
        below: dict[Place, Place | None] = {
            (id, location.id): _below(location)
            for id, (_, machine) in seen.items()
            for location in machine.parts.circle.ring.locations
        }
        order = dict.fromkeys([*around(below), *seen])
        return [_circle_node(*seen[id]) for id in order]

    async def search(self, query: str, confidence: float) -> AsyncIterator[msgspec.Struct]:
        """Ask the network, from the first seen node that can."""
        if len(query) > QUERY_CHARS_MAX:
            raise UsageError(f"a query of {len(query)} characters: write {QUERY_CHARS_MAX} at most")
        if self._running >= SEARCHES_MAX:
            raise UsageError(f"{SEARCHES_MAX} searches are under way: wait for one to end")
        origin = next((node for node in self._nodes if node.search is not None), None)
        if origin is None or origin.search is None:
            raise NotFound("no node here is in the search network: add [search] to a network file")
        self._running += 1
        try:
            search = origin.search(query, confidence=confidence, limit=HITS_MAX, within=WITHIN_S)
            # Closed with us: a page that goes away takes its search and its observers along.
            async with aclosing(self._follow(origin, search)) as lines:  # type: ignore[type-var]
                async for line in lines:
                    yield line
        finally:
            self._running -= 1

    async def _follow(self, origin: SeenNode, search: Any) -> AsyncIterator[msgspec.Struct]:
        spread = Spread(origin.id)
        observers: list[tuple[SeenNode, Observer]] = [
            (node, partial(spread.observe, node.id)) for node in self._nodes
        ]
        for node, observer in observers:
            node.host.observers.append(observer)
        hits: list[Any] = []
        reading = asyncio.get_running_loop().create_task(_read(search, hits.append))
        told, last = 0, None
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=LOOK_S)
                while told < len(hits):
                    yield self._shown(hits[told])
                    told += 1
                progress = _progress(search, spread, over=reading.done())
                if progress != last:
                    yield progress
                last = progress
            reading.result()
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading
            await search.stop()
            for node, observer in observers:
                if observer in node.host.observers:
                    node.host.observers.remove(observer)

    def _shown(self, hit: Any) -> ShownHit:
        id = document_id(parse_node_id(hit.owner), hit.name)
        holders = [
            show_node_id(node.id)
            for node, machine in self._nodes.machines(SearchNode)
            if machine.parts.holdings.get(id, node.host.now_ns()) is not None
        ]
        return ShownHit(hit.owner, hit.name, hit.score, hit.content, hit.kind, holders)


class Spread:
    """Which nodes the bubbles of one search came to.

    A bubble is its own if it was seen at the searching node before anywhere else.
    """

    def __init__(self, origin: NodeId) -> None:
        self.reached: dict[NodeId, None] = {}
        self._origin = origin
        self._first: dict[bytes, NodeId] = {}

    def observe(self, node: NodeId, now_ns: int, record: Record) -> None:
        """One record of a seen node."""
        if not isinstance(record, BubbleStep) or record.outcome != "handled":
            return
        if len(self._first) < BUBBLES_MAX:
            self._first.setdefault(record.bubble, node)
        if self._first.get(record.bubble) == self._origin:
            self.reached[node] = None


def around(below: Mapping[Place, Place | None]) -> list[NodeId]:
    """Nodes in the order of the circle, given which place comes after each. A node has several
    places: its first one counts."""
    order: dict[NodeId, None] = {}
    left = dict(below)
    while left:
        at: Place | None = next(iter(left))
        while at is not None and at in left:
            order.setdefault(at[0])
            at = left.pop(at)
    return list(order)


def _below(location: Location) -> Place | None:
    slave = location.slave
    return None if slave is None else (slave.peer, slave.theirs)


async def _read(search: Any, found: Callable[[Any], None]) -> None:
    async for hit in search:
        found(hit)


def _progress(search: Any, spread: Spread, *, over: bool) -> Progress:
    reached = [show_node_id(node) for node in spread.reached]
    return Progress(search.confidence, search.asked, search.nodes, reached, over)


def _circle_node(node: SeenNode, machine: SearchNode) -> CircleNode:
    edges = machine.parts.circle.edges
    neighbours = list(dict.fromkeys(edge.peer for edge in edges if edge.peer != node.id))
    return CircleNode(
        show_node_id(node.id),
        [show_node_id(peer) for peer in neighbours],
        len(machine.parts.holdings),
        machine.joined,
    )
