"""A workload from tables, as `shoal pipeline reddit` writes them, in place of a drawn one."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from shoal.base.errors import ConfigError
from shoal.lab.topics.workload import EventPlan, TopicPlan, Workload, injected_at_ms

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
