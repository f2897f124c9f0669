"""The content of a message, and how it can be spoilt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from time import gmtime, strftime
from typing import NamedTuple


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
