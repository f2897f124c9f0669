"""One Spark session for all tests of a process, if pyspark is there, and servers of logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal_spark.session import SessionSettings, spark_session
from tests.pipeline.interpreted import INTERPRETED
from tests.support.log_server import LogServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Small and quick to start; two tasks at a time, so that results of several are merged."""
    settings = SessionSettings(
        master="local[2]", driver_memory="1g", shuffle_partitions=2, quick_start=True,
        more=INTERPRETED,
    )  # fmt: skip
    with spark_session(settings) as session:
        yield session


@pytest.fixture
def a(tmp_path: Path) -> Iterator[LogServer]:
    with LogServer(tmp_path / "a") as server:
        yield server


@pytest.fixture
def b(tmp_path: Path) -> Iterator[LogServer]:
    with LogServer(tmp_path / "b") as server:
        yield server
