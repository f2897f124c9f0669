"""What a vehicle would measure at any moment: its trips, seen through a noisy receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from time import gmtime, strftime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_city.fleet.timetable import Floats, Route, Trip, to_degrees

NOISE_M = 3.0
REFLECTED = 0.005
"""Between tall houses: so many places are far off, and the receiver says so."""
REFLECTED_M = 40.0


class Motion:
    """One vehicle's day."""

    def __init__(self, vehicle: str, route: Route, trips: list[Trip]) -> None:
        self.vehicle = vehicle
        self.route = route
        self.trips = trips
        self._starts_s = np.array([trip.start_s for trip in trips])

    def readings(
        self, start_ms: int, times_s: Floats, sent_s: Floats, random: np.random.Generator
    ) -> Iterator[Reading]:
        """At these moments, in their order."""
        # Before its first trip a vehicle waits where that begins.
        trip_of = np.maximum(np.searchsorted(self._starts_s, times_s, side="right") - 1, 0)
        noise = random.normal(0.0, 1.0, (3, len(times_s)))
        reflected = random.uniform(size=len(times_s)) < REFLECTED
        for number in np.unique(trip_of):
            part = np.flatnonzero(trip_of == number)
            yield from self._trip_readings(
                self.trips[number], start_ms, times_s[part], sent_s[part], noise[:, part],
                reflected[part],
            )  # fmt: skip

    def _trip_readings(
        self,
        trip: Trip,
        start_ms: int,
        times_s: Floats,
        sent_s: Floats,
        noise: Floats,
        reflected: npt.NDArray[np.bool_],
    ) -> Iterator[Reading]:
        done_m = np.interp(times_s, trip.times_s, trip.done_m)
        delay_s = np.interp(times_s, trip.times_s, trip.times_s - trip.planned_s)
        east_m, north_m, heading = self.route.place(trip.direction, done_m)
        spread_m = np.where(reflected, REFLECTED_M, NOISE_M)
        lat, lon = to_degrees(east_m + spread_m * noise[0], north_m + spread_m * noise[1])
        leg = np.clip(np.searchsorted(trip.times_s, times_s), 1, len(trip.times_s) - 1)
        leg_s = trip.times_s[leg] - trip.times_s[leg - 1]
        moved_m = trip.done_m[leg] - trip.done_m[leg - 1]
        moving = (leg_s > 0) & (moved_m > 0) & (times_s < trip.end_s) & (times_s >= trip.start_s)
        speed = np.where(moving, moved_m / np.maximum(leg_s, 1e-9) + 0.5 * noise[2], 0.0)
        terminus = (times_s >= trip.end_s) | (times_s < trip.start_s)
        stop_number = np.searchsorted(self.route.stops_m, done_m - 1.0)
        at_stop = ~moving & (np.abs(self.route.stops_m[stop_number] - done_m) < 1.0)
        full = 0.5 - 0.5 * np.cos(2 * np.pi * done_m / self.route.length_m)
        # As Python's own numbers, since taking them out of arrays one by one is slow.
        columns: Iterator[tuple[Any, ...]] = zip(
            (start_ms + times_s * 1000).astype(np.int64).tolist(),
            (start_ms + sent_s * 1000).astype(np.int64).tolist(),
            lat.tolist(),
            lon.tolist(),
            (spread_m * (1.0 + 0.2 * np.abs(noise[2]))).tolist(),
            np.maximum(speed, 0.0).tolist(),
            heading.tolist(),
            done_m.tolist(),
            delay_s.tolist(),
            np.where(at_stop, stop_number, -1).tolist(),
            terminus.tolist(),
            (80 * full).astype(np.int64).tolist(),
            strict=True,
        )
        name, destination = self.route.name, self.route.destination[trip.direction]
        trip_ms = start_ms + int(trip.planned_start_s) * 1000
        fixed = (self.vehicle, name, trip.direction, destination, trip_ms)
        for *measured, stop, at_terminus, load in columns:
            stop_name = f"{name}-{stop:02d}" if stop >= 0 else ""
            yield Reading._make((*fixed, *measured, stop_name, at_terminus, load))


# The content of a message, and how it can be spoilt.


class Reading(NamedTuple):
    """What a vehicle measures and says."""

    vehicle: str
    route: str
    direction: int
    destination: str
    trip_ms: int
    """When its trip should have begun, which is what tells trips of a day apart."""
    time_ms: int
    """When it was measured."""
    sent_ms: int
    """When the vehicle sent it, by the same clock."""
    lat: float
    lon: float
    accuracy_m: float
    speed_mps: float
    heading: float
    odometer_m: float
    """Since the beginning of the trip."""
    delay_s: float
    """Behind the timetable; early is negative."""
    stop: str
    """Where it stands with its doors open, or empty."""
    terminus: bool
    """Between two trips."""
    load: int
    """Per cent of its seats."""


def encode(reading: Reading) -> bytes:
    """As JSON, written out: a serialiser would take three times as long."""
    r = reading
    stop = f'"{r.stop}"' if r.stop else "null"
    return (
        f'{{"vehicle":"{r.vehicle}","route":"{r.route}","direction":{r.direction},'
        f'"to":"{r.destination}","trip":"{_second(r.trip_ms // 1000)}Z",'
        f'"time":"{_moment(r.time_ms)}","sent":"{_moment(r.sent_ms)}",'
        f'"lat":{r.lat:.6f},"lon":{r.lon:.6f},"accuracy":{r.accuracy_m:.1f},'
        f'"speed":{r.speed_mps:.2f},"heading":{r.heading:.0f},"odometer":{r.odometer_m:.0f},'
        f'"delay":{r.delay_s:.0f},"stop":{stop},"terminus":{"true" if r.terminus else "false"},'
        f'"load":{r.load}}}'
    ).encode()


SPOILT: Mapping[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[: len(content) * 2 // 3],
    "not text": lambda content: b"\xff\xfe" + content[2:],
    "no vehicle": lambda content: content.replace(b'"vehicle":', b'"vehicel":', 1),
    "impossible place": lambda content: content.replace(b'"lat":', b'"lat":9', 1),
    "time is no time": lambda content: content.replace(b'"time":"2', b'"time":"x', 1),
    "speed is a word": lambda content: content.replace(b'"speed":', b'"speed":"fast","was":', 1),
}
"""What broken devices and gateways make of a message."""


def _moment(time_ms: int) -> str:
    second, ms = divmod(time_ms, 1000)
    return f"{_second(second)}.{ms:03d}Z"


@lru_cache(maxsize=4096)
def _second(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))
