"""Reddit's comment dumps into the tables of a topics workload, with the sums of the paper.

    OUT/topics.parquet          topic, name, author (a node), events, subscriptions, users
    OUT/subscriptions.parquet   topic, node
    OUT/events.parquet          id, topic, node, size_bytes, created_utc
    OUT/quarantine.parquet      file, line, reason
    OUT/statistics.json         what follows from them

Topics are numbered by their events, most first. `shoal lab run topics-reddit` takes the folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import linear_regression
from typing import TYPE_CHECKING, Literal

import msgspec
from pyarrow import fs
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.base.errors import UsageError
from shoal.pipeline.jobs.dumps import read_lines
from shoal.pipeline.reading import resolve_folder
from shoal.pipeline.transforms.reddit import (
    NOBODY,
    comments_of,
    draw_events,
    event_table,
    parse_lines,
    subreddit_counts,
    subscription_table,
    topic_table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

STATISTICS = "statistics.json"
Pick = Literal["largest", "random"]
TOPICS, EVENTS, NODES = 23, 17_611, 100  # of the source


class RedditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn from the dumps."""

    topics: int = TOPICS
    subreddits: tuple[str, ...] = ()
    """These, whatever `topics` says."""
    pick: Pick = "largest"
    events: int | None = EVENTS
    nodes: int = NODES
    seed: int = 1


class TopicStatistics(msgspec.Struct, frozen=True):
    """Of one topic."""

    topic: int
    name: str
    events: int
    subscriptions: int
    users: int


class Sizes(msgspec.Struct, frozen=True):
    """Of events, in bytes."""

    mean: float
    p50: float
    p99: float
    max: int


class RedditStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the source tells of its sample, and how it came about."""

    lines: int
    bad: dict[str, int]
    """Quarantined lines, by reason."""
    deleted: int
    """Comments of nobody, left out."""
    comments: int
    """Different ones, from which the sample is drawn."""
    subreddits: int
    nodes: int
    topics: int
    events: int
    subscriptions: int
    deliveries: int
    """If every event reaches every reader, its author included."""
    popularity: float | None
    """Events of the topic of rank r fall with r to the power of minus this, by least squares; None
    for fewer than three topics."""
    size_bytes: Sizes
    per_topic: list[TopicStatistics]


def ingest_reddit(
    spark: SparkSession,
    dumps: Sequence[str],
    out: str,
    settings: RedditSettings | None = None,
    tell: Callable[[str], None] = lambda stage: None,
) -> RedditStatistics:
    """Write the tables; UsageError if the folder is there already or nothing is left to draw."""
    settings = settings or RedditSettings()
    system, folder, prefix = resolve_folder(out)
    if system.get_file_info(folder).type != fs.FileType.NotFound:
        raise UsageError(f"{out} is there already: name another folder, or remove it")
    tell("reading the dumps")
    parsed = parse_lines(read_lines(spark, dumps))
    # Unpacking is what takes time, so it is done once; of good lines nothing long is kept.
    parsed = parsed.withColumn("line", F.when(F.col("reason").isNotNull(), F.col("line"))).persist()
    try:
        lines = parsed.groupBy("reason", (F.col("author") == NOBODY).alias("nobody")).count()
        counted = lines.collect()
        comments = comments_of(parsed)
        counts = {row.subreddit: row.comments for row in subreddit_counts(comments).collect()}
        names = settings.subreddits or pick_subreddits(
            counts, settings.topics, settings.pick, settings.seed
        )
        tell("drawing events")
        events = draw_events(comments, names, settings.events, settings.nodes, settings.seed)
        events = events.persist()
        topics = topic_table(events).collect()
        if not topics:
            raise UsageError(
                f"none of {sum(counts.values()):,} comments is left to draw: name subreddits that "
                f"are among the {len(counts):,} of the dump"
            )
        topics.sort(key=lambda row: (-row.events, row.name))
        tell("writing tables")
        place = f"{prefix}{folder}"
        _write_tables(spark, events, topics, place)
        bad = parsed.where("reason is not null").select("file", "line", "reason")
        bad.write.parquet(f"{place}/quarantine.parquet")
        statistics = _statistics(settings.nodes, counted, counts, topics, _sizes(events))
        events.unpersist()
    finally:
        parsed.unpersist()
    with system.open_output_stream(f"{folder}/{STATISTICS}") as file:
        file.write(msgspec.json.format(msgspec.json.encode(statistics)))
    return statistics


def pick_subreddits(counts: Mapping[str, int], topics: int, pick: Pick, seed: int) -> list[str]:
    """The names of so many subreddits: those of most comments, or any."""
    by_size = sorted(counts, key=lambda name: (-counts[name], name))
    if pick == "largest":
        return by_size[:topics]
    return Random(seed).sample(by_size, min(topics, len(by_size)))


def popularity_of(events: Sequence[int]) -> float | None:
    """The exponent of the power law that fits numbers of events, the most first."""
    if len(events) < 3:
        return None
    ranks = [math.log(rank) for rank in range(1, len(events) + 1)]
    logs = [math.log(count) for count in events]
    slope, _ = linear_regression(ranks, logs)
    return -slope


def _write_tables(
    spark: SparkSession, events: DataFrame, topics: Sequence[Row], place: str
) -> None:
    """Each as one file: they are small, and events have an order."""
    numbered = [
        (number, row.name, row.author, row.events, row.subscriptions, row.users)
        for number, row in enumerate(topics)
    ]
    schema = "topic int, name string, author int, events long, subscriptions long, users long"
    table = spark.createDataFrame(numbered, schema)
    numbers = F.broadcast(table.select("name", "topic"))
    subscriptions = subscription_table(events).join(numbers, on="name", how="inner")
    said = event_table(events).join(numbers, on="name", how="inner")
    table.coalesce(1).write.parquet(f"{place}/topics.parquet")
    subscriptions.select("topic", "node").coalesce(1).sortWithinPartitions(
        "topic", "node"
    ).write.parquet(f"{place}/subscriptions.parquet")
    said.select("id", "topic", "node", "size_bytes", "created_utc").coalesce(
        1
    ).sortWithinPartitions("created_utc", "id").write.parquet(f"{place}/events.parquet")


def _sizes(events: DataFrame) -> Sizes:
    size = F.col("size_bytes")
    percentiles = F.percentile(size, F.array(F.lit(0.5), F.lit(0.99)))
    (row,) = events.agg(
        F.mean(size).alias("mean"), percentiles.alias("of"), F.max(size).alias("max")
    ).collect()
    return Sizes(row["mean"], row["of"][0], row["of"][1], row["max"])


def _statistics(
    nodes: int,
    counted: Sequence[Row],
    counts: Mapping[str, int],
    topics: Sequence[Row],
    sizes: Sizes,
) -> RedditStatistics:
    bad: dict[str, int] = {}
    for row in counted:
        if row.reason is not None:
            bad[row.reason] = bad.get(row.reason, 0) + row["count"]
    return RedditStatistics(
        lines=sum(row["count"] for row in counted),
        bad=dict(sorted(bad.items())),
        deleted=sum(row["count"] for row in counted if row.reason is None and row.nobody),
        comments=sum(counts.values()),
        subreddits=len(counts),
        nodes=nodes,
        topics=len(topics),
        events=sum(row.events for row in topics),
        subscriptions=sum(row.subscriptions for row in topics),
        deliveries=sum(row.events * row.subscriptions for row in topics),
        popularity=popularity_of([row.events for row in topics]),
        size_bytes=sizes,
        per_topic=[
            TopicStatistics(number, row.name, row.events, row.subscriptions, row.users)
            for number, row in enumerate(topics)
        ],
    )
