"""Delta tables as the driver sees them: what they hold, and how a batch gets in exactly once.

A commit carries the query and the batch (Delta's app transaction). Whoever opens a table sees which
batch of a query it has, and of two that commit the same one after they looked, the second is
refused, as is whoever wrote files for a schema that changed meanwhile.

What the last batch of a query is made of stands beside it, as the versions of three more app
transactions: Delta keeps the last version of each for good, in the same commit as the files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from shoal.base.errors import ConfigError, NotFound, UsageError
from shoal.pipeline.lake.columns import DATA, DATE
from shoal.pipeline.lake.parquet import WrittenFile
from shoal.pipeline.reading import resolve_folder

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
