"""Lines of Reddit's comment dumps as a workload of topics: subreddits are topics, comments events.

Nodes stand for users: a user is on the node that its name's hash gives. Whoever says something in a
topic reads it, so a node reads the topics in which one of its users says something.

Everything is drawn by hashes of names, with a seed, and so the same however the files are split.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

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
