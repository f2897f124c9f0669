"""`shoal pipeline reddit`: dumps of Reddit's comments as a workload of topics."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.base.errors import ShoalError, UsageError
from shoal.cli.terminal.progress import show_duration
from shoal_spark.commands import Environment, environment_settings

if TYPE_CHECKING:
    from shoal_lab.scenarios.reddit_workload import RedditStatistics

# Imported inside the command: Arrow and Spark, which `--help` can do without.

PUBLISHED = {
    "topics": 23, "events": 17_611, "subscriptions": 762, "deliveries": 1_734_851,
    "bytes of an event": 79,
}  # fmt: skip
"""Of the source's sample."""


class IngestFailed(ShoalError):
    """Spark could not read or write something."""


def reddit(
    dumps: Annotated[
        list[str],
        typer.Argument(metavar="DUMP", help="JSON lines, as .zst, .bz2, .gz or plain; or URIs."),
    ],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="A new folder for the tables, or its URI.")
    ],
    topics: Annotated[
        int, typer.Option(metavar="N", help="So many subreddits.", min=1)
    ] = PUBLISHED["topics"],
    pick: Annotated[
        Literal["largest", "random"], typer.Option(help="Those of most comments, or any.")
    ] = "largest",
    subreddit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="This one; may be repeated.", show_default=False),
    ] = None,
    events: Annotated[
        int, typer.Option(metavar="N", help="So many comments of them; 0: all.", min=0)
    ] = PUBLISHED["events"],
    nodes: Annotated[int, typer.Option(metavar="N", help="That users are on.", min=2)] = 100,
    seed: Annotated[int, typer.Option(metavar="N", help="For everything that is drawn.")] = 1,
    json: Annotated[
        bool, typer.Option("--json", help="The statistics as one JSON object.")
    ] = False,
    master: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where Spark runs: local[*], or spark://HOST:PORT, which must see all files too.",
        ),
    ] = "local[*]",
    environment: Environment = None,
) -> None:
    """Make a workload of topics from the public dumps of Reddit's comments.

    Writes tables that `shoal lab run topics-reddit --set options.workload=DIR` takes, and shows
    their sums beside those of the paper. Lines that are no comments are counted and kept apart.

    Example: shoal pipeline reddit RC_2007-10.zst RC_2007-11.bz2 --out reddit-2007
    """
    more = environment_settings(environment)
    try:
        from shoal_lab.scenarios.reddit_workload import RedditSettings, ingest_reddit
    except ImportError as error:
        from shoal_spark.session import REMEDY

        raise UsageError(f"dumps are read with Arrow and Spark ({error}): {REMEDY}") from error
    import msgspec
    from pyspark.errors import PySparkException

    from shoal_spark.session import SessionSettings, spark_session

    begin_s = time.monotonic()
    settings = RedditSettings(
        topics=topics,
        subreddits=tuple(subreddit or ()),
        pick=pick,
        events=events or None,
        nodes=nodes,
        seed=seed,
    )

    def tell(stage: str) -> None:
        print(f"{stage} ({show_duration(time.monotonic() - begin_s)})", file=sys.stderr)

    tell(f"starting Spark on {master}")
    session = SessionSettings(master=master, app="shoal pipeline reddit", more=more)
    with spark_session(session) as spark:
        try:
            statistics = ingest_reddit(spark, dumps, out, settings, tell)
        except PySparkException as error:
            raise IngestFailed(_reason(str(error))) from error
    if json:
        print(msgspec.json.encode(statistics).decode())
        return
    for line in _lines(statistics):
        print(line)
    print(f"{out} written in {show_duration(time.monotonic() - begin_s)}; use it with")
    print(
        f"  shoal lab run topics-reddit --set options.workload={out} --set nodes={nodes} "
        f"--set messages={statistics.events}"
    )


def _reason(text: str) -> str:
    """What a task said, if it was one of ours; else the first line of what Spark says."""
    for line in text.splitlines():
        _, ours, said = line.partition("CutShort: ")
        if ours:
            return said
    return text.strip().split("\n")[0]


def _lines(found: RedditStatistics) -> list[str]:
    bad = ", ".join(f"{count:,} {reason}" for reason, count in found.bad.items()) or "none"
    counts = {
        "topics": found.topics,
        "events": found.events,
        "subscriptions": found.subscriptions,
        "deliveries": found.deliveries,
        "bytes of an event": round(found.size_bytes.mean, 1),
    }
    widest = max(map(len, counts))
    popularity = "–" if found.popularity is None else f"{found.popularity:.2f}"
    return [
        f"{found.lines:,} lines, {found.comments:,} comments in {found.subreddits:,} subreddits; "
        f"{found.deleted:,} of nobody; quarantined: {bad}",
        *(
            f"{name:<{widest}}  {count:>12,}  (paper: {PUBLISHED[name]:,})"
            for name, count in counts.items()
        ),
        f"events fall with the rank of their topic to the power of {popularity}",
    ]
