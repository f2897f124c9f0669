"""Trips: what a vehicle did between two termini, or until nothing more was heard of it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.pipeline.vehicles.keyed import Row, Seen, apply_rule
from shoal.pipeline.vehicles.rules import Rules

OUTPUT = (
    "vehicle string, route string, direction int, start_ms long, end_ms long, ended_by string, "
    "readings long, metres long, delay_start_s long, delay_end_s long"
)


class OpenTrip(msgspec.Struct, array_like=True):
    """A trip that goes on."""

    first: Seen
    last: Seen
    readings: int = 1

    def row(self, ended_by: str) -> Row:
        first, last = self.first, self.last
        metres = max(0, last.odometer_m - first.odometer_m)
        return (first.vehicle, first.route, first.direction, first.time_ms, last.time_ms, ended_by,
                self.readings, metres, first.delay_s, last.delay_s)  # fmt: skip


class TripRule:
    """Trips of one vehicle."""

    def __init__(self, rules: Rules, state: bytes | None = None) -> None:
        self._gap_ms = int(rules.gap_s * 1000)
        self._trip = msgspec.msgpack.decode(state, type=OpenTrip | None) if state else None

    def feed(self, seen: Seen) -> Iterator[Row]:
        # After silence it is another trip, whatever the reading says.
        yield from self.advance(seen.time_ms)
        if (trip := self._trip) is None:
            self._trip = None if seen.terminus else OpenTrip(seen, seen)
        elif seen.terminus:
            yield trip.row("terminus")
            self._trip = None
        elif (seen.route, seen.direction) != (trip.first.route, trip.first.direction):
            # It turned round while nobody heard it.
            yield trip.row("turn")
            self._trip = OpenTrip(seen, seen)
        else:
            trip.last = seen
            trip.readings += 1

    def advance(self, time_ms: int) -> Iterator[Row]:
        if self._trip is not None and time_ms - self._trip.last.time_ms > self._gap_ms:
            yield self._trip.row("gap")
            self._trip = None

    def wakes_ms(self) -> int | None:
        return None if self._trip is None else self._trip.last.time_ms + self._gap_ms + 1

    def state(self) -> bytes:
        return msgspec.msgpack.encode(self._trip)


def trips(positions: DataFrame, rules: Rules) -> DataFrame:
    """vehicle, route, direction, start, end, ended_by (terminus, turn or gap), readings, metres,
    delay_start_s, delay_end_s: a row when a trip has ended."""
    found = apply_rule(positions, ["vehicle"], TripRule, rules, OUTPUT)
    return found.select(
        "vehicle",
        "route",
        "direction",
        F.timestamp_millis("start_ms").alias("start"),
        F.timestamp_millis("end_ms").alias("end"),
        *("ended_by", "readings", "metres", "delay_start_s", "delay_end_s"),
    )
