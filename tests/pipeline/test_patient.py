"""A query is started again if its source came up too late, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from shoal_spark.restarting_query import STARTS_MAX, PatientQuery

LATE = "Timed out while waiting for the Python worker to connect back"


class FakeQuery:
    """A query that has ended, one way or another."""

    def __init__(self, problem: str | None) -> None:
        self._error = None if problem is None else StreamingQueryException(problem)

    def exception(self) -> StreamingQueryException | None:
        return self._error

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802
        if self._error is not None:
            raise self._error
        return True


class FakeWriter:
    def __init__(self, *problems: str | None) -> None:
        self.problems = list(problems)

    def start(self) -> Any:
        return FakeQuery(self.problems.pop(0))


def test_it_is_started_until_its_source_comes_up() -> None:
    writer = FakeWriter(LATE, LATE, None)
    PatientQuery(writer).wait()
    assert writer.problems == []


def test_a_machine_without_room_is_an_error_in_the_end() -> None:
    writer = FakeWriter(*[LATE] * (STARTS_MAX + 1))
    with pytest.raises(StreamingQueryException, match="Timed out"):
        PatientQuery(writer).wait()
    assert len(writer.problems) == 1


def test_what_else_ends_a_query_is_raised_at_once() -> None:
    writer = FakeWriter("no server keeps it", None)
    with pytest.raises(StreamingQueryException, match="no server keeps it"):
        PatientQuery(writer).wait()
    assert len(writer.problems) == 1
