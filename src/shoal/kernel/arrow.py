"""The Arrow schema of every record table, derived from the record classes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa

from shoal.kernel.records import RECORD_FORMAT, Record

_ARROW_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    float: pa.float64(),
}


def table_name(record: type[Record]) -> str:
    """ReceivedFirst is the table received_first."""
    name = record.__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def arrow_schema(record: type[Record]) -> pa.Schema:
    """The columns of a record's table; a struct inside it becomes columns of its own."""
    columns = [pa.field("time_ns", pa.int64(), False), pa.field("node", pa.binary(), False)]
    for name, kind in flat_columns(record):
        columns.append(pa.field(name, kind, False))
    return pa.schema(columns, metadata={"shoal.record_format": str(RECORD_FORMAT)})


def arrow_rows(record: type[Record], rows: Sequence[tuple[int, bytes, Record]]) -> pa.Table:
    """Rows of one record type, as (time_ns, node, record), in one table."""
    schema = arrow_schema(record)
    columns: list[list[Any]] = [[r[0] for r in rows], [r[1] for r in rows]]
    columns.extend([getter(r[2]) for r in rows] for getter in _getters(record))
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def flat_columns(struct: type[msgspec.Struct]) -> list[tuple[str, pa.DataType]]:
    """Names and types of a struct's columns, those of structs inside it in their place."""
    found: list[tuple[str, pa.DataType]] = []
    for name, kind in _fields(struct):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            found.extend(flat_columns(kind))
        else:
            found.append((name, _ARROW_TYPES[kind]))
    return found


def _getters(struct: type[msgspec.Struct], path: tuple[str, ...] = ()) -> list[Any]:
    found: list[Any] = []
    for name, kind in _fields(struct):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            found.extend(_getters(kind, (*path, name)))
        else:
            found.append(operator.attrgetter(".".join((*path, name))))
    return found


def _fields(struct: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Field names and plain types: NewTypes such as NodeId stand for what they wrap."""
    hints = get_type_hints(struct)
    return [(n, getattr(hints[n], "__supertype__", hints[n])) for n in struct.__struct_fields__]
