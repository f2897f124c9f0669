"""Rules with memory, over the readings of one key: the same code for history and live.

A rule (trips.py, watch.py) is plain Python: it takes readings in the order of their time, keeps
a state, and says things. History gives it all readings of its key at once, sorted. Live, readings
come in any order within the lateness: they wait in Spark's state until the watermark has passed
them, and then go to the rule in order. The rule cannot tell the difference.

Spark allows one such operator per query, and its newer transformWithState wants a package more
(protobuf) and another state store: this one is enough.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_city.tables.config import Rules

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

NEVER_MS = 2**53
"""The end of history: everything that silence ends has ended."""
KEPT = "waiting binary, state binary"
Row = tuple[Any, ...]


class Seen(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A reading as rules take it. Sorted by all of its fields, so that two of one moment have an
    order too."""

    time_ms: int
    vehicle: str
    route: str
    direction: int
    lat: float
    lon: float
    accuracy_m: float
    odometer_m: int
    delay_s: int
    terminus: bool


class Rule(Protocol):
    """What is done with the readings of one key."""

    def __init__(self, rules: Rules, state: bytes | None = None) -> None: ...

    def feed(self, seen: Seen) -> Iterator[Row]:
        """The next reading; rows that follow from it."""

    def advance(self, time_ms: int) -> Iterator[Row]:
        """Nothing older than this will come: rows that follow from silence. Whatever is done here
        would follow from the next reading as well."""

    def wakes_ms(self) -> int | None:
        """When `advance` will next have something to say, if nothing is fed."""

    def state(self) -> bytes:
        """All that it must remember."""


def apply_rule(
    positions: DataFrame, by: Sequence[str], rule: type[Rule], rules: Rules, output: str
) -> DataFrame:
    """The rows of one rule per key, with the columns of `output`."""
    seen = positions.select(
        *(name for name in Seen.__struct_fields__ if name != "time_ms"),
        F.unix_millis("time").alias("time_ms"),
        "time",  # carries the watermark
    )
    names = [column.split()[0] for column in output.split(", ")]
    grouped = seen.groupBy(*by)
    if not positions.isStreaming:
        return grouped.applyInPandas(_over_history(rule, rules, names), output)
    return grouped.applyInPandasWithState(
        _over_stream(rule, rules, names), output, KEPT, "append", "EventTimeTimeout"
    )


def _over_history(
    rule: type[Rule], rules: Rules, names: Sequence[str]
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def run(frame: pd.DataFrame) -> pd.DataFrame:
        running = rule(rules)
        rows = [row for seen in sorted(_taken(frame)) for row in running.feed(seen)]
        return _frame([*rows, *running.advance(NEVER_MS)], names)

    return run


def _over_stream(
    rule: type[Rule], rules: Rules, names: Sequence[str]
) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    def run(key: Any, frames: Iterator[pd.DataFrame], kept: GroupState) -> Iterator[pd.DataFrame]:
        # Spark pads its answers with empty rows, and pandas warns of that.
        warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation", FutureWarning)
        waiting, state = kept.get if kept.exists else (None, None)
        running = rule(rules, state)
        readings = msgspec.msgpack.decode(waiting, type=list[Seen]) if waiting else []
        readings.extend(seen for frame in frames for seen in _taken(frame))
        readings.sort()
        watermark_ms = kept.getCurrentWatermarkMs()
        # A reading at the watermark itself may have a twin: Spark still takes that in this batch.
        ready = sum(seen.time_ms <= watermark_ms for seen in readings)
        rows = [row for seen in readings[:ready] for row in running.feed(seen)]
        rows += running.advance(watermark_ms)
        _keep(kept, readings[ready:], running, watermark_ms)
        if rows:
            yield _frame(rows, names)

    return run


def _keep(kept: GroupState, waiting: list[Seen], running: Rule, watermark_ms: int) -> None:
    wakes = [wakes_ms for wakes_ms in (running.wakes_ms(),) if wakes_ms is not None]
    wakes += [seen.time_ms for seen in waiting[:1]]
    if not wakes:
        if kept.exists:
            kept.remove()
        return
    kept.update((msgspec.msgpack.encode(waiting), running.state()))
    kept.setTimeoutTimestamp(max(min(wakes), watermark_ms + 1))


def _taken(frame: pd.DataFrame) -> Iterator[Seen]:
    columns = [frame[name].tolist() for name in Seen.__struct_fields__]
    return (Seen(*values) for values in zip(*columns, strict=True))


def _frame(rows: Sequence[Row], names: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows), columns=list(names))
