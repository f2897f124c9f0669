"""Delta tables as the driver sees them: what they hold, and how a batch gets in exactly once.

A commit carries the query and the batch (Delta's app transaction). Whoever opens a table sees which
batch of a query it has, and of two that commit the same one after they looked, the second is
refused, as is whoever wrote files for a schema that changed meanwhile.

What the last batch of a query is made of stands beside it, as the versions of three more app
transactions: Delta keeps the last version of each for good, in the same commit as the files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from shoal.base.errors import ConfigError, NotFound, ShoalError, UsageError
from shoal_spark.folders import resolve_folder
from shoal_spark.lake.parquet_writer import WrittenFile
from shoal_spark.lake.shapes import DATA, DATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READER_VERSION = 1
"""Of Delta's protocol: files are rows, without marks for deleted ones or other names inside."""

Refused = CommitFailedError
"""Somebody else committed first: open the table again, and look."""

PLAN, PLACES, CONTENTS = "/plan", "/places", "/contents"
"""What follows the name of a query in those app transactions."""


class BatchMark(msgspec.Struct, frozen=True):
    """What a batch is made of, to tell a replay from another batch with the same number. Each is a
    number of 63 bits, 0 if it is not known."""

    plan: int = 0
    """Of Spark's plan of the batch."""
    places: int = 0
    """Of the places of all rows in logs, in any order."""
    contents: int = 0
    """Of places and contents. Not known if a row has an error: it may be decrypted next time."""

    def is_replay_of(self, other: BatchMark) -> bool:
        """Whether it is the same batch: planned once, or with the same rows."""
        if self.plan and self.plan == other.plan:
            return True
        same_contents = not (self.contents and other.contents) or self.contents == other.contents
        return self.places == other.places and same_contents


