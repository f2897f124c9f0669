"""A Delta table as a frame, without a jar: Spark reads the files that the table's log names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from shoal.pipeline.lake.tables import LakeTable
from shoal.pipeline.reading import resolve_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
