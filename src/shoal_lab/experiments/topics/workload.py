"""Who subscribes to what, and who says what when: the shape of the published data set.

The sources replayed a sample of Reddit's comments of 2007, which is not published with them. What
is known of it are sums: 100 users, 23 topics, 17,611 events of 79 bytes, 762 subscriptions,
1,734,851 deliveries; events per topic follow a power law, subscriptions are uneven. Two exponents
give all of these. An event has 98.5 subscribers in the mean, so nearly all users read the topics in
which nearly everything is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from shoal.base.errors import ConfigError

TOPICS = 23
EVENTS = 17_611
INJECTORS = 5

# Found by search: with 100 nodes and 23 topics they give 762 subscriptions, and with 17,611 events
# 1,734,873 deliveries, 22 more than were published.
POPULARITY = 2.8  # events of the topic of rank r: r to the power of minus this
BREADTH = 1.88  # its readers fall likewise,
FULL = 4.306 / TOPICS  # but for this part of the topics, which everybody reads
READERS_MIN = 2


class TopicPlan(msgspec.Struct, frozen=True):
    """One topic: who made it, and who reads it. Nodes are numbers."""

    author: int
    readers: tuple[int, ...]
    """Its author is one of them."""


class EventPlan(msgspec.Struct, frozen=True, gc=False):
    """One event, and when it is injected."""

    topic: int
    author: int
    """A reader of the topic, as whoever comments is."""
    size_bytes: int
    at_ms: float
    """After the first moment of publishing."""


class Workload(msgspec.Struct, frozen=True):
    """Everything that happens, in order of time."""

    topics: tuple[TopicPlan, ...]
    events: tuple[EventPlan, ...]

    @property
    def subscriptions(self) -> int:
        """Pairs of a topic and one who reads it."""
        return sum(len(topic.readers) for topic in self.topics)

    @property
    def deliveries(self) -> int:
        """How many there are if every event reaches every reader, its author included."""
        return sum(len(self.topics[event.topic].readers) for event in self.events)


def make_workload(
    rng: Random,
    *,
    nodes: int,
    topics: int = TOPICS,
    events: int = EVENTS,
    size_bytes: int = 79,
    interval_ms: float = 200.0,
    injectors: int = INJECTORS,
) -> Workload:
    """Draw one. How many readers and events each topic has does not depend on the dice.

    Sizes are spread evenly, half below and above `size_bytes`.
    """
    if topics > nodes or nodes < READERS_MIN:
        raise ConfigError(
            f"{topics} topics of {nodes} nodes: each topic has an author of its own, and "
            f"{READERS_MIN} readers: take more nodes, or fewer topics"
        )
    plans = _draw_topics(rng, nodes, topics)
    order = [t for t, count in enumerate(events_per_topic(topics, events)) for _ in range(count)]
    rng.shuffle(order)
    drawn = [
        EventPlan(
            topic=topic,
            author=rng.choice(plans[topic].readers),
            size_bytes=rng.randint(size_bytes // 2, size_bytes + (size_bytes + 1) // 2),
            at_ms=injected_at_ms(rng, number, injectors, interval_ms),
        )
        for number, topic in enumerate(order)
    ]
    return Workload(tuple(plans), tuple(sorted(drawn, key=lambda event: event.at_ms)))


def injected_at_ms(rng: Random, number: int, injectors: int, interval_ms: float) -> float:
    """When an event comes. Injectors take events in turn; each has one in every `injectors`
    intervals, at any moment of them, so that some come at once."""
    return (number // injectors + rng.random()) * (injectors * interval_ms)


def readers_per_topic(nodes: int, topics: int) -> list[int]:
    """Most readers first."""
    full = max(1.0, FULL * topics)
    parts = [min(1.0, (rank / full) ** -BREADTH) for rank in range(1, topics + 1)]
    return [min(nodes, max(READERS_MIN, round(nodes * part))) for part in parts]


def events_per_topic(topics: int, events: int) -> list[int]:
    """Most events first; the largest remainders make up for what rounding down leaves."""
    weights = [rank**-POPULARITY for rank in range(1, topics + 1)]
    exact = [events * weight / sum(weights) for weight in weights]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(topics), key=lambda t: counts[t] - exact[t])
    for topic in by_remainder[: events - sum(counts)]:
        counts[topic] += 1
    return counts


def _draw_topics(rng: Random, nodes: int, topics: int) -> list[TopicPlan]:
    authors = rng.sample(range(nodes), topics)
    plans = []
    for author, count in zip(authors, readers_per_topic(nodes, topics), strict=True):
        others = _without(range(nodes), author)
        readers = sorted([author, *rng.sample(others, count - 1)])
        plans.append(TopicPlan(author, tuple(readers)))
    return plans


def _without(numbers: Sequence[int], one: int) -> list[int]:
    return [number for number in numbers if number != one]


# A workload from tables, as `shoal pipeline reddit` writes them, in place of a drawn one.


COLUMNS = {
    "topics": ("topic", "author"),
    "subscriptions": ("topic", "node"),
    "events": ("topic", "node", "size_bytes", "created_utc", "id"),
}
Columns = Mapping[str, list[Any]]


def load_workload(
    folder: str, rng: Random, *, nodes: int, events: int, interval_ms: float, injectors: int
) -> Workload:
    """The first `events` of the tables. Their order is that of the tables, but for what injectors
    leave to chance, and so is all else but their times: users took months, and a run has an hour.
    """
    topics, subscriptions, said = (_read(folder, table) for table in COLUMNS)
    count = len(said["topic"])
    if events > count:
        raise ConfigError(
            f"messages = {events}: {folder} has {count} events: take no more, or make it with more"
        )
    greatest = max([*topics["author"], *subscriptions["node"], *said["node"]], default=0)
    if greatest >= nodes:
        raise ConfigError(
            f"nodes = {nodes}: {folder} was made for {greatest + 1} nodes or more: set nodes to "
            "what it was made with"
        )
    readers: dict[int, set[int]] = {topic: set() for topic in topics["topic"]}
    for topic, node in zip(subscriptions["topic"], subscriptions["node"], strict=True):
        readers[topic].add(node)
    authors = dict(zip(topics["topic"], topics["author"], strict=True))
    plans = tuple(
        TopicPlan(authors[topic], tuple(sorted({*readers[topic], authors[topic]})))
        for topic in range(len(authors))
    )
    order = sorted(range(count), key=lambda row: (said["created_utc"][row], said["id"][row]))
    drawn = [
        EventPlan(
            topic=said["topic"][row],
            author=said["node"][row],
            size_bytes=said["size_bytes"][row],
            at_ms=injected_at_ms(rng, number, injectors, interval_ms),
        )
        for number, row in enumerate(order[:events])
    ]
    return Workload(plans, tuple(sorted(drawn, key=lambda event: event.at_ms)))


def digest_workload(folder: str) -> str:
    """Of the tables as they are now."""
    digest = blake2b(digest_size=16)
    for table in COLUMNS:
        path = Path(folder) / f"{table}.parquet"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _unreadable(folder, str(path), error) from error
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()


def _read(folder: str, table: str) -> Columns:
    # Here, since workloads that are drawn need no Arrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = f"{folder}/{table}.parquet"
    try:
        found = pq.read_table(path, columns=list(COLUMNS[table]))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(folder, path, error) from error
    missing = [name for name in COLUMNS[table] if name not in found.column_names]
    if missing:
        raise ConfigError(f"options.workload = {folder!r}: {path} has no column {missing[0]}")
    columns: Columns = found.to_pydict()
    return columns


def _unreadable(folder: str, path: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"options.workload = {folder!r}: {path} cannot be read ({error}): "
        f"`shoal pipeline reddit DUMP --out {folder}` writes it"
    )
