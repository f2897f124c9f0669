"""`shoal pipeline vehicles`: the city-vehicle pipeline from a stream to streams, live or once over
what is stored."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.base.errors import ShoalError, UsageError
from shoal.cli.spark import (
    Environment,
    SourceOption,
    environment_settings,
    reason_of,
    source_options,
)

# Imported inside the functions: Spark, which `--help` can do without.

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from shoal.pipeline.jobs.vehicles import Live, Sink
    from shoal.pipeline.vehicles.rules import Rules

LOOK_S = 0.2  # between two looks at the queries
RAN = "addBatch"  # what Spark calls the time that a batch ran
PUBLISHED = "published"  # what Spark calls the count of rows that go out
LATENESS_S = 30.0
SKEW_S = 5.0


class PipelineFailed(ShoalError):
    """A query ended with an error; it can be started again."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What a micro-batch of a table did."""

    table: str
    batch: int
    rows: int
    """Messages that were read."""
    out: int
    """Rows that were published."""
    behind: int
    """Messages that were stored and not read when it began."""
    seconds: float


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """What a table came to."""

    table: str
    batches: int
    rows: int
    out: int
    seconds: float


def vehicles(
    servers: Annotated[
        str,
        typer.Option(
            metavar="URL,...", help="Storage nodes that keep the stream, by their gateways."
        ),
    ],
    stream: Annotated[
        str, typer.Option(metavar="ID", help="The stream in which vehicles say where they are.")
    ],
    outbox: Annotated[
        str, typer.Option(metavar="URL", help="The gateway of the node that publishes the tables.")
    ],
    token: Annotated[
        str, typer.Option(metavar="env:NAME|file:PATH", help="Where its outbox's token is.")
    ],
    alerts: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Publish alerts to this stream.")
    ] = None,
    speeds: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Publish speeds and delays to this one.")
    ] = None,
    trips: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Publish trips to this one.")
    ] = None,
    late: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Publish what came too late to this one.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Once over all that is stored, not live.")
    ] = False,
    as_live: Annotated[
        bool,
        typer.Option("--as-live", help="With --history: leave late messages out, as live does."),
    ] = False,
    checkpoints: Annotated[
        str, typer.Option(metavar="URI", help="The folder in which live keeps how far it is.")
    ] = "checkpoints/vehicles",
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Between two batches.")
    ] = 5.0,
    once: Annotated[
        bool, typer.Option("--once", help="Live until all that is stored now is read, then end.")
    ] = False,
    lateness: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Messages are late after this time.")
    ] = LATENESS_S,
    skew: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.0, help="How far apart partitions may be read; alerts wait."
        ),
    ] = SKEW_S,
    played_back: Annotated[
        bool,
        typer.Option("--played-back", help="The fleet has a clock of its own, as Fleet's has."),
    ] = False,
    option: SourceOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: every batch, then the sums.")
    ] = False,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Where Spark runs: local[*], or spark://HOST:PORT.")
    ] = "local[*]",
    environment: Environment = None,
) -> None:
    """Watch a city's vehicles: alerts, speeds and trips go to streams of their own, exactly once.

    Live goes on until it is stopped, and from there when it is started again. With --history the
    same is made once of all that is stored, without checkpoints. See docs/tutorial-vehicles.md.

    Example: shoal pipeline vehicles --servers http://127.0.0.1:7780 --stream 0xOWNER/city/vehicles
    --outbox http://127.0.0.1:7781 --token env:SHOAL_OUTBOX_TOKEN --alerts 0xOWNER/city/alerts
    """
    named = {"alerts": alerts, "speeds": speeds, "trips": trips, "late": late}
    targets = {table: id for table, id in named.items() if id is not None}
    if not targets:
        raise UsageError("nothing to publish: name a stream with --alerts, --speeds or --trips")
    if as_live and not history:
        raise UsageError("--as-live is for --history: live always leaves late messages out")
    if once and history:
        raise UsageError("--once is for live: --history ends by itself")
    source = {"servers": servers, "stream": stream, "startingOffsets": "earliest"}
    source |= source_options(option or [])
    more = environment_settings(environment)

    from shoal.pipeline.session import SessionSettings, spark_session
    from shoal.pipeline.vehicles.rules import Rules

    rules = Rules(lateness_s=lateness, skew_s=skew, played_back=played_back)
    sinks = {table: publish_to(outbox, id, token) for table, id in targets.items()}
    tell = _say_json if json else _say_line
    print(f"starting Spark on {master}", file=sys.stderr)
    settings = SessionSettings(master=master, app="shoal pipeline vehicles", more=more)
    with spark_session(settings) as spark:
        if history:
            frame = spark.read.format("shoal").options(**source).load()
            for total in _write_history(frame, sinks, rules, include_late=not as_live):
                tell(total)
            return
        trigger = {"availableNow": True} if once else {"processingTime": f"{interval} seconds"}
        frame = spark.readStream.format("shoal").options(**source).load()
        live = start_counted(frame, sinks, checkpoints, rules, trigger)
        print(f"publishing {', '.join(sinks)}; Ctrl-C stops it", file=sys.stderr)
        for total in follow(live, tell, _asked_to_stop()):
            tell(total)


