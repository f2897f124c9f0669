"""A driver of the sink, run as a process of its own: text files, one a micro-batch, to a stream.

    sink_driver.py PLAN.json

The plan names the files, the checkpoint, the options of the sink, and perhaps a point of a batch at
which this driver dies with its JVM, or stands still until it is let go. The points are in a writer
of this script: the sink knows nothing of them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource

from shoal.pipeline.session import SessionSettings, spark_session
from shoal.pipeline.sinks.client import OutboxClient
from shoal.pipeline.sinks.options import parse_options
from shoal.pipeline.sinks.writer import StreamWriter

AFTER_STAGE, IN_SEAL, AFTER_PUBLISH, ZOMBIE = "after stage", "in seal", "after publish", "zombie"


def die(driver: int) -> NoReturn:
    """The driver and its JVM are one process group; this worker of theirs is another."""
    os.killpg(driver, signal.SIGKILL)
    os._exit(9)


class PlannedWriter(StreamWriter):
    """The sink, with a point at which things go wrong."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        super().__init__(parse_options(plan["options"]))
        self._plan = plan

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        plan = self._plan
        point = plan["point"] if batchId == plan["batch"] else None
        if point == AFTER_STAGE:
            die(plan["driver"])
        if point == IN_SEAL:  # the request is out, and nobody reads the answer
            HTTPConnection.getresponse = lambda _: die(plan["driver"])  # type: ignore[method-assign, assignment]
        if point == ZOMBIE:
            stands, go = (Path(plan["folder"], name) for name in ("stands", "go"))
            stands.touch()
            while not go.exists():
                time.sleep(0.05)
        super().commit(messages, batchId)
        if point == AFTER_PUBLISH:
            client = OutboxClient(self._options)
            while client.state()["waiting_parts"]:
                time.sleep(0.05)
            die(plan["driver"])


class PlannedSource(DataSource):
    """`format("shoal")` as this driver has it."""

    plan: Mapping[str, Any] = {}

    @classmethod
    def name(cls) -> str:
        return "planned"

    def streamWriter(self, schema: Any, overwrite: bool) -> PlannedWriter:  # noqa: N802
        return PlannedWriter(self.plan)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    PlannedSource.plan = {**plan, "driver": os.getpid()}
    settings = SessionSettings(master="local[2]", driver_memory="512m", quick_start=True)
    with spark_session(settings) as spark:
        spark.dataSource.register(PlannedSource)
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(plan["lines"])
        query = (
            lines.repartition(2)
            .writeStream.format("planned")
            .option("checkpointLocation", plan["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print("done", flush=True)


if __name__ == "__main__":
    main()
