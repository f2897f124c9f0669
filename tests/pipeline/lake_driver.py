"""A driver that lands Parquet files with the source's columns, and hangs when a batch has landed:

    python -m tests.pipeline.lake_driver FILES TABLE CHECKPOINT BATCH

Spark has not committed that batch then, and whoever reads "landed BATCH" may kill it.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from shoal_spark.lake.landing import Lake, Landed, start_landing
from shoal_spark.session import SessionSettings, spark_session
from tests.pipeline.lake_frames import SCHEMA_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stream_of(spark: SparkSession, files: str) -> DataFrame:
    """One batch for each file, in the order of their age."""
    reader = spark.readStream.schema(SCHEMA_DDL).option("maxFilesPerTrigger", 1)
    return reader.parquet(files)


def main(files: str, table: str, checkpoint: str, batch: int) -> None:
    def hang(landed: Landed) -> None:
        if landed.batch == batch:
            print(f"landed {batch}", flush=True)
            threading.Event().wait()

    settings = SessionSettings(master="local[1]", driver_memory="512m", quick_start=True)
    with spark_session(settings) as spark:
        stream = stream_of(spark, files)
        query = start_landing(stream, Lake(table), checkpoint, available_now=True, tell=hang)
        query.wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