def publish_to(outbox: str, stream: str, token: str) -> Sink:
    """The sink of a table."""
    from shoal.pipeline.jobs.vehicles import publish

    return publish(outbox=outbox, stream=stream, token=token)


# Live


def start_counted(
    frame: DataFrame,
    sinks: Mapping[str, Sink],
    checkpoints: str,
    rules: Rules,
    trigger: Mapping[str, Any],
) -> Live:
    """Start the queries, such that Spark counts what each publishes."""
    from shoal.pipeline.jobs.vehicles import start_live

    counting = {table: _counted(sink, PUBLISHED) for table, sink in sinks.items()}
    return start_live(frame, counting, checkpoints, rules, trigger=trigger)


def follow(live: Live, tell: Callable[[Batch], None], stop: threading.Event) -> list[Sum]:
    """Say what every batch did, until all queries have ended or it is to stop; then the sums.
    Queries are stopped in any case."""
    begin_s = time.monotonic()
    said: dict[str, list[Batch]] = {table: [] for table in live.queries}

    def look() -> None:
        for table, query in live.queries.items():
            for progress in query.recentProgress:
                known = said[table][-1].batch if said[table] else -1
                # A query that waits reports as well, under the number of the batch to come.
                if progress.batchId > known and RAN in progress.durationMs:
                    said[table].append(_batch_of(table, progress))
                    tell(said[table][-1])

    try:
        while not stop.wait(LOOK_S) and any(query.isActive for query in live.queries.values()):
            look()
            _check(live)
        look()
        _check(live)
    finally:
        live.stop()
    spent_s = round(time.monotonic() - begin_s, 3)
    return [
        Sum(
            table=table,
            batches=len(batches),
            rows=sum(batch.rows for batch in batches),
            out=sum(batch.out for batch in batches),
            seconds=spent_s,
        )
        for table, batches in said.items()
    ]


def _check(live: Live) -> None:
    from pyspark.errors import StreamingQueryException

    try:
        live.check()
    except StreamingQueryException as error:
        raise PipelineFailed(
            f"{reason_of(error)}; what is published stays, and the same command goes on from there"
            " when that is mended"
        ) from error


def _batch_of(table: str, progress: StreamingQueryProgress) -> Batch:
    (source,) = progress.sources
    observed = progress.observedMetrics.get(PUBLISHED)
    return Batch(
        table=table,
        batch=progress.batchId,
        rows=progress.numInputRows,
        out=0 if observed is None else observed["rows"],
        behind=_behind(source.endOffset, source.latestOffset),
        seconds=round(progress.batchDuration / 1000, 3),
    )


def _behind(end: str | None, latest: str | None) -> int:
    """Messages between two offsets of the source, in logs that are in both."""
    if end is None or latest is None:
        return 0
    reached, newest = _seqs(end), _seqs(latest)
    return sum(max(0, seq - reached[place]) for place, seq in newest.items() if place in reached)


def _seqs(offset: str) -> dict[tuple[str, str], int]:
    partitions = msgspec.json.decode(offset)["p"]
    return {(number, at["log"]): at["seq"] for number, at in partitions.items()}


def _asked_to_stop() -> threading.Event:
    """Set by Ctrl-C and SIGTERM. Spark's own answer to Ctrl-C would fail the batch that runs."""
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    return stop


# History


def _write_history(
    frame: DataFrame, sinks: Mapping[str, Sink], rules: Rules, *, include_late: bool
) -> Iterator[Sum]:
    from pyspark.sql import Observation

    from shoal.pipeline.jobs.vehicles import write_history

    for table, sink in sinks.items():
        print(f"{table}, of all that is stored", file=sys.stderr)
        begin_s = time.monotonic()
        read, published = Observation(), Observation()
        counting = {table: _counted(sink, published)}
        write_history(_observed(frame, read), counting, rules, include_late=include_late)
        yield Sum(
            table=table,
            batches=1,
            rows=read.get["rows"],
            out=published.get["rows"],
            seconds=round(time.monotonic() - begin_s, 3),
        )


# Counting and saying


def _counted(sink: Sink, by: str | Observation) -> Sink:
    return lambda table: sink(_observed(table, by))


def _observed(frame: DataFrame, by: str | Observation) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

    return frame.observe(by, F.count(F.lit(1)).alias("rows"))


def _say_json(said: Batch | Sum) -> None:
    print(msgspec.json.encode(said).decode(), flush=True)


def _say_line(said: Batch | Sum) -> None:
    what = f"{said.rows:,} messages read, {said.out:,} rows published, {said.seconds:.1f} s"
    if isinstance(said, Sum):
        print(f"{said.table}: {what}, in {said.batches:,} batches", flush=True)
    else:
        lag = f"; {said.behind:,} messages behind" if said.behind else ""
        print(f"{said.table} batch {said.batch}: {what}{lag}", flush=True)
