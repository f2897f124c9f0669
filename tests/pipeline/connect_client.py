"""A client of Spark Connect, run as a process of its own: it has no JVM, and of Shoal only what is
patient with a busy machine.

    connect_client.py sc://HOST:PORT PLAN.json

A stream is read at once and written to another one; then, as a streaming query, it is so again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from shoal_spark.restarting_query import PatientQuery

COLUMNS = ("concat('{}', value) as value", "publisher as key")


def main() -> None:
    url, file = sys.argv[1:]
    plan = json.loads(Path(file).read_text())
    spark = SparkSession.builder.remote(url).getOrCreate()
    history = spark.read.format("shoal").options(**plan["source"]).load()
    assert {row.error for row in history.select("error").collect()} == {None}
    batch = history.selectExpr(*(column.format("batch ") for column in COLUMNS))
    batch.write.format("shoal").mode("append").options(**plan["sink"]).save()
    live = spark.readStream.format("shoal").options(**plan["source"], startingOffsets="earliest")
    writer = (
        live.load()
        .selectExpr(*(column.format("live ") for column in COLUMNS))
        .writeStream.format("shoal")
        .options(**plan["sink"], checkpointLocation=plan["checkpoint"])
        .trigger(availableNow=True)
    )
    PatientQuery(writer).wait()
    print("done", flush=True)


if __name__ == "__main__":
    main()
