"""Delta tables as the driver sees them: what they hold, and how a batch gets in exactly once.

A commit carries the query and the batch (Delta's app transaction). Whoever opens a table sees which
batch of a query it has, and of two that commit the same one after they looked, the second is
refused, as is whoever wrote files for a schema that changed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

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

    def has(self, query: str, batch: int) -> bool:
        """Whether this batch of the query, or a later one, is in."""
        last = self.delta.transaction_version(query)
        return last is not None and last >= batch

    def grow(self, shape: pa.DataType) -> None:
        """Add the fields that are new; Refused if somebody was quicker."""
        self.delta.alter.add_columns(Schema.from_arrow(pa.schema([(DATA, shape)])).fields)

    def commit(self, files: Sequence[WrittenFile], query: str, batch: int) -> None:
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
            commit_properties=CommitProperties(app_transactions=[Transaction(query, batch)]),
        )


def place_of(uri: str) -> str:
    """What `deltalake` is told: a path of this machine, or a URI as it is."""
    return uri if "://" in uri and not uri.startswith("file://") else resolve_folder(uri)[1]


def remove_files(uri: str, files: Sequence[WrittenFile]) -> None:
    """Those that were never named in a commit."""
    system, folder, _ = resolve_folder(uri)
    for file in files:
        system.delete_file(f"{folder}/{file.path}")
