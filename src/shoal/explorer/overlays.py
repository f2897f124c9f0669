"""Streams, as the trackers among the seen nodes know them."""

from __future__ import annotations

import msgspec

from shoal.base.errors import MalformedMessage, NotFound
from shoal.base.ids import NodeId, StreamId, show_node_id
from shoal.explorer.nodes import Place, SeenNode, SeenNodes
from shoal.identity.peer_id import peer_id_of_bytes, show_peer_id
from shoal.identity.topics.cid import Cid, parse_cid, show_cid
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.protocols.streams.tracker.stream_record import Overlay, TrackedStream, overlay_of
from shoal.protocols.topics.event_log import Entry
from shoal.protocols.topics.machine import TopicNode
from shoal.protocols.topics.topic import TopicState


class ShownStream(msgspec.Struct, frozen=True):
    """One stream of the list."""

    id: StreamId
    members: int


class ShownNode(msgspec.Struct, frozen=True):
    """A member; `seen` says whether its records are in the feed."""

    id: str
    region: str
    place: Place | None
    seen: bool


class ShownOverlay(msgspec.Struct, frozen=True):
    """Nodes and links; links name nodes by their number: (a, b, round trip in us or None)."""

    id: StreamId
    degree: int
    nodes: list[ShownNode]
    links: list[tuple[int, int, int | None]]


class StreamViews:
    """What a page asks for about streams."""

    def __init__(self, nodes: SeenNodes) -> None:
        self._nodes = nodes

    def all(self) -> list[ShownStream]:
        """Those with members, the largest first."""
        sizes: dict[StreamId, int] = {}
        for tracker in self._nodes.trackers():
            for id, state in tracker.streams.items():
                sizes[id] = max(sizes.get(id, 0), len(state.members))
        ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
        return [ShownStream(id, members) for id, members in ordered]

    def overlay(self, id: StreamId) -> ShownOverlay:
        """A stream's nodes and links."""
        state = self._state(id)
        members, pairs, delays, _ = overlay_of(state)
        numbers = {node: number for number, node in enumerate(members)}
        links = [
            (numbers[pair.a], numbers[pair.b], delays[pair].rtt_us if pair in delays else None)
            for pair in pairs
        ]
        shown = [self._shown(node) for node in members]
        return ShownOverlay(id, state.policy.degree, shown, links)

    def measured(self, id: StreamId) -> Overlay:
        """What an estimate is made of, copied."""
        return overlay_of(self._state(id))

    def _state(self, id: StreamId) -> TrackedStream:
        states = [
            tracker.streams[id] for tracker in self._nodes.trackers() if id in tracker.streams
        ]
        if not states:
            raise NotFound(f"nobody is in {id} here: GET /observe/streams lists what is tracked")
        # After a tracker failed, the one that took over has them all.
        return max(states, key=lambda state: len(state.members))

    def _shown(self, node: NodeId) -> ShownNode:
        seen = self._nodes.get(node)
        if seen is None:
            return ShownNode(show_node_id(node), "", None, seen=False)
        return ShownNode(show_node_id(node), seen.region, seen.place, seen=True)


# Topics that seen nodes hold: their trees, their events and how these follow each other.


TOPICS_MAX = 500  # that are listed
EVENTS_MAX = 200  # of a topic, the newest
PREVIEW_CHARS_MAX = 120  # of a payload


class ShownTopic(msgspec.Struct, frozen=True):
    """One topic of the list."""

    cid: str
    name: str
    author: str
    events: int
    """At the seen node that has most of them."""
    nodes: int
    """Seen ones that know it."""


class TreeNode(msgspec.Struct, frozen=True):
    """A node's place in the tree; its parent may not be one of the seen."""

    id: str
    parent: str | None
    is_author: bool
    events: int


class ShownEvent(msgspec.Struct, frozen=True):
    """An event, and how many of the seen nodes hold it."""

    cid: str
    parent: str | None
    author: str
    publisher: str
    created_ms: int
    size_bytes: int
    held_by: int
    preview: str


class TopicPage(msgspec.Struct, frozen=True):
    """Everything about one topic."""

    topic: ShownTopic
    publishers: list[str] | None
    """Who may publish; None: anyone."""
    tree: list[TreeNode]
    events: list[ShownEvent]
    """The newest, oldest first."""


Holding = tuple[SeenNode, TopicState]


class TopicViews:
    """What a page asks for about topics."""

    def __init__(self, nodes: SeenNodes) -> None:
        self._nodes = nodes

    @property
    def present(self) -> bool:
        """Whether any seen node takes part in topics."""
        return any(True for _ in self._nodes.machines(TopicNode))

    def all(self) -> list[ShownTopic]:
        """By name."""
        topics: dict[Cid, list[Holding]] = {}
        for node, machine in self._nodes.machines(TopicNode):
            for id, state in machine.topics.items():
                topics.setdefault(id, []).append((node, state))
        shown = [_shown(id, held) for id, held in topics.items()]
        return sorted(shown, key=lambda topic: (topic.name, topic.cid))[:TOPICS_MAX]

    def page(self, cid: str) -> TopicPage:
        """One of them."""
        id = parse_cid(cid)
        held = [
            (node, machine.topics[id])
            for node, machine in self._nodes.machines(TopicNode)
            if id in machine.topics
        ]
        if not held:
            raise NotFound(f"no node here knows topic {cid}: GET /observe/topics lists them")
        fullest = max((state for _, state in held), key=lambda state: len(state.log))
        # In their order, which respects links; of those that do not follow each other, by time.
        entries = sorted(list(fullest.log.order)[-EVENTS_MAX:], key=lambda entry: entry.created_ms)
        return TopicPage(
            _shown(id, held),
            _publishers(fullest.topic),
            [_tree_node(node, state) for node, state in held],
            [_event(entry, held) for entry in entries],
        )


def _shown(id: Cid, held: list[Holding]) -> ShownTopic:
    topic = held[0][1].topic
    most = max(len(state.log) for _, state in held)
    return ShownTopic(show_cid(id), topic.name, _peer(topic.author), most, len(held))


def _publishers(topic: TopicDescriptor) -> list[str] | None:
    allowed = topic.metadata.allowed_publishers
    return [_peer(peer) for peer in allowed.peers] if allowed.enabled else None


def _tree_node(node: SeenNode, state: TopicState) -> TreeNode:
    parent: NodeId | None = state.tree.parent
    shown = None if parent is None else show_node_id(parent)
    return TreeNode(show_node_id(node.id), shown, state.tree.is_author, len(state.log))


def _event(entry: Entry, held: list[Holding]) -> ShownEvent:
    event = entry.event
    return ShownEvent(
        show_cid(entry.id),
        None if event.parent is None else show_cid(event.parent),
        _peer(event.author),
        _peer(event.publisher or event.author),
        entry.created_ms,
        len(event.payload),
        sum(1 for _, state in held if entry.id in state.log.events),
        event.payload[: 4 * PREVIEW_CHARS_MAX].decode(errors="replace")[:PREVIEW_CHARS_MAX],
    )


def _peer(raw: bytes) -> str:
    """A peer id; those of other kinds of keys are shown as they are."""
    try:
        return show_peer_id(peer_id_of_bytes(raw))
    except MalformedMessage:
        return raw.hex()
