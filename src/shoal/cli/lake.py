"""`shoal pipeline lake`: a stream as a Delta table; `lake-upkeep`: its files kept few and large."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.base.errors import ShoalError, UsageError
from shoal.cli.progress import show_duration
from shoal.cli.spark import (
    Environment,
    SourceOption,
    environment_settings,
    reason_of,
    source_options,
)

# Imported inside the commands: Arrow, Delta and Spark, which `--help` can do without.

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shoal.pipeline.lake.land import Landed
    from shoal.pipeline.patient import PatientQuery

CHECKPOINT = ".checkpoint"
HOURS_A_WEEK = 7 * 24

Frames = Callable[["SparkSession"], "DataFrame"]
"""Makes the streaming frame that is landed."""


class LandingFailed(ShoalError):
    """The query ended with an error; it can be started again."""


def lake(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream's id.")],
    servers: Annotated[
        str,
        typer.Option(
            metavar="URL,...", help="Storage nodes that keep the stream, by their gateways."
        ),
    ],
    table: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="The Delta table, a folder or a URI. Bad records go to URI.quarantine.",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where Spark keeps how far it is. [default: the table's URI.checkpoint]",
            show_default=False,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="DDL",
            help="Types of fields that are known: 'speed double, at timestamp'. Others get the "
            "type of the first batch that has them.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Land what there is now, then end.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between two batches.", min=0.0)
    ] = 10.0,
    option: SourceOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: every batch, then the sum.")
    ] = False,
    master: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where Spark runs: local[*], or spark://HOST:PORT, which must see the table too.",
        ),
    ] = "local[*]",
    environment: Environment = None,
) -> None:
    """Land a stream in a Delta table, exactly once, with its JSON in typed columns.

    Goes on until it is stopped, and from there when it is started again. What is no JSON, or has a
    field of another type than the table, goes to the quarantine with the reason. See docs/lake.md.

    Example: shoal pipeline lake 0xOWNER/city/vehicles --servers http://127.0.0.1:7780
    --table lake/vehicles --schema 'speed double' --once
    """
    options = {"startingOffsets": "earliest", **source_options(option or [])}
    more = environment_settings(environment)
    land_frames(
        lambda spark: _shoal_frame(spark, stream, servers, options),
        table=table,
        checkpoint=checkpoint or table.rstrip("/") + CHECKPOINT,
        schema=schema,
        once=once,
        interval_s=interval,
        json=json,
        master=master,
        more=more,
    )


def lake_upkeep(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A Delta table's folder or URI.")],
    keep_hours: Annotated[
        int,
        typer.Option(
            metavar="HOURS",
            help="How long files stay for readers after they left the table.",
            min=1,
        ),
    ] = HOURS_A_WEEK,
    forget_days: Annotated[
        int | None,
        typer.Option(metavar="DAYS", help="Forget rows that are older.", min=1, show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Compact the small files of a table and of its quarantine, and delete what nobody reads.

    Readers and writers go on meanwhile.

    Example: shoal pipeline lake-upkeep lake/vehicles --forget-days 90
    """
    _need_delta()
    from datetime import UTC, datetime, timedelta

    import msgspec

    from shoal.pipeline.lake.land import Lake
    from shoal.pipeline.lake.upkeep import keep_up

    today = datetime.now(UTC).date()
    before = None if forget_days is None else today - timedelta(days=forget_days)
    for uri in (table, Lake(table).quarantine):
        print(f"compacting {uri}", file=sys.stderr)
        done = keep_up(uri, keep=timedelta(hours=keep_hours), forget_before=before)
        if json:
            print(msgspec.json.encode(done).decode(), flush=True)
        else:
            print(
                f"{uri}: {done.files_before:,} files are {done.files_after:,} now, with "
                f"{done.bytes_after / 1e6:,.1f} MB; {done.deleted:,} deleted; "
                f"{show_duration(done.seconds)}",
                flush=True,
            )


def land_frames(
    frames: Frames,
    *,
    table: str,
    checkpoint: str,
    schema: str | None,
    once: bool,
    interval_s: float,
    json: bool,
    master: str,
    more: Mapping[str, str],
) -> None:
    """Land whatever streaming frame is made, and say what comes in."""
    _need_delta()
    import msgspec

    from shoal.pipeline.lake.ddl import parse_ddl
    from shoal.pipeline.lake.land import Lake, start_landing
    from shoal.pipeline.session import SessionSettings, spark_session

    said: list[Landed] = []

    def tell(landed: Landed) -> None:
        said.append(landed)
        line = msgspec.json.encode(landed).decode() if json else _as_line(landed)
        print(line, flush=True)

    begin_s = time.monotonic()
    print(f"starting Spark on {master}", file=sys.stderr)
    settings = SessionSettings(master=master, app="shoal pipeline lake", more=more)
    with spark_session(settings) as spark:
        shape = None if schema is None else parse_ddl(spark, schema)
        query = start_landing(
            frames(spark),
            Lake(table, shape),
            checkpoint,
            available_now=once,
            interval_s=interval_s,
            tell=tell,
        )
        print(f"landing in {table}; Ctrl-C stops it", file=sys.stderr)
        try:
            _wait(query)
        except KeyboardInterrupt:
            query.stop()
    total = {
        "table": table,
        "batches": len(said),
        "rows": sum(landed.rows for landed in said),
        "quarantined": sum(landed.quarantined for landed in said),
        "seconds": round(time.monotonic() - begin_s, 3),
    }
    if json:
        print(msgspec.json.encode(total).decode())
    else:
        print(
            f"{table}: {total['rows']:,} rows, {total['quarantined']:,} quarantined, in "
            f"{total['batches']:,} batches"
        )


def _wait(query: PatientQuery) -> None:
    from pyspark.errors import StreamingQueryException

    try:
        query.wait()
    except StreamingQueryException as error:
        raise LandingFailed(
            f"{reason_of(error)}; what has landed stays, and the same command goes on from there"
            " when that is mended"
        ) from error


def _shoal_frame(
    spark: SparkSession, stream: str, servers: str, options: Mapping[str, str]
) -> DataFrame:
    """The one place that knows how a stream is read."""
    reader = spark.readStream.format("shoal").option("servers", servers).option("stream", stream)
    return reader.options(**options).load()


def _need_delta() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        from shoal.pipeline.session import REMEDY

        raise UsageError(f"a lake needs Delta and Spark ({error}): {REMEDY}") from error


def _as_line(landed: Landed) -> str:
    if landed.replayed:
        more = f"; {landed.quarantined:,} quarantined" if landed.quarantined else ""
        return f"batch {landed.batch}: was there already{more}"
    return (
        f"batch {landed.batch}: {landed.rows:,} rows, {landed.quarantined:,} quarantined, "
        f"{landed.files} files, {landed.seconds:.1f} s"
    )
