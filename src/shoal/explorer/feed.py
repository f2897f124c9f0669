"""The live feed: one line of JSON a moment, the same for everybody who looks.

Nodes are observed only while somebody looks: then a record costs them a few microseconds, and
otherwise nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial

import msgspec

from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.base.units import MS_NS
from shoal.explorer.nodes import SeenNode, SeenNodes
from shoal.kernel.records import (
    BubbleStep,
    EventDelivered,
    EventPublished,
    LinkChanged,
    MemberChanged,
    Published,
    ReceivedFirst,
    Record,
)
from shoal.runtime.host import Observer

BEAT_S = 0.25
QUIET_BEATS = 20  # a line comes at least so often, so that a dead connection is noticed
WAITING_MAX = 16  # lines that wait for a slow reader; then the oldest are lost
READERS_MAX = 64  # pages that are open at once

_encode = msgspec.json.Encoder().encode


class Reader:
    """One page that looks."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._wake = asyncio.Event()
        self._over = False

    def push(self, line: bytes) -> None:
        self._waiting.append(line)
        self._wake.set()

    def end(self) -> None:
        self._over = True
        self._wake.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """As they come, until the end."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._over:
                return
            self._wake.clear()
            await self._wake.wait()


class Feed:
    """Observes nodes, and tells all readers."""

    def __init__(self, nodes: SeenNodes) -> None:
        self._nodes = nodes
        self._batches = Batches()
        self._readers: dict[Reader, None] = {}
        self._observers: dict[NodeId, Observer] = {}
        self._beating: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether nobody else can look."""
        return len(self._readers) >= READERS_MAX

    def begin(self, reader: Reader) -> None:
        """Somebody looks."""
        self._readers[reader] = None
        if self._beating is None:
            for node in self._nodes:
                self._observe(node)
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    def end(self, reader: Reader) -> None:
        """Somebody looks no more; the last one takes the observers along."""
        self._readers.pop(reader, None)
        if not self._readers and self._beating is not None:
            self._beating.cancel()
            self._beating = None
            for node in self._nodes:
                self.lost(node)
            self._batches = Batches()

    def came(self, node: SeenNode) -> None:
        """One more node is to be seen."""
        if self._beating is not None:
            self._observe(node)

    def lost(self, node: SeenNode) -> None:
        """A node is seen no more."""
        observer = self._observers.pop(node.id, None)
        if observer is not None and observer in node.host.observers:
            node.host.observers.remove(observer)

    def close(self) -> None:
        """Let nobody wait for a feed that is gone."""
        for reader in list(self._readers):
            reader.end()
            self.end(reader)

    def _observe(self, node: SeenNode) -> None:
        if node.id not in self._observers:
            observer = partial(self._seen, node.id)
            self._observers[node.id] = observer
            node.host.observers.append(observer)

    def _seen(self, node: NodeId, now_ns: int, record: Record) -> None:
        self._batches.observe(node, record)

    async def _beat(self) -> None:
        quiet = 0
        while True:
            await asyncio.sleep(BEAT_S)
            now_ns = next((node.host.now_ns() for node in self._nodes), 0)
            batch = self._batches.take(now_ns)
            quiet = quiet + 1 if batch.empty else 0
            if quiet and quiet < QUIET_BEATS:
                continue
            quiet = 0
            line = _encode(batch) + b"\n"
            for reader in self._readers:
                reader.push(line)


# What happened since a moment ago, in bounded memory: records, gathered for people's eyes.
#
# A person follows a few messages a second, not thousands. So messages are sampled: of those that
# are followed, every step is told; the others are counted.


