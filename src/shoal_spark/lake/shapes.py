"""What types the fields of JSON content have, and which of them a table takes on.

A shape is an Arrow struct of nullable fields: boolean, int64, float64, string, timestamp, lists and
structs. It only ever grows by fields: a type never changes, so what did not fit a table once never
does, and what did always does. That is what makes a replayed batch fall apart in the same way.

Unknown fields are counted where records are (Seen), and the driver decides on the sums, so that
the outcome does not depend on how records are spread over tasks: the type that most records have
wins, and int64 and float64 count as one. Delta does not tell names apart by case: one field is
made of all spellings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from shoal.base.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG, DOUBLE, STRING, BOOLEAN = pa.int64(), pa.float64(), pa.string(), pa.bool_()
TIMESTAMP = pa.timestamp("us", "UTC")
SCALARS = {
    "bigint": LONG, "double": DOUBLE, "string": STRING, "boolean": BOOLEAN, "timestamp": TIMESTAMP,
}  # fmt: skip
STRUCT, ARRAY = "struct", "array"
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1

FIELDS_MAX = 1000
"""Of a table, nested ones and lists included: a publisher that makes up names would fill the log
with schemas. What comes later is quarantined."""
DEPTH_MAX = 16
"""Of objects and lists inside each other."""
NAME_CHARS_MAX = 255
BAD_NAME = re.compile(r"[ ,;{}()\n\t=.`]")
"""What Delta, or a query that names a nested field, cannot have in a name."""


class Seen(msgspec.Struct, omit_defaults=True):
    """What stands in one place of many records, where the table has nothing yet, or below it."""

    types: dict[str, int] = {}
    spellings: list[str] = []
    fields: dict[str, Seen] = {}
    """By their names in lower case."""
    items: Seen | None = None

    def __bool__(self) -> bool:
        return bool(self.types or self.fields or self.items)

    def field(self, name: str) -> Seen:
        """The one below."""
        found = self.fields.setdefault(name.lower(), Seen())
        if name not in found.spellings:
            found.spellings.append(name)
        return found

    def element(self) -> Seen:
        """What lists hold."""
        if self.items is None:
            self.items = Seen()
        return self.items

    def add(self, other: Seen) -> None:
        """What another task saw."""
        for name, count in other.types.items():
            self.types[name] = self.types.get(name, 0) + count
        self.spellings = sorted({*self.spellings, *other.spellings})
        for name, seen in other.fields.items():
            self.fields.setdefault(name, Seen()).add(seen)
        if other.items is not None:
            self.element().add(other.items)


def type_name(value: Any) -> str | None:
    """The type of a value; None if it has none: null, and what holds nothing that has one."""
    match value:
        case bool():
            return "boolean"
        case int():
            return "bigint"
        case float():
            return "double"
        case str():
            return "string"
        case dict():
            return STRUCT if any(type_name(item) for item in value.values()) else None
        case list():
            return ARRAY if any(type_name(item) for item in value) else None
    return None


def tally(seen: Seen, shape: pa.DataType | None, value: Any) -> None:
    """Count what a value has that the shape has not."""
    name = type_name(value)
    if name is None:
        return
    if shape is None:
        seen.types[name] = seen.types.get(name, 0) + 1
    if isinstance(value, dict) and (shape is None or pa.types.is_struct(shape)):
        known = {} if shape is None else {field.name.lower(): field.type for field in shape}
        for key, item in value.items():
            below = known.get(key.lower())
            if type_name(item) and (below is None or not is_scalar(below)):
                tally(seen.field(key), below, item)
    elif isinstance(value, list) and (shape is None or pa.types.is_list(shape)):
        for item in value:
            tally(seen.element(), None if shape is None else shape.value_type, item)


def is_scalar(shape: pa.DataType) -> bool:
    """Whether nothing is below it."""
    return not pa.types.is_struct(shape) and not pa.types.is_list(shape)


def size_of(shape: pa.DataType | None) -> int:
    """How many fields it has, at all depths."""
    if shape is None:
        return 0
    if pa.types.is_list(shape):
        return 1 + size_of(shape.value_type)
    return sum(1 + size_of(field.type) for field in shape) if pa.types.is_struct(shape) else 0


def grow(shape: pa.DataType | None, seen: Seen, room: int | None = None) -> pa.DataType | None:
    """The shape with the fields that were seen, as far as there is room; the same if nothing new
    has a place in it."""
    left = FIELDS_MAX - size_of(shape) if room is None else room
    if shape is None:
        return _new_type(seen, left)
    if pa.types.is_struct(shape):
        fields = {field.name.lower(): field for field in shape}
        for name, below in _most_seen(seen.fields):
            old = fields.get(name)
            spelling = min(below.spellings) if old is None else old.name
            grown = grow(None if old is None else old.type, below, left - (old is None))
            if grown is not None and left > 0:
                left -= size_of(grown) - size_of(old.type if old else None) + (old is None)
                fields[name] = pa.field(spelling, grown)
        return pa.struct(list(fields.values()))
    if pa.types.is_list(shape) and seen.items is not None:
        return pa.list_(grow(shape.value_type, seen.items, left) or shape.value_type)
    return shape


def merge(shape: pa.DataType | None, given: pa.DataType, place: str) -> pa.DataType:
    """The shape with all that is given; ConfigError where that has another type."""
    if shape is None or shape == given:
        return given
    if pa.types.is_struct(shape) and pa.types.is_struct(given):
        fields = {field.name.lower(): field for field in shape}
        for field in given:
            old = fields.get(field.name.lower())
            name, type = (field.name, None) if old is None else (old.name, old.type)
            made = merge(type, field.type, f"{place}: {name}")
            fields[name.lower()] = pa.field(name, made)
        return pa.struct(list(fields.values()))
    if pa.types.is_list(shape) and pa.types.is_list(given):
        return pa.list_(merge(shape.value_type, given.value_type, f"{place}[]"))
    raise ConfigError(f"{place} is {shape}, and a type cannot change: the schema says {given}")


def _new_type(seen: Seen, room: int) -> pa.DataType | None:
    """The type that most have; None if there is no room for all of it."""
    counts = dict(seen.types)
    if "double" in counts:
        counts["double"] += counts.pop("bigint", 0)
    if not counts:
        return None
    winner = min(counts, key=lambda name: (-counts[name], name))
    if winner == STRUCT:
        fields = [
            pa.field(min(below.spellings), made)
            for _, below in sorted(seen.fields.items())
            if (made := _new_type(below, room)) is not None
        ]
        found = pa.struct(fields) if fields else None
    elif winner == ARRAY:
        element = None if seen.items is None else _new_type(seen.items, room)
        found = None if element is None else pa.list_(element)
    else:
        found = SCALARS[winner]
    return found if size_of(found) <= room else None


def _most_seen(fields: Mapping[str, Seen]) -> Iterator[tuple[str, Seen]]:
    """Those of most records first, for as long as there is room."""
    yield from sorted(fields.items(), key=lambda item: (-sum(item[1].types.values()), item[0]))


# The columns of a lake's two tables: where a record is from, its content, and the day it is of.
#
# Both are partitioned by day only. A stream's id has up to 256 characters of any kind, which no
# folder's name may have; files hold one stream each until they are compacted, and say which, so
# that readers skip those of others.


DATA = "data"
"""The parsed content, a struct: its fields may have the names of the columns beside it."""
DATE = "date"
"""The day, in UTC, of the publisher's timestamp; of the ingest where there is none."""
REASON = "reason"

