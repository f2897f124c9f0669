"""A driver, run as a process of its own: a stream through windows into another stream.

    python -m campaigns.spark_driver PLAN.json

The plan has the options of source and sink, and perhaps a point of a batch at which this driver
dies with its JVM, or stands still until it is let go, or a task fails for good. Tasks may be tried
again or run twice, and other jobs may write to the same outbox meanwhile. All that is in writers of
this script: the sink knows nothing of it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows
from pyspark.sql.datasource import DataSource

from shoal.base.gateway_messages import EpochRequest, StageRequest
from shoal_spark.restarting_query import PatientQuery
from shoal_spark.session import SessionSettings, spark_session
from shoal_spark.sink import (
    BATCH_ID,
    QUERY_ID,
    RUN_ID,
    BatchWriter,
    OutboxClient,
    StagedTask,
    StreamWriter,
    chunks_of,
    parse_options,
)

AFTER_STAGE, IN_SEAL, AFTER_PUBLISH, ZOMBIE = "after stage", "in seal", "after publish", "zombie"
POINTS = (AFTER_STAGE, IN_SEAL, AFTER_PUBLISH)
IN_TASK = "in a task"
"""A task fails after it has staged all its rows, and the query ends with that."""
AGAIN, TWICE = "again", "twice"
"""Each task is tried again after it has staged all its rows, or two copies of it are under way."""
TO_FAIL = "this task was to fail"
COPY = 1_000_000  # what the attempts of second copies are numbered from
WRITE_ROWS, WRITE_BYTES = 600, 1_000
WRITES = ("first", "second", "fails")
"""Jobs that write beside the query; the last one fails when all its rows are staged."""
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
    attempts: str | None = None
    writes: str = ""
    """What the rows of the jobs beside begin with; empty: there are none."""
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

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        plan, context = self._plan, TaskContext.get()
        assert context is not None  # Spark calls this in a task
        rows = list(iterator)
        if plan.attempts == TWICE:
            self._stage_copy(context, rows)
        task = super().write(iter(rows))
        fails_now = plan.point == IN_TASK and task.batch == plan.batch and task.partition == 0
        if fails_now or (plan.attempts == AGAIN and context.attemptNumber() == 0):
            raise RuntimeError(TO_FAIL)
        return task

    def _stage_copy(self, context: TaskContext, rows: Iterable[Any]) -> None:
        """What another copy of this task hands in, which Spark will not take."""
        query, run, batch = (
            context.getLocalProperty(x) or "" for x in (QUERY_ID, RUN_ID, BATCH_ID)
        )
        stream, partition = self._options.stream, context.partitionId()
        attempt = COPY + context.taskAttemptId()
        client = OutboxClient(self._options)
        epoch = client.take_epoch(EpochRequest(query, run, stream))
        for number, chunk in enumerate(chunks_of(rows)):
            client.stage(
                StageRequest(
                    stream, query, epoch, int(batch), partition, attempt, number, chunk[::-1]
                )
            )
        client.close()

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


class FailingWriter(BatchWriter):
    """A batch write of which one task fails when the rows of all are staged."""

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        task = super().write(iterator)
        if task.partition == 0:
            raise RuntimeError(TO_FAIL)
        return task


class PlannedSource(DataSource):
    """`format("shoal")` as this driver has it."""

    @classmethod
    def name(cls) -> str:
        return "planned"

    def streamWriter(self, schema: Any, overwrite: bool) -> PlannedWriter:  # noqa: N802
        plan = self._plan()
        (checkpoint,) = (v for k, v in self.options.items() if k.lower() == "checkpointlocation")
        sink = {**plan.sink, "checkpointLocation": checkpoint}  # as Spark hands it on
        return PlannedWriter(msgspec.structs.replace(plan, sink=sink))

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        options = parse_options(self._plan().sink)
        return FailingWriter(options) if self.options["name"] == "fails" else BatchWriter(options)

    def _plan(self) -> Plan:
        return msgspec.json.decode(self.options["plan"], type=Plan)


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


def beside_row(begin: str, name: str, number: int) -> str:
    """A row of a job that writes beside the query."""
    return f"{begin} {name} {number} ".ljust(WRITE_BYTES, "x")


def write_beside(spark: SparkSession, plan: Plan, name: str) -> None:
    """One batch write, in a thread of its own: there Spark has to be told of the session, which
    knows the format."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    value = f"rpad(concat('{plan.writes} {name} ', id, ' '), {WRITE_BYTES}, 'x') as value"
    frame = spark.range(WRITE_ROWS, numPartitions=2).selectExpr(value)
    given = {"plan": msgspec.json.encode(plan).decode(), "name": name}
    try:
        frame.write.format("planned").mode("append").options(**given).save()
    except Exception as error:
        if name != "fails" or TO_FAIL not in str(error):
            raise


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    plan = msgspec.structs.replace(plan, driver=os.getpid())
    settings = SessionSettings(
        master="local[2,2]" if plan.attempts == AGAIN else "local[2]",
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
        query = PatientQuery(writer)
        if plan.writes:
            with ThreadPoolExecutor(len(WRITES)) as threads:
                list(threads.map(lambda name: write_beside(spark, plan, name), WRITES))
        query.wait()
        print("done", flush=True)


if __name__ == "__main__":
    # Under its own name: what is in __main__ travels to workers by value, which structs cannot.
    from campaigns import spark_driver

    spark_driver.main()
