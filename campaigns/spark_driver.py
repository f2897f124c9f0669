"""A driver, run as a process of its own: a stream through windows into another stream.

    python -m campaigns.spark_driver PLAN.json

The plan has the options of source and sink, and perhaps a point of a batch at which this driver
dies with its JVM, or stands still until it is let go. The points are in a writer of this script:
the sink knows nothing of them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.datasource import DataSource

from shoal.pipeline.patient import PatientQuery
from shoal.pipeline.session import SessionSettings, spark_session
from shoal.pipeline.sinks.client import OutboxClient
from shoal.pipeline.sinks.options import parse_options
from shoal.pipeline.sinks.writer import StreamWriter

AFTER_STAGE, IN_SEAL, AFTER_PUBLISH, ZOMBIE = "after stage", "in seal", "after publish", "zombie"
POINTS = (AFTER_STAGE, IN_SEAL, AFTER_PUBLISH)
WINDOW_S = 100
LOOK_S = 0.05


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver does."""

    source: dict[str, str]
    sink: dict[str, str]
    checkpoint: str
    watermark_s: int
    stands: str
    """A file that says that this driver stands still."""
    go: str
    """A file that lets it go on."""
    point: str | None = None
    batch: int = -1
    """The point is reached in this batch."""
    driver: int = 0
    """Its process, and that of its JVM: they are one group."""


def die(driver: int) -> NoReturn:
    """This worker of theirs is in another group."""
    os.killpg(driver, signal.SIGKILL)
    os._exit(9)


class PlannedWriter(StreamWriter):
    """The sink, with a point at which things go wrong."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(parse_options(plan.sink))
        self._plan = plan

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        plan = self._plan
        point = plan.point if batchId == plan.batch else None
        if point == AFTER_STAGE:
            die(plan.driver)
        if point == IN_SEAL:  # the request is out, and nobody reads the answer
            HTTPConnection.getresponse = lambda _: die(plan.driver)  # type: ignore[method-assign, assignment]
        if point == ZOMBIE:
            Path(plan.stands).touch()
            while not Path(plan.go).exists():
                time.sleep(LOOK_S)
        super().commit(messages, batchId)
        if point == AFTER_PUBLISH:
            client = OutboxClient(self._options)
            while client.state()["waiting_parts"]:
                time.sleep(LOOK_S)
            die(plan.driver)


class PlannedSource(DataSource):
    """`format("shoal")` as this driver has it."""

    @classmethod
    def name(cls) -> str:
        return "planned"

    def streamWriter(self, schema: Any, overwrite: bool) -> PlannedWriter:  # noqa: N802
        return PlannedWriter(msgspec.json.decode(self.options["plan"], type=Plan))


def windows(messages: DataFrame, watermark_s: int) -> DataFrame:
    """How many messages of each key, and what their numbers come to: one lost, one too many, or
    another one in its place shows."""
    said = F.from_json("value", "n bigint, key string, t bigint")
    rows = messages.select(said.alias("said")).select("said.*")
    timed = rows.withColumn("time", F.timestamp_millis("t"))
    counted = (
        timed.withWatermark("time", f"{watermark_s} seconds")
        .groupBy(F.window("time", f"{WINDOW_S} seconds"), "key")
        .agg(F.count("*").alias("count"), F.sum("n").alias("sum"))
    )
    start_s = F.unix_timestamp("window.start")
    return counted.select(F.concat_ws(" ", start_s, "key", "count", "sum").alias("value"), "key")


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    plan = msgspec.structs.replace(plan, driver=os.getpid())
    settings = SessionSettings(
        master="local[2]",
        driver_memory="1g",
        shuffle_partitions=2,
        quick_start=True,
        # Compiling takes longer than interpreting some thousand rows.
        more={
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    with spark_session(settings) as spark:
        spark.dataSource.register(PlannedSource)
        source = spark.readStream.format("shoal").options(**plan.source).load()
        writer = (
            windows(source, plan.watermark_s)
            .writeStream.format("planned")
            .option("plan", msgspec.json.encode(plan).decode())
            .option("checkpointLocation", plan.checkpoint)
            .trigger(availableNow=True)
        )
        PatientQuery(writer).wait()
        print("done", flush=True)


if __name__ == "__main__":
    # Under its own name: what is in __main__ travels to workers by value, which structs cannot.
    from campaigns import spark_driver

    spark_driver.main()