ORIGIN = pa.schema(
    [
        ("stream", pa.string()),
        ("partition", pa.int32()),
        ("log", pa.string()),
        ("seq", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("ingest_timestamp", TIMESTAMP),
        ("sequence", pa.int64()),
        ("publisher", pa.string()),
        ("chain", pa.string()),
        ("key", pa.string()),
    ]
)
"""As the source of Spark has them."""

CONTENT, ERROR = "content", "error"
NEEDED = (*ORIGIN.names, CONTENT, ERROR)
"""What a frame must have to be landed."""

LANDED = ORIGIN.append(pa.field(DATE, pa.date32()))
"""Without content: that is added with its first fields."""
QUARANTINED = (
    ORIGIN.append(pa.field(CONTENT, pa.binary()))
    .append(pa.field(REASON, pa.string()))
    .append(pa.field(DATE, pa.date32()))
)

# A schema as Spark's users write it, `speed double, stop struct<id: bigint>`, as a shape.


def parse_ddl(spark: SparkSession, ddl: str) -> pa.DataType:
    """The shape; ConfigError if it is none, or has types that JSON has not."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(ddl).jsonValue()
    except PySparkException as error:
        first_line = str(error).strip().split("\n")[0]
        raise ConfigError(f"schema {ddl!r}: {first_line}") from error
    return _shape(parsed, ddl)


def _shape(type: Any, ddl: str) -> pa.DataType:
    match type:
        case {"type": "struct", "fields": fields} if fields:
            return pa.struct([(field["name"], _shape(field["type"], ddl)) for field in fields])
        case {"type": "array", "elementType": element}:
            return pa.list_(_shape(element, ddl))
        case "long":
            return SCALARS["bigint"]
        case str() if type in SCALARS:
            return SCALARS[type]
    raise ConfigError(
        f"schema {ddl!r}: {type} is no type of the lake: write {', '.join(SCALARS)}, "
        f"array<...> or {STRUCT}<...>"
    )
