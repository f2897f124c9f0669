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
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from statistics import linear_regression
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal_spark.folders import resolve_folder

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

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


# Lines of Reddit's comment dumps as a workload of topics: subreddits are topics, comments events.
#
# Nodes stand for users: a user is on the node that its name's hash gives. Whoever says something in
# a topic reads it, so a node reads the topics in which one of its users says something.
#
# Everything is drawn by hashes of names, with a seed, and so the same however the files are split.


FIELDS = ("id", "author", "subreddit", "created_utc", "body")
NOBODY = "[deleted]"
"""The author of what was removed: many people, so nobody's."""
_CORRUPT = "_corrupt"
_SCHEMA = ", ".join(f"{name} string" for name in (*FIELDS, _CORRUPT))


def parse_lines(lines: DataFrame) -> DataFrame:
    """Lines (file, line) with what they say, and the reason why those are bad that are; lines of
    white space are left out. Of a comment's text only the size is kept."""
    options = {"columnNameOfCorruptRecord": _CORRUPT}
    said = F.from_json("line", _SCHEMA, options)
    # Some months have the time as text, some with a fraction.
    created = F.expr("try_cast(try_cast(said.created_utc as double) as long)")
    missing = [F.when(F.col(f"said.{name}").isNull(), f"no {name}") for name in FIELDS]
    no_json = F.col("said").isNull() | F.col(f"said.{_CORRUPT}").isNotNull()
    return (
        lines.where(F.trim("line") != "")
        .withColumn("said", said)
        .select(
            "file",
            "line",
            "said.id",
            "said.author",
            "said.subreddit",
            created.alias("created_utc"),
            F.octet_length("said.body").alias("size_bytes"),
            F.coalesce(
                F.when(no_json, "no JSON object"),
                *missing,
                F.when(created.isNull(), "created_utc is no time"),
            ).alias("reason"),
        )
    )


def comments_of(parsed: DataFrame) -> DataFrame:
    """What somebody said, once: dumps of neighbouring months overlap."""
    good = parsed.where(F.col("reason").isNull() & (F.col("author") != NOBODY))
    first = F.min(F.struct("created_utc", "author", "subreddit", "size_bytes")).alias("first")
    return good.groupBy("id").agg(first).select("id", "first.*")


def subreddit_counts(comments: DataFrame) -> DataFrame:
    """How many comments each has."""
    return comments.groupBy("subreddit").agg(F.count("*").alias("comments"))


def draw_events(
    comments: DataFrame, subreddits: Sequence[str], events: int | None, nodes: int, seed: int
) -> DataFrame:
    """The comments of these subreddits, or so many of them: about the same part of each."""
    node = F.pmod(F.xxhash64("author", F.lit(seed)), F.lit(nodes)).cast("int")
    chosen = comments.where(F.col("subreddit").isin(list(subreddits))).withColumn("node", node)
    if events is not None:
        chosen = chosen.orderBy(F.xxhash64("id", F.lit(seed)), "id").limit(events)
    return chosen


def topic_table(events: DataFrame) -> DataFrame:
    """One row for each topic: name, the node that speaks first, its events and subscriptions."""
    first = F.min(F.struct("created_utc", "id", "node"))
    return events.groupBy(F.col("subreddit").alias("name")).agg(
        first.getField("node").alias("author"),
        F.count("*").alias("events"),
        F.countDistinct("node").alias("subscriptions"),
        F.countDistinct("author").alias("users"),
    )


def subscription_table(events: DataFrame) -> DataFrame:
    """One row for each node and topic that it reads."""
    return events.select(F.col("subreddit").alias("name"), "node").distinct()


def event_table(events: DataFrame) -> DataFrame:
    """One row for each event."""
    name = F.col("subreddit").alias("name")
    return events.select("id", name, "node", "size_bytes", "created_utc")


# The lines of compressed files as a frame.
#
# Spark reads .bz2 (with several tasks), .gz and plain files by itself. It reads .zst too, but only
# with windows up to 128 MiB, and that of Reddit's dumps has 2 GiB: these are unpacked in Python.


ZSTD = ".zst"
WINDOW_MAX = 1 << 31  # the largest that zstd writes
READ_BYTES = 1 << 20
LINES = pa.schema([("file", pa.string()), ("line", pa.string())])
LINES_DDL = "file string, line string"


class CutShort(ShoalError):
    """A compressed file that ends in the middle."""


def read_lines(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """All lines of the files (file, line); NotFound if one is not there."""
    from pyspark.sql import functions as F  # noqa: N812

    uris = [_uri(file) for file in files]
    packed = [uri for uri in uris if uri.endswith(ZSTD)]
    others = [uri for uri in uris if not uri.endswith(ZSTD)]
    frames = []
    if packed:
        names = spark.createDataFrame([(uri,) for uri in packed], "file string")
        # Such a file cannot be split: a task for each.
        names = names.repartitionByRange(len(packed), "file")
        frames.append(names.mapInArrow(_unpack_all, LINES_DDL))
    if others:
        text = spark.read.option("__globPaths__", "false").text(others)
        frames.append(text.select(F.col("_metadata.file_path").alias("file"), "value"))
    lines = frames[0]
    for frame in frames[1:]:
        lines = lines.union(frame)
    return lines.toDF("file", "line")


def unpack_lines(uri: str) -> Iterator[list[bytes]]:
    """The lines of a .zst file, some at a time; CutShort if its end is missing."""
    import zstandard

    system, path, _ = resolve_folder(uri)
    unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX)
    frame, rest = unpacker.decompressobj(), b""
    try:
        with system.open_input_stream(path, compression=None) as source:
            while packed := source.read(READ_BYTES):
                while packed:
                    *lines, rest = (rest + frame.decompress(packed)).split(b"\n")
                    yield lines
                    packed = frame.unused_data if frame.eof else b""
                    if packed:  # another frame behind it
                        frame = unpacker.decompressobj()
    except zstandard.ZstdError as error:
        raise CutShort(f"{uri} cannot be unpacked: {error}: fetch it again") from error
    if not frame.eof:
        raise CutShort(f"{uri} ends in the middle: fetch it again")
    yield [rest] if rest else []


def _unpack_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for uri in batch.column("file").to_pylist():
            for lines in unpack_lines(uri):
                # As Spark reads text: what is no UTF-8 becomes a sign that says so.
                texts = [line.decode(errors="replace") for line in lines]
                yield pa.RecordBatch.from_pydict({"file": [uri] * len(texts), "line": texts}, LINES)


def _uri(file: str) -> str:
    system, path, prefix = resolve_folder(file)
    try:
        type = system.get_file_info(path).type
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    if type == fs.FileType.NotFound:
        raise NotFound(f"no file {file}: name a dump, RC_2007-10.zst or .bz2")
    return prefix + path
