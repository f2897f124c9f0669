"""What the demo's publisher says: numbered messages, or a city's vehicles in a hurry.

The fleet's clock runs sixty times as fast as ours, so that a vehicle that stands still for three
minutes is known to be stuck after three seconds. For the rules to work a vehicle has to be heard
every few seconds of its own time; so at the same rate there are fewer of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shoal_city.tables.config import Rules

# Imported inside the functions: numpy, which the network alone can do without.

SPEED = 60.0
HEARD_EVERY_S = 6.4
"""By the fleet's clock: seventy vehicles at the usual rate."""
SHIFT_S = 600.0
"""Of a fleet's time. Things go wrong in the middle of a shift; then comes the next, with the same
vehicles elsewhere."""
VEHICLES_A_ROUTE = 10
LATENESS_S = 20.0
SKEW_S = 65.0
"""A second of ours: what a busy machine may bring messages out of order."""


class Said(NamedTuple):
    """A message, and which reading of a vehicle it is."""

    content: str | bytes
    reading: str = ""


def numbered(size: int) -> Iterator[Said]:
    """Messages of so many bytes, no two alike."""
    for number in count():
        head = f'{{"vehicle": {number % 900}, "number": {number}, "note": "'
        yield Said(f'{head}{"x" * (size - len(head) - 2)}"}}')


def fleet_messages(rate: float, size: int) -> Iterator[Said]:
    """Vehicles as they are heard, if so many messages are taken a second; of so many bytes, or as
    many more as they have to say."""
    from shoal_city.fleet.fleet import START_MS, Fleet, FleetSettings, in_sent_order

    vehicles = max(VEHICLES_A_ROUTE, round(rate * HEARD_EVERY_S / SPEED))
    for shift in count():
        settings = FleetSettings(
            seed=1 + shift,
            start_ms=START_MS + int(shift * SHIFT_S * 1000),
            duration_s=SHIFT_S,
            vehicles=vehicles,
            routes=vehicles // VEHICLES_A_ROUTE,
            rate=rate / SPEED,
            stuck=max(1, vehicles // 10),
            bunches=max(1, vehicles // 7),
        )
        for message in in_sent_order(Fleet(settings).messages()):
            content = message.content.ljust(size)  # JSON may end in blanks
            yield Said(content, reading_of(message.vehicle, message.time_ms))


def reading_of(vehicle: str, time_ms: int) -> str:
    """The name of a reading."""
    return f"{vehicle} {time_ms}"


def fleet_rules() -> Rules:
    """The pipeline's rules for this fleet: the usual ones, by the fleet's own clock."""
    from shoal_city.tables.config import Rules

    return Rules(played_back=True, lateness_s=LATENESS_S, skew_s=SKEW_S)
