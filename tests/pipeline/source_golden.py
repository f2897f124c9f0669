"""Writes the golden checkpoint of the source: a query that died in its third batch.

    python -m tests.pipeline.source_golden

Do not write it again for a change of the source: queries that run have such checkpoints.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal_spark.restarting_query import PatientQuery
from tests.support.log_server import START_MS, STREAM, LogServer, signed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOLDEN = Path(__file__).parents[1] / "golden" / "spark-source-checkpoint-v1"
ROWS, ROWS_PER_TRIGGER = 100, 30
COMMITTED = 2 * ROWS_PER_TRIGGER
"""Rows of batches that had ended; those of the third one were planned."""


def golden_server(folder: Path) -> LogServer:
    """What the checkpoint was made of: the same messages, in a log of the same id."""
    server = LogServer(folder / "golden")
    server.append((signed(n) for n in range(ROWS)), now_ns=START_MS * 1_000_000)
    return server


def run_query(
    spark: SparkSession,
    checkpoint: Path,
    batch: Callable[[DataFrame, int], None],
    **options: str,
) -> list[dict[str, Any]]:
    """Everything that there is now, in micro-batches; what Spark says of its progress."""
    writer = (
        spark.readStream.format("shoal")
        .options(**options)
        .load()
        .writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    query = PatientQuery(writer)
    query.wait()
    return [dict(progress) for progress in query.current.recentProgress]


def main() -> None:
    from shoal_spark.session import SessionSettings, spark_session

    def dies(frame: DataFrame, number: int) -> None:
        if number == 2:
            raise RuntimeError("as wanted")
        frame.count()

    settings = SessionSettings(master="local[1]", driver_memory="1g", quick_start=True)
    with tempfile.TemporaryDirectory() as folder, golden_server(Path(folder)) as server:
        made = Path(folder, "checkpoint")
        with spark_session(settings) as spark:
            try:
                run_query(
                    spark,
                    made,
                    dies,
                    servers=server.address,
                    stream=STREAM,
                    startingOffsets="earliest",
                    maxRowsPerTrigger=str(ROWS_PER_TRIGGER),
                )
            except Exception as error:
                print(str(error)[:200])
        shutil.rmtree(GOLDEN, ignore_errors=True)
        # Checksums of Hadoop beside the files are looked at only where they are.
        shutil.copytree(made, GOLDEN, ignore=shutil.ignore_patterns(".*.crc"))
        print(sorted(str(file.relative_to(GOLDEN)) for file in GOLDEN.rglob("*")))


if __name__ == "__main__":
    main()
