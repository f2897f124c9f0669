"""The Spark schema of every table of a run, from the one vocabulary (kernel/tables.py).

Spark never guesses a schema here: a file that differs is found by its footer (see reading.py).
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
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

from shoal.kernel.run_header import RUN_FORMAT
from shoal.kernel.tables import run_table_schema

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
