"""Queries whose source's process comes up too late for Spark.

Spark starts a Python process for every streaming source, and gives it ten seconds to connect: a
constant of Spark's. On a machine that is very busy it takes longer, and the query ends before it
has done anything. Then it is started again: its checkpoint has not moved.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

STARTS_MAX = 6
"""A machine on which none of so many comes up in time has no room for a query."""

LOOK_S = 1  # Python hears of Ctrl-C in between

_TOO_LATE = ("Python worker failed to connect back", "waiting for the Python worker to connect")

log = logging.getLogger("shoal.pipeline")


class Writer(Protocol):
    """A DataStreamWriter with all its options."""

    def start(self) -> StreamingQuery: ...


class PatientQuery:
    """A query that is running, started again if its source came up too late."""

    def __init__(self, writer: Writer) -> None:
        """Starts it."""
        self._writer = writer
        self._starts = 1
        self.current = writer.start()
        """As Spark has it now."""

    def check(self) -> None:
        """Raises what ended it; starts it again if that was nothing but slowness."""
        error = self.current.exception()
        if error is None:
            return
        if self._starts == STARTS_MAX or not came_up_too_late(error):
            raise error
        log.warning("the source's process came up too late: the query is started again")
        self._starts += 1
        self.current = self._writer.start()

    def wait(self) -> None:
        """Until it has ended; raises what ended it."""
        while True:
            try:
                if self.current.awaitTermination(LOOK_S):
                    return
            except StreamingQueryException:
                self.check()  # it raises, or the query runs again

    def stop(self) -> None:
        """End it; its checkpoint stays."""
        self.current.stop()


def came_up_too_late(error: Any) -> bool:
    """Whether a query ended because its source's process did not connect in time."""
    return any(text in str(error) for text in _TOO_LATE)
