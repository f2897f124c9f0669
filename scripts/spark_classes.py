"""An archive of Spark's classes in .venv: JVMs of tests then start with half the work.

A run of all tests starts a dozen JVMs with Spark in them. If an archive cannot be made, that is
said and no more: sessions go without it. `rm -r .venv/spark-classes` takes it away.

    python -m scripts.spark_classes
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.base.errors import UsageError
from shoal_spark.java import NoJava, class_archive, find_java, own_java
from shoal_spark.session import SessionSettings, spark_session, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STOP_S_MAX = 300.0
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def make(archive: Path, java: Path) -> None:
    """Run a little of everything, and keep the classes of it; says why not, if it cannot."""
    keep_own_classes(java)
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / "made.jsa"
        settings = SessionSettings(master="local[2]", driver_memory="1g", quick_start=True)
        options = spark_settings(settings)[JAVA_OPTIONS]
        # Thousands of classes cannot be kept, and each would be told.
        options += f' "-XX:ArchiveClassesAtExit={made}" -Xlog:disable'
        settings = msgspec.structs.replace(settings, more={JAVA_OPTIONS: options})
        with spark_session(settings) as spark:
            gateway: Any = spark.sparkContext._gateway
            work(spark, folder)
        # It writes the archive when it ends, and it ends when nobody is there any more.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(STOP_S_MAX)
        if not made.exists():
            raise OSError("Java wrote none")
        # Whole or not at all: tests that run meanwhile take it when it is there.
        os.replace(made, archive)


def keep_own_classes(java: Path) -> None:
    """An archive builds on that of Java's own classes, which a Java that was unpacked lacks."""
    if (java / "lib" / "server" / "classes.jsa").exists():
        return
    command = [str(java / "bin" / "java"), "-Xshare:dump"]
    if java != own_java():
        raise OSError(f"Java has none of its own: `{' '.join(command)}` makes it")
    subprocess.run(command, capture_output=True, check=True, timeout=STOP_S_MAX)


def work(spark: SparkSession, folder: str) -> None:
    """What tests do, on a few rows: tables, joins, windows, Python workers, a stream with state."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

    path = f"{folder}/numbers"
    columns = ("id", "id % 7 as k", "string(id) as name", "timestamp_millis(id * 1000) as time")
    spark.range(200).selectExpr(*columns).repartition(2).write.parquet(path)
    numbers = spark.read.parquet(path)
    counted = numbers.groupBy("k").agg(F.count("*"), F.avg("id"), F.collect_set("name"))
    first = F.row_number().over(Window.partitionBy("k").orderBy("id"))
    numbers.join(counted, "k").withColumn("n", first).orderBy("id").collect()
    spark.createDataFrame([(1, "a")], "k long, other string").join(numbers, "k").count()
    said = numbers.select(F.to_json(F.struct("*")).alias("said"))
    said.select(F.from_json("said", "id long")).collect()
    numbers.mapInArrow(lambda batches: batches, numbers.schema).collect()
    numbers.groupBy("k").applyInPandas(lambda frame: frame, numbers.schema).collect()
    stream = spark.readStream.schema(numbers.schema).parquet(path).withWatermark("time", "1 minute")
    windows = stream.dropDuplicates(["id", "time"]).groupBy(F.window("time", "1 minute"), "k")
    writer = windows.count().writeStream.format("memory").queryName("windows")
    writer.trigger(availableNow=True).start().awaitTermination()

    def batch(frame: DataFrame, number: int) -> None:
        frame.collect()

    each = stream.writeStream.foreachBatch(batch)
    each.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    """Make it if it is missing, and say so."""
    try:
        java = find_java(os.environ, Path(sys.prefix))
        archive = class_archive(java)
        if archive.exists():
            return
        print("shoal: keeping Spark's classes in .venv, for tests", file=sys.stderr)
        make(archive, java)
    except (NoJava, OSError, UsageError, subprocess.SubprocessError) as error:
        print(f"shoal: Spark's classes could not be kept ({error})", file=sys.stderr)


if __name__ == "__main__":
    main()
