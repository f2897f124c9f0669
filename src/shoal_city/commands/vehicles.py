"""`shoal pipeline vehicles`: the city-vehicle pipeline from a stream to streams, live or once over
what is stored."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from shoal.base.errors import UsageError
from shoal_spark.commands import Environment, SourceOption, environment_settings, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shoal_city.tables.config import Rules
    from shoal_city.tables.queries import Batch, Sink, Sum

# Imported inside the functions: Spark, which `--help` can do without.

LATENESS_S = 30.0
SKEW_S = 5.0


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
    from shoal_city.tables.queries import follow, publish_to, start_counted

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

    from shoal_city.tables.config import Rules
    from shoal_spark.session import SessionSettings, spark_session

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

    from shoal_city.tables.queries import Sum, _counted, _observed, write_history

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


def _say_json(said: Batch | Sum) -> None:
    print(msgspec.json.encode(said).decode(), flush=True)


def _say_line(said: Batch | Sum) -> None:
    from shoal_city.tables.queries import Sum

    what = f"{said.rows:,} messages read, {said.out:,} rows published, {said.seconds:.1f} s"
    if isinstance(said, Sum):
        print(f"{said.table}: {what}, in {said.batches:,} batches", flush=True)
    else:
        lag = f"; {said.behind:,} messages behind" if said.behind else ""
        print(f"{said.table} batch {said.batch}: {what}{lag}", flush=True)
