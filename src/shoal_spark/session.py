"""The one place that builds a Spark session.

    with spark_session() as spark:
        ...

Settings that differ from Spark's own each have their reason beside them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.base.errors import UsageError
from shoal_spark.java import NoJava, archive_options, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties").resolve()
REMEDY = (
    "in a clone of Shoal `./run lab report DIR` brings all of it, or `scripts/prepare spark`; "
    "elsewhere `pip install 'shoal[spark]'`, and a Java 17 or 21 (or set JAVA_HOME to one)"
)


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How Spark runs."""

    master: str = "local[*]"
    """Any Spark master; files must then be where its executors see them too."""

    app: str = "shoal"

    driver_memory: str = "4g"
    """The driver's heap, which is all there is under local[*]. A report over 100 million
    deliveries needs less: only counts are ever held."""

    shuffle_partitions: int = 4
    """Spark's 200 are for clusters: locally each costs a task for a handful of rows."""

    quick_start: bool = False
    """Compile less: for sessions that live for seconds, as in tests. Long work is slower."""

    more: Mapping[str, str] = {}
    """Any other setting of Spark, by its name; they win."""

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process."""
        return self.master.split("[")[0] == "local"


@contextmanager
def spark_session(settings: SessionSettings | None = None) -> Iterator[SparkSession]:
    """A session that ends with the block."""
    session = start_session(settings)
    try:
        yield session
    finally:
        session.stop()


def start_session(settings: SessionSettings | None = None) -> SparkSession:
    """Start Spark; UsageError, with the remedy, if it cannot be."""
    settings = settings or SessionSettings()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"Spark is not installed ({error}): {REMEDY}") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        # Spark would hand it out again, and ignore what was asked for.
        raise UsageError(
            f"a Spark session runs already, on {running.sparkContext.master}: stop it, or use it"
        )
    java = _prepare_environment(settings)
    builder = SparkSession.builder
    for name, value in spark_settings(settings, java).items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        first_line = str(error).strip().split("\n")[0]
        raise UsageError(f"Spark did not start on {settings.master}: {first_line}") from error


def spark_settings(settings: SessionSettings, java: Path | None = None) -> dict[str, str]:
    """What Spark is told, by the names of its documentation; by this Java if it has to be quick."""
    # Spark's own log begins with five lines that help nobody.
    java_options = [
        "-Duser.timezone=UTC",
        f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
        # Nobody waits for an answer within milliseconds: the collector that takes the least CPU.
        "-XX:+UseParallelGC",
    ]
    if settings.quick_start:
        java_options.append("-XX:TieredStopAtLevel=1")
        java_options += archive_options(java) if java else []
    chosen = {
        "spark.master": settings.master,
        "spark.app.name": settings.app,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        # Nobody looks at it, and it takes a port and a second.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The same figures wherever the machine stands.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # Above 128 groups Spark sorts instead of hashing, several times slower, and says nothing.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        # A task counts the delays of several runs, nine thousand each: with Spark's own 2^16 groups
        # the quick hash table is full after seven of them, and rows go a way that is slower while
        # it is not compiled: 20 CPU-seconds for the first 20 million deliveries instead of 16.
        "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "18",
        # Storage nodes leave out what a batch read of a stream filters out anyway.
        "spark.sql.python.filterPushdown.enabled": "true",
        # A flipped bit is an error and not another figure; the lab writes the checksums.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    }
    if settings.quick_start:
        chosen["spark.executor.extraJavaOptions"] = "-XX:TieredStopAtLevel=1"
    if settings.is_local:
        # Else the driver listens on whatever the host's name resolves to.
        chosen["spark.driver.bindAddress"] = chosen["spark.driver.host"] = LOOPBACK
    return {**chosen, **settings.more}


def _prepare_environment(settings: SessionSettings) -> Path:
    """What must be in the environment before the JVM starts; the Java that is."""
    try:
        java = find_java(os.environ, Path(sys.prefix))
    except NoJava as error:
        raise UsageError(f"{error}: {REMEDY}") from error
    os.environ["JAVA_HOME"] = str(java)
    # Workers on this machine run the interpreter that has our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if settings.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return java
