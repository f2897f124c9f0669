"""`shoal pipeline`: jobs on Spark, and what it needs to run them elsewhere."""

from __future__ import annotations

import logging
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, Self

import typer

from shoal.base.errors import ShoalError, UsageError
from shoal.cli.commands.doctor import Finding, ok, warning
from shoal.cli.terminal.progress import show_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shoal_spark.lake.landing import Landed
    from shoal_spark.restarting_query import PatientQuery

# What commands that use Spark have in common.


Environment = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What `shoal pipeline package` wrote, for executors without Shoal.",
        show_default=False,
    ),
]
OWN_ERROR = re.compile(r"\bshoal(?:_\w+)?\.[\w.]+: (.+)")
"""The last line of a traceback."""
SourceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Any other option of the source; may be repeated.",
        show_default=False,
    ),
]


def environment_settings(environment: Path | None) -> dict[str, str]:
    """What Spark is told of it; UsageError if there is no such file."""
    from shoal_spark.executor_archive import archive_settings

    if environment is None:
        return {}
    if not environment.is_file():
        raise UsageError(f"no file {environment}: `shoal pipeline package {environment}` makes it")
    return archive_settings(str(environment))


def reason_of(error: Exception) -> str:
    """Why a query ended, in one line: our own error if it is one. It has come through Spark as the
    text of a traceback, between those of Java."""
    lines = str(error).strip().split("\n")
    ours = [found[1] for line in lines if (found := OWN_ERROR.search(line))]
    return ours[0] if ours else lines[0]


def source_options(given: list[str]) -> dict[str, str]:
    """Options of `format("shoal")`, as they are written on the command line."""
    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--option {text}: write NAME=VALUE")
        options[name] = value
    return options


# Ctrl-C: how a command ends by it; while Spark works, without a word of Spark or py4j.


EXIT_STOPPED = 130  # as a shell has it for Ctrl-C


class Interrupts:
    """What becomes of SIGINT as long as this is open: a KeyboardInterrupt, told by nobody else."""

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, _interrupt)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark", RuntimeWarning)
        return self

    def __exit__(self, *raised: object) -> None:
        self._warnings.__exit__(None, None, None)
        signal.signal(signal.SIGINT, self._before)
        logging.disable(logging.NOTSET)

    @contextmanager
    def while_spark_starts(self) -> Iterator[None]:
        """Spark takes the signal: its handler asks the JVM in the middle of another question, which
        ends in errors that are logged. Nothing is, while it has it, and then it is ours again."""
        logging.disable()
        yield
        signal.signal(signal.SIGINT, _interrupt)
        logging.disable(logging.NOTSET)


def was_interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or came of it: py4j tells the JVM, and may fail at that."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # py4j tells the root logger what it was about to do, in thirty lines.
    logging.disable()
    raise KeyboardInterrupt


# `shoal pipeline lake`: a stream as a Delta table; `lake-upkeep`: its files kept few and large.

# Imported inside the commands: Arrow, Delta and Spark, which `--help` can do without.

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

    from shoal_spark.lake.delta_table import keep_up
    from shoal_spark.lake.landing import Lake

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

    from shoal_spark.lake.landing import Lake, start_landing
    from shoal_spark.lake.shapes import parse_ddl
    from shoal_spark.session import SessionSettings, spark_session

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
        from shoal_spark.session import REMEDY

        raise UsageError(f"a lake needs Delta and Spark ({error}): {REMEDY}") from error


def _as_line(landed: Landed) -> str:
    if landed.replayed:
        more = f"; {landed.quarantined:,} quarantined" if landed.quarantined else ""
        return f"batch {landed.batch}: was there already{more}"
    return (
        f"batch {landed.batch}: {landed.rows:,} rows, {landed.quarantined:,} quarantined, "
        f"{landed.files} files, {landed.seconds:.1f} s"
    )


# Imported inside the commands, as elsewhere: `--help` needs none of it.

pipeline = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Streams and dumps into tables, with Spark.\n\nExample: shoal pipeline package shoal.zip",
)
pipeline.command()(lake)
pipeline.command()(lake_upkeep)


@pipeline.command()
def package(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The archive to write, a .zip file.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Pack Shoal and what it needs for the executors of a cluster.

    They need a Python of the same version on the same kind of machine, and nothing else. The
    archive has some 120 MB.

    Example: shoal pipeline package shoal.zip
    """
    import sys

    import msgspec

    from shoal_spark.executor_archive import package as pack

    print(f"packing into {out}", file=sys.stderr)
    made = pack(out)
    if json:
        print(msgspec.json.encode(made).decode())
        return
    packages = ", ".join(f"{name} {version}" for name, version in made.packages.items())
    print(f"{made.file}: {made.files:,} files, {made.bytes / 1e6:.0f} MB: {packages}")
    print(f"for Python {made.python} on {made.platform}; use it with")
    print(f"  shoal lab report DIR --master spark://HOST:PORT --environment {made.file}")


def spark(environment: Mapping[str, str]) -> Finding:
    """Whether the pipeline would run."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        return warning(
            "spark",
            f"{', '.join(missing)} not installed: no `shoal pipeline`, no `shoal lab report`",
            "`pip install 'shoal[spark]'`, or ./run in a clone",
        )
    from shoal_spark.java import NoJava, find_java

    try:
        java = find_java(environment, Path(sys.prefix))
    except NoJava as error:
        return warning("spark", "no Java that Spark takes", str(error))
    return ok("spark", f"installed; Java at {java}")
