"""Alerts: vehicles that are stuck, and vehicles that run in a bunch.

Both are begun and ended: an alert has a row when it is known, and one when it is over. All vehicles
of a route and direction are watched together, since a bunch is about two of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_city.tables.config import Rules
from shoal_city.tables.keyed_rules import Row, Seen, apply_rule

OUTPUT = (
    "kind string, phase string, route string, direction int, vehicles string, since_ms long, "
    "time_ms long, lat double, lon double"
)
METRES_PER_DEGREE = 111_195.0


class Watched(msgspec.Struct, array_like=True):
    """A vehicle that is on the way."""

    last: Seen
    checked_ms: int
    since_ms: int
    """It has not left its place since."""
    lat: float
    lon: float
    """The mean of where it was since: single places are too noisy to measure from."""
    readings: int = 1
    stuck: bool = False


class Pair(msgspec.Struct, array_like=True):
    """Two vehicles that are close."""

    since_ms: int
    told: bool = False


class WatchState(msgspec.Struct, array_like=True):
    """What is known of a route's direction; vehicles and pairs by name."""

    vehicles: dict[str, Watched] = {}
    pairs: dict[tuple[str, str], Pair] = {}


class WatchRule:
    """Alerts of one route and direction."""

    def __init__(self, rules: Rules, state: bytes | None = None) -> None:
        self._rules = rules
        self._gap_ms = int(rules.gap_s * 1000)
        self._now = msgspec.msgpack.decode(state, type=WatchState) if state else WatchState()

    def feed(self, seen: Seen) -> Iterator[Row]:
        vehicles = self._now.vehicles
        known = vehicles.get(seen.vehicle)
        if known is not None and seen.time_ms - known.last.time_ms > self._gap_ms:
            yield from self._leave(seen.vehicle)
            known = None
        if seen.terminus:
            if known is not None:
                yield from self._leave(seen.vehicle)
            return
        if seen.accuracy_m > self._rules.accuracy_max_m:
            return
        if known is None:
            time_ms = seen.time_ms
            vehicles[seen.vehicle] = Watched(seen, time_ms, time_ms, seen.lat, seen.lon)
            return
        known.last = seen
        yield from self._watch_stuck(known, seen)
        if seen.time_ms - known.checked_ms >= self._rules.bunch_check_s * 1000:
            known.checked_ms = seen.time_ms
            yield from self.advance(seen.time_ms)
            yield from self._watch_bunches(seen)

    def advance(self, time_ms: int) -> Iterator[Row]:
        """Vehicles that were silent for too long are off the road."""
        silent = [
            name
            for name, known in self._now.vehicles.items()
            if time_ms - known.last.time_ms > self._gap_ms
        ]
        for name in sorted(silent):
            yield from self._leave(name)

    def wakes_ms(self) -> int | None:
        last_ms = [known.last.time_ms for known in self._now.vehicles.values()]
        return min(last_ms) + self._gap_ms + 1 if last_ms else None

    def state(self) -> bytes:
        return msgspec.msgpack.encode(self._now)

    def _watch_stuck(self, known: Watched, seen: Seen) -> Iterator[Row]:
        if metres_between(known, seen) > self._rules.stuck_m:
            if known.stuck:
                yield _row("stuck", "ends", seen, [seen.vehicle], known.since_ms)
            known.since_ms, known.lat, known.lon = seen.time_ms, seen.lat, seen.lon
            known.readings, known.stuck = 1, False
            return
        known.readings += 1
        known.lat += (seen.lat - known.lat) / known.readings
        known.lon += (seen.lon - known.lon) / known.readings
        if not known.stuck and seen.time_ms - known.since_ms >= self._rules.stuck_s * 1000:
            known.stuck = True
            yield _row("stuck", "begins", seen, [seen.vehicle], known.since_ms)

    def _watch_bunches(self, seen: Seen) -> Iterator[Row]:
        rules, pairs = self._rules, self._now.pairs
        for name, known in sorted(self._now.vehicles.items()):
            fresh = seen.time_ms - known.last.time_ms <= rules.fresh_s * 1000
            if name == seen.vehicle or not fresh:
                continue
            names = (min(name, seen.vehicle), max(name, seen.vehicle))
            metres = metres_between(seen, known.last)
            if metres < rules.bunch_m:
                pair = pairs.setdefault(names, Pair(seen.time_ms))
                if not pair.told and seen.time_ms - pair.since_ms >= rules.bunch_s * 1000:
                    pair.told = True
                    yield _row("bunch", "begins", seen, names, pair.since_ms)
            elif metres > 2 * rules.bunch_m and names in pairs:
                yield from self._part(names, seen)

    def _leave(self, vehicle: str) -> Iterator[Row]:
        """It is at its terminus, or silent: what was said of it is over, as of its last reading."""
        known = self._now.vehicles.pop(vehicle)
        if known.stuck:
            yield _row("stuck", "ends", known.last, [vehicle], known.since_ms)
        for names in sorted(names for names in self._now.pairs if vehicle in names):
            yield from self._part(names, known.last)

    def _part(self, names: tuple[str, str], last: Seen) -> Iterator[Row]:
        pair = self._now.pairs.pop(names)
        if pair.told:
            yield _row("bunch", "ends", last, names, pair.since_ms)


def metres_between(a: Seen | Watched, b: Seen) -> float:
    """As the crow flies, on a ball: good to a metre within a city."""
    north = (a.lat - b.lat) * METRES_PER_DEGREE
    east = (a.lon - b.lon) * METRES_PER_DEGREE * math.cos(math.radians(a.lat))
    return math.hypot(north, east)


def _row(kind: str, phase: str, at: Seen, vehicles: list[str] | tuple[str, ...], since: int) -> Row:
    names = " ".join(vehicles)
    return kind, phase, at.route, at.direction, names, since, at.time_ms, at.lat, at.lon


def alerts(positions: DataFrame, rules: Rules) -> DataFrame:
    """kind (stuck or bunch), phase (begins or ends), route, direction, vehicles, since, time, lat,
    lon."""
    found = apply_rule(positions, ["route", "direction"], WatchRule, rules, OUTPUT)
    return found.select(
        "kind",
        "phase",
        "route",
        "direction",
        F.split("vehicles", " ").alias("vehicles"),
        F.timestamp_millis("since_ms").alias("since"),
        F.timestamp_millis("time_ms").alias("time"),
        "lat",
        "lon",
    )
