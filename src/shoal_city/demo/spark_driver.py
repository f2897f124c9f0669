"""Spark's driver in the demo: the queries of `shoal pipeline vehicles`, over the fleet's stream.

    python -m shoal_city.demo.spark_driver

Its first line of stdin is its SparkWork; then a Stop. If stdin ends without one, whoever started it
is gone, and so it ends at once, and Spark with it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter

import msgspec

from shoal.base.errors import ShoalError
from shoal_city.demo.message_source import fleet_rules
from shoal_city.demo.messages import Ready, SparkFigures, SparkWork
from shoal_city.tables.queries import Batch, Live, follow, publish_to, start_counted
from shoal_lab.testbed.child_process import say
from shoal_spark.session import SessionSettings, spark_session

FIGURES_S = 0.5
EVERY = {"processingTime": "1 second"}
SMALL_BATCHES = {
    # Compiling takes longer than interpreting a thousand rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Tally:
    """Sums over the batches of all queries."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._rows: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        self._batches = 0
        self._slowest_s = 0.0

    def add(self, batch: Batch) -> None:
        """A batch is done."""
        self._rows[batch.table] += batch.rows
        self._out[batch.table] += batch.out
        self._batches += 1
        self._slowest_s = max(self._slowest_s, batch.seconds)

    def figures(self) -> SparkFigures:
        """Sums so far."""
        queries = self._live.queries
        busy = any(query.status["isTriggerActive"] for query in queries.values())
        return SparkFigures(
            rows={table: self._rows[table] for table in queries},
            out={table: self._out[table] for table in queries},
            batches=self._batches,
            slowest_s=self._slowest_s,
            busy=busy,
        )


def main() -> None:
    """The process."""
    # Whatever Java prints goes to stderr: stdout is for what we say.
    answers = os.dup(1)
    os.dup2(2, 1)
    work = msgspec.json.decode(sys.stdin.readline(), type=SparkWork)
    stop = threading.Event()
    threading.Thread(target=_listen, args=(stop,), daemon=True).start()
    try:
        _run(work, stop, answers)
    except ShoalError as error:
        print(f"shoal: Spark: {error}", file=sys.stderr)
        sys.exit(1)


def _run(work: SparkWork, stop: threading.Event, answers: int) -> None:
    settings = SessionSettings(
        master="local[2]", app="shoal demo", driver_memory="1g", shuffle_partitions=1,
        quick_start=True, more=SMALL_BATCHES,
    )  # fmt: skip
    source = {"servers": work.servers, "stream": work.stream, "startingOffsets": "earliest"}
    sinks = {
        table: publish_to(work.outbox, stream, work.token) for table, stream in work.tables.items()
    }
    with spark_session(settings) as spark:
        frame = spark.readStream.format("shoal").options(**source).load()
        live = start_counted(frame, sinks, f"{work.folder}/checkpoints", fleet_rules(), EVERY)
        tally = Tally(live)
        _until_waiting(live, stop)
        say(Ready(), answers)
        reporting = threading.Thread(target=_report, args=(tally, stop, answers), daemon=True)
        reporting.start()
        follow(live, tally.add, stop)
        reporting.join()
        say(tally.figures(), answers)


def _until_waiting(live: Live, stop: threading.Event) -> None:
    """Queries take a while to reach their first look at the stream."""
    while not stop.is_set():
        live.check()
        if all(query.status["message"].startswith("Waiting") for query in live.queries.values()):
            return
        time.sleep(0.05)


def _report(tally: Tally, stop: threading.Event, answers: int) -> None:
    while not stop.wait(FIGURES_S):
        say(tally.figures(), answers)


def _listen(stop: threading.Event) -> None:
    if sys.stdin.readline():
        stop.set()
    else:
        os._exit(1)  # Spark may be anywhere; its Java ends when we do


if __name__ == "__main__":
    main()