class LakeTable:
    """One table at one moment."""

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self.uri = uri
        self.delta = table

    @classmethod
    def open(cls, uri: str, version: int | None = None) -> LakeTable:
        """The newest version, or the one that is named; NotFound if there is no table."""
        try:
            table = DeltaTable(place_of(uri), version=version)
        except TableNotFoundError as error:
            raise NotFound(
                f"no Delta table at {uri}: `shoal pipeline lake STREAM --table {uri}` makes one"
            ) from error
        except DeltaError as error:
            said = "" if version is None else f" with version {version}"
            raise UsageError(f"the table {uri}{said} cannot be opened: {error}") from error
        if table.protocol().min_reader_version > READER_VERSION:
            raise UsageError(
                f"{uri} needs a reader of version {table.protocol().min_reader_version} of Delta's "
                f"protocol, this is one of version {READER_VERSION}: it was not made by Shoal"
            )
        return cls(uri, table)

    @classmethod
    def open_or_create(cls, uri: str, columns: pa.Schema) -> LakeTable:
        """As `open`, but makes it if need be; ConfigError if it is another one."""
        if not DeltaTable.is_deltatable(place_of(uri)):
            # As version 0 or not at all: a second attempt would put the columns of a new table over
            # those of somebody who was quicker, and whose table has grown since.
            with suppress(Refused):
                DeltaTable.create(
                    place_of(uri),
                    Schema.from_arrow(columns),
                    mode="ignore",
                    partition_by=[DATE],
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
        table = cls.open(uri)
        found = {field.name: field.type for field in table.columns}
        wrong = [field.name for field in columns if found.get(field.name) != field.type]
        if wrong or table.delta.metadata().partition_columns != [DATE]:
            raise ConfigError(
                f"{uri} is a table of something else, see its columns {', '.join(wrong or found)}: "
                "name another place"
            )
        return table

    @property
    def columns(self) -> pa.Schema:
        """Of all columns, in Arrow's types."""
        return pa.schema(self.delta.schema().to_arrow())

    @property
    def shape(self) -> pa.StructType:
        """The fields of the content, which a new table does not have."""
        columns = self.columns
        return columns.field(DATA).type if DATA in columns.names else pa.struct([])

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that is in."""
        last: int | None = self.delta.transaction_version(query)
        return last

    def mark(self, query: str) -> BatchMark:
        """What that batch is made of."""
        return BatchMark(
            *(self.delta.transaction_version(query + of) or 0 for of in (PLAN, PLACES, CONTENTS))
        )

    def grow(self, shape: pa.DataType) -> None:
        """Add the fields that are new; Refused if somebody was quicker."""
        self.delta.alter.add_columns(Schema.from_arrow(pa.schema([(DATA, shape)])).fields)

    def commit(self, files: Sequence[WrittenFile], query: str, batch: int, mark: BatchMark) -> None:
        """Files become rows, all at once, as this batch; Refused if somebody was quicker."""
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.bytes, {DATE: file.date}, now_ms, True, file.stats)
            for file in files
        ]
        self.delta.create_write_transaction(
            actions,
            "append",
            self.delta.schema(),
            [DATE],
            commit_properties=CommitProperties(
                app_transactions=[
                    Transaction(query, batch),
                    Transaction(query + PLAN, mark.plan),
                    Transaction(query + PLACES, mark.places),
                    Transaction(query + CONTENTS, mark.contents),
                ]
            ),
        )


def place_of(uri: str) -> str:
    """What `deltalake` is told: a path of this machine, or a URI as it is."""
    return uri if "://" in uri and not uri.startswith("file://") else resolve_folder(uri)[1]


def remove_files(uri: str, files: Sequence[WrittenFile]) -> None:
    """Those that were never named in a commit."""
    system, folder, _ = resolve_folder(uri)
    for file in files:
        system.delete_file(f"{folder}/{file.path}")


# Small files made large, old days forgotten, and what nobody reads any more deleted.
#
# None of it disturbs who reads: a reader has the file list of one version, and files stay for a
# while after they left the table. Nor who writes: commits of files that are added go through beside
# it.


KEEP = timedelta(days=7)
KEEP_MIN = timedelta(hours=1)
"""A shorter time could delete files under a query that reads, or under a batch whose files are
written and not yet committed."""
TARGET_BYTES = 128 << 20


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a table."""

    table: str
    files_before: int
    files_after: int
    bytes_after: int
    deleted: int
    """Files on the disk."""
    seconds: float


def keep_up(
    uri: str,
    *,
    keep: timedelta = KEEP,
    forget_before: date | None = None,
    target_bytes: int = TARGET_BYTES,
) -> Upkeep:
    """Compact, forget, and delete files that left the table longer ago than `keep`."""
    if keep < KEEP_MIN:
        raise UsageError(
            f"files would be deleted after {keep}, under whoever reads or writes them: "
            f"keep them for {KEEP_MIN} at least"
        )
    begin_s = time.monotonic()
    table = LakeTable.open(uri).delta
    before = len(table.file_uris())
    try:
        if forget_before is not None:
            # Whole days: files leave the table, and none is written anew.
            table.delete(f"{DATE} < '{forget_before.isoformat()}'")
        table.optimize.compact(target_size=target_bytes)
    except Refused as error:
        raise LakeBusy(f"{uri} was compacted by somebody else at the same time: {error}") from error
    except DeltaError as error:
        raise UsageError(f"{uri} cannot be compacted: {error}") from error
    deleted = table.vacuum(
        retention_hours=int(keep / timedelta(hours=1)),
        dry_run=False,
        enforce_retention_duration=False,  # KEEP_MIN is ours
        full=True,  # with the files of failed tasks, which no commit names
    )
    after = LakeTable.open(uri).delta
    sizes = pa.table(after.get_add_actions()).column("size_bytes").to_pylist()
    return Upkeep(
        table=uri,
        files_before=before,
        files_after=len(sizes),
        bytes_after=sum(sizes),
        deleted=len(deleted),
        seconds=time.monotonic() - begin_s,
    )


# A Delta table as a frame, without a jar: Spark reads the files that the table's log names.


def read_lake(spark: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """The rows of a table that Shoal made, as of now or of a version; NotFound if there is none.

    The frame stays with that version, whatever is committed or compacted meanwhile, as long as
    `vacuum` keeps its files.
    """
    from pyspark.sql.types import StructType

    table = LakeTable.open(path, version)
    # Delta took over Spark's own notation.
    schema = StructType.fromJson(json.loads(table.delta.schema().to_json()))
    system_path, prefix = resolve_folder(path)[1:]
    files = [f"{prefix}{system_path}/{file}" for file in _relative_files(table)]
    if not files:
        return spark.createDataFrame([], schema)
    # The day is in the names of folders below basePath, which are names and no patterns.
    reader = spark.read.schema(schema).option("__globPaths__", "false")
    reader = reader.option("basePath", f"{prefix}{system_path}")
    return reader.parquet(*files)


def _relative_files(table: LakeTable) -> list[str]:
    actions = pa.table(table.delta.get_add_actions())
    return [str(path) for path in actions.column("path").to_pylist()]


class LakeBusy(ShoalError):
    """Others kept committing to the table; the query can be started again."""
