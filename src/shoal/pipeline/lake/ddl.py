"""A schema as Spark's users write it, `speed double, stop struct<id: bigint>`, as a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shoal.base.errors import ConfigError
from shoal.pipeline.lake.shapes import SCALARS, STRUCT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
