"""A folder of runs as DataFrames, and what is wrong with the rest.

    runs = read_runs(spark, "results")
    for problem in runs.problems:
        print(problem)                     # names the file
    runs.table("deliveries").show()

Every file is looked at before Spark is: its footer must be there, with the columns and the rows
that its run says. A run with anything wrong is left out as a whole, and the others are reported.
A footer cannot tell whether the bytes before it are still the same: `verify=True` reads them all,
against their checksums, for when Spark has stumbled over one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from shoal.base.errors import NotFound, UsageError
from shoal.kernel.records import RUN_FILE, RUN_FORMAT, RunHeader
from shoal_lab.runs.result_schema import check_told
from shoal_lab.runs.run_tables import RUN_TABLES, run_table_schema
from shoal_spark.folders import resolve_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOOTERS_AT_ONCE = 8  # mostly waiting for a disk, or for a network
NEEDED = ("deliveries", "messages", "nodes")
COMPLETE_ALONE = ("pairs", "diameters", "topic_events", "search_stages")
"""Tables of experiments without streams: on topologies alone, on topics, and on search."""


class Problem(msgspec.Struct, frozen=True):
    """Why a run is left out."""

    run: str
    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


class FoundRun(msgspec.Struct, frozen=True):
    """A run that can be read."""

    run: str
    info: dict[str, Any]
    """All of its run file: settings, figures, provenance."""
    files: dict[str, tuple[str, ...]]
    """Of each table."""


class _Unfit(Exception):
    """Why a run is left out, and because of which of its files."""

    def __init__(self, file: str, text: str) -> None:
        super().__init__(text)
        self.file = file
        self.text = text


class _Damaged(_Unfit):
    """Something is no longer as it was written. `shoal lab run` looks no further than the run's own
    file, and takes the run for one that is there."""


class Runs:
    """The runs of a folder."""

    def __init__(
        self, session: SparkSession, runs: Sequence[FoundRun], problems: Sequence[Problem]
    ) -> None:
        self.runs = tuple(runs)
        self.problems = tuple(problems)
        self.session = session

    def table(self, name: str) -> DataFrame:
        """The rows of one table in all runs; none if no run has it."""
        paths = [path for run in self.runs for path in run.files.get(name, ())]
        schema = spark_schema(name)
        if not paths:
            return self.session.createDataFrame([], schema)
        # Names are names: a folder may be called [a].
        reader = self.session.read.schema(schema).option("__globPaths__", "false")
        return reader.parquet(*paths)


def read_runs(session: SparkSession, folder: str, *, verify: bool = False) -> Runs:
    """Find the runs of a folder, or of one URI that executors see too; NotFound if there is
    neither a run nor a problem in it."""
    runs, problems = find_runs(folder, verify=verify)
    return Runs(session, runs, problems)


def find_runs(folder: str, *, verify: bool = False) -> tuple[list[FoundRun], list[Problem]]:
    """The runs of a folder that can be read, and why the others cannot; needs no Spark."""
    system, path, prefix = resolve_folder(folder)
    runs, problems = [], []
    known: dict[str, str] = {}
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as threads:
        looking = [
            (entry, threads.submit(_look, system, entry, prefix, verify))
            for entry in _run_folders(system, path, folder)
        ]
        for entry, found in looking:
            try:
                run = found.result()
                first = known.setdefault(run.run, entry)
                if first != entry:
                    # Rows are told apart by the name in them: they would count twice.
                    raise _Unfit(entry, f"holds run {run.run}, as {_base(first)} does: remove it")
                runs.append(run)
            except _Damaged as damage:
                text = f"{damage.text}: remove the folder {_base(entry)}, and run it again"
                problems.append(Problem(_base(entry), damage.file, text))
            except _Unfit as unfit:
                problems.append(Problem(_base(entry), unfit.file, unfit.text))
            except OSError as error:
                problems.append(Problem(_base(entry), entry, f"not readable: {error}"))
    if not looking:
        raise NotFound(f"no runs in {folder}: {_how_to_write(folder)}")
    return runs, problems


def _how_to_write(folder: str) -> str:
    if "://" in folder:
        return "`shoal lab run NAME --out DIR` writes runs into a folder, which can be copied there"
    return f"`shoal lab run NAME --out {folder}` writes one"


def _run_folders(system: fs.FileSystem, path: str, folder: str) -> list[str]:
    try:
        entries = system.get_file_info(fs.FileSelector(path))
    except FileNotFoundError as error:
        raise NotFound(f"no folder {folder}: {_how_to_write(folder)}") from error
    except OSError as error:
        raise UsageError(f"{folder} is no folder that can be read: {error}") from error
    return sorted(
        entry.path
        for entry in entries
        # A dot: still being written, or left behind by a run that was stopped.
        if entry.type == fs.FileType.Directory and not _base(entry.path).startswith((".", "_"))
    )


def _look(system: fs.FileSystem, folder: str, prefix: str, verify: bool) -> FoundRun:
    header, info = _read_header(system, folder)
    files: dict[str, tuple[str, ...]] = {}
    for table, paths in _tables(system, folder).items():
        rows = sum(_check_file(system, path, table, header.run, verify) for path in paths)
        said = header.tables.get(table, 0)
        if rows != said:
            raise _Damaged(paths[0], f"{rows} rows of {table}, but the run says {said}")
        files[table] = tuple(prefix + path for path in paths)
    alone = any(table in header.tables for table in COMPLETE_ALONE)
    for table in (*header.tables, *(() if alone else NEEDED)):
        if table not in files and table in RUN_TABLES:
            raise _Damaged(f"{folder}/{table}.parquet", "missing")
    if not any(header.tables.get(table) for table in (*COMPLETE_ALONE, "messages", "deliveries")):
        raise _Unfit(folder, "an empty run: its tables have no rows to report")
    return FoundRun(header.run, info, files)


def _read_header(system: fs.FileSystem, folder: str) -> tuple[RunHeader, dict[str, Any]]:
    path = f"{folder}/{RUN_FILE}"
    try:
        with system.open_input_stream(path) as file:
            content = file.read()
        header = msgspec.json.decode(content, type=RunHeader)
        tables = header.tables
        pairs, topics = (bool(tables.get(name)) for name in ("pairs", "topic_events"))
        check_told(content, pairs=pairs, topics=topics)
    except FileNotFoundError:
        raise _Unfit(path, "missing: this folder is no run, or not all of one") from None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise _Damaged(path, f"not readable: {error}") from error
    if header.format > RUN_FORMAT:
        raise _Unfit(
            path, f"format {header.format}, this Shoal reads up to {RUN_FORMAT}: upgrade it"
        )
    return header, msgspec.json.decode(content)


def _tables(system: fs.FileSystem, folder: str) -> Mapping[str, list[str]]:
    """The files of each table; what is no table of ours is passed over."""
    found: dict[str, list[str]] = {}
    for entry in sorted(system.get_file_info(fs.FileSelector(folder)), key=lambda e: str(e.path)):
        name = _base(entry.path)
        table = name.removesuffix(".parquet").split("-")[0]
        if name.endswith(".parquet") and table in RUN_TABLES:
            found.setdefault(table, []).append(entry.path)
    return found


def _check_file(system: fs.FileSystem, path: str, table: str, run: str, verify: bool) -> int:
    """The number of rows of a file that has all columns of its table, and rows of its run."""
    try:
        with system.open_input_file(path) as source:
            file = pq.ParquetFile(source, page_checksum_verification=verify)
            schema, rows = file.schema_arrow, file.metadata.num_rows
            others = set(_runs_inside(file.metadata)) - {run}
            if verify:
                for group in range(file.num_row_groups):
                    file.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).strip().split("\n")[0]
        raise _Damaged(path, f"corrupt or cut short: {reason}") from error
    problems = list(_differences(schema, run_table_schema(table)))
    if others:
        problems.append(f"rows of run {min(others)}, not of {run}")
    if problems:
        raise _Damaged(path, "; ".join(problems))
    return int(rows)


def _runs_inside(footer: pq.FileMetaData) -> Iterator[str]:
    """The least and the greatest name of a run in each row group, where the footer has them."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema == "run" and column.statistics is not None:
                if column.statistics.has_min_max:
                    yield from map(str, (column.statistics.min, column.statistics.max))
                break


def _differences(found: pa.Schema, wanted: pa.Schema) -> Iterator[str]:
    for field in wanted:
        if field.name not in found.names:
            yield f"no column {field.name}"
        elif found.field(field.name).type != field.type:
            yield f"column {field.name} is {found.field(field.name).type}, not {field.type}"


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


# The Spark schema of every table of a run, from the one vocabulary (kernel/tables.py).
#
# Spark never guesses a schema here: a file that differs is found by its footer (see reading.py).


SCHEMA_VERSION = RUN_FORMAT
"""Grows with the format of runs; tables may be added without it, columns may not change."""

_SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.float64(): DoubleType(),
}


@cache
def spark_schema(table: str) -> StructType:
    """The columns of a table of a run, as Spark reads them."""
    fields = [
        StructField(field.name, _SPARK_TYPES[field.type], field.nullable)
        for field in run_table_schema(table)
    ]
    return StructType(fields)