FOLLOWED_PER_BATCH = 4  # four batches a second: more dots than anybody can follow
FOLLOWED_MAX = 128  # messages whose steps are still told
BEGUN_MAX = 4096  # messages that are counted, and may yet come to more nodes
STEPS_MAX = 4096  # of one batch: one message through two thousand nodes, and again
CHANGES_MAX = 512  # members and links that came or went, and steps of bubbles, in one batch
STREAMS_MAX = 256  # that are counted in one batch


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A followed message came to a node for the first time."""

    message: str
    sender: str
    receiver: str
    hops: int
    age_us: int


class Followed(msgspec.Struct, frozen=True):
    """A message whose steps are told."""

    id: str
    stream: StreamId
    publisher: str
    published_ms: int


class Change(msgspec.Struct, frozen=True):
    """A member, or a link if there is a second node, came or went."""

    stream: StreamId
    a: str
    b: str | None
    present: bool
    reason: str = ""


class BubblePart(msgspec.Struct, frozen=True):
    """A part of a bubble came to a node."""

    bubble: str
    node: str
    outcome: str


class Count(msgspec.Struct):
    """Of one stream."""

    published: int = 0
    received: int = 0
    age_us_sum: int = 0


class Batch(msgspec.Struct):
    """One line of the feed."""

    time_ms: int = 0
    counts: dict[str, Count] = {}
    followed: list[Followed] = []
    steps: list[Step] = []
    changes: list[Change] = []
    bubbles: list[BubblePart] = []
    events: int = 0
    """Of topics: published, or handed to a subscription."""
    left_out: int = 0
    """What found no room."""

    @property
    def empty(self) -> bool:
        """Whether nothing happened."""
        return not (self.counts or self.changes or self.bubbles or self.events)


class Batches:
    """Takes the records of all seen nodes; gives one batch after the other."""

    def __init__(self) -> None:
        self._batch = Batch()
        self._followed: dict[MessageId, str] = {}
        self._begun: dict[MessageId, None] = {}

    def take(self, now_ns: int) -> Batch:
        """What happened since the last one was taken."""
        batch, self._batch = self._batch, Batch()
        batch.time_ms = now_ns // MS_NS
        return batch

    def observe(self, node: NodeId, record: Record) -> None:
        """One record of one node."""
        kind = type(record)
        if kind is ReceivedFirst:
            self._received(node, record)  # type: ignore[arg-type]
        elif kind is Published:
            self._begin(record.message)  # type: ignore[attr-defined]
        elif kind is MemberChanged or kind is LinkChanged or kind is BubbleStep:
            self._changed(node, record)
        elif kind is EventPublished or kind is EventDelivered:
            self._batch.events += 1

    def _begin(self, message: MessageId) -> str | None:
        """The first that is heard of a message."""
        self._begun[message] = None
        if len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        count = self._count(message.stream)
        if count is not None:
            count.published += 1
        return self._follow(message)

    def _received(self, node: NodeId, record: ReceivedFirst) -> None:
        count = self._count(record.message.stream)
        if count is not None:
            count.received += 1
            count.age_us_sum += record.age_us
        id = self._followed.get(record.message)
        if id is None and record.hops == 1 and record.message not in self._begun:
            # Its publisher is in another process: the first step that we see begins it.
            id = self._begin(record.message)
        if id is None:
            return
        if len(self._batch.steps) >= STEPS_MAX:
            self._batch.left_out += 1
            return
        sender, receiver = show_node_id(record.peer), show_node_id(node)
        self._batch.steps.append(Step(id, sender, receiver, record.hops, record.age_us))

    def _follow(self, message: MessageId) -> str | None:
        if len(self._batch.followed) >= FOLLOWED_PER_BATCH:
            return None
        # Its parts, in the order in which they name it, and one more for what ran before.
        parts = (message.partition, message.timestamp_ms, message.sequence, message.chain)
        id = "-".join(map(str, (show_node_id(message.publisher)[:10], *parts)))
        self._followed[message] = id
        if len(self._followed) > FOLLOWED_MAX:
            del self._followed[next(iter(self._followed))]
        publisher = show_node_id(message.publisher)
        self._batch.followed.append(
            Followed(id, message.stream, publisher, message.timestamp_ms),
        )
        return id

    def _changed(self, node: NodeId, record: Record) -> None:
        batch = self._batch
        if len(batch.changes) + len(batch.bubbles) >= CHANGES_MAX:
            batch.left_out += 1
        elif isinstance(record, MemberChanged):
            member = show_node_id(record.member)
            change = Change(record.stream, member, None, record.present, record.reason)
            batch.changes.append(change)
        elif isinstance(record, LinkChanged):
            a, b = show_node_id(record.a), show_node_id(record.b)
            batch.changes.append(Change(record.stream, a, b, record.present))
        elif isinstance(record, BubbleStep):
            here = show_node_id(node)
            batch.bubbles.append(BubblePart(record.bubble.hex(), here, record.outcome))

    def _count(self, stream: StreamId) -> Count | None:
        counts = self._batch.counts
        count = counts.get(stream)
        if count is None and len(counts) < STREAMS_MAX:
            count = counts[stream] = Count()
        return count
