"""One Spark session for all tests of a process, and none of it where pyspark is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from shoal.pipeline.session import SessionSettings, spark_session
from tests.pipeline.interpreted import INTERPRETED

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
