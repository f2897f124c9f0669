"""When vehicles are where: a timetable, and what became of it.

Vehicles of a route go to and fro between its termini, one headway apart. A trip is planned stop by
stop; the actual one draws its running and standing times, leaves a stop no more than half a minute
early, and starts when the vehicle is there and has rested. Two things are done to trips on purpose:
one stands still between two stops, or one waits for the next vehicle, which then follows closely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

CRUISE_MPS = 9.0
DWELL_S = 18.0
SLACK = 1.01
"""Timetables have a little to spare."""
LAYOVER_S = 360.0
LAYOVER_MIN_S = 120.0
EARLY_MAX_S = 30.0
FOLLOW_S = 7.0
"""How far behind its leader a vehicle of a bunch is: about fifty metres."""


class Hold(NamedTuple):
    """Something done to one trip of one vehicle."""

    stuck_after_stop: int | None = None
    stuck_s: float = 0.0
    wait_for_next: bool = False
    follow: bool = False


class Trip(msgspec.Struct, frozen=True):
    """One way along a route; times in seconds since the fleet's start."""

    direction: int
    planned_start_s: float
    times_s: Floats
    """Arrival at and departure from every stop, in turn."""
    done_m: Floats
    """Where that is."""
    planned_s: Floats
    stuck: tuple[float, float] | None = None

    @property
    def start_s(self) -> float:
        return float(self.times_s[0])

    @property
    def end_s(self) -> float:
        return float(self.times_s[-1])


def one_way_s(route: Route) -> float:
    """The planned time of a trip."""
    return float(_planned(route)[-1])


def cycle_s(route: Route) -> float:
    """There and back, with a rest at both ends."""
    return 2 * (one_way_s(route) + LAYOVER_S)


def run_vehicle(
    route: Route,
    first_start_s: float,
    until_s: float,
    headway_s: float,
    holds: Mapping[int, Hold],
    ahead: list[Trip],
    random: np.random.Generator,
) -> list[Trip]:
    """The trips of a vehicle, by number; `ahead` are those of the vehicle one headway before."""
    trips: list[Trip] = []
    free_s = first_start_s
    planned_start_s = first_start_s
    while planned_start_s < until_s:
        hold = holds.get(len(trips), Hold())
        direction = len(trips) % 2
        if hold.follow:
            leader = ahead[len(trips)]
            trip = Trip(
                direction=direction,
                planned_start_s=planned_start_s,
                times_s=leader.times_s + FOLLOW_S,
                done_m=leader.done_m,
                planned_s=leader.planned_s + headway_s,
            )
        else:
            start_s = max(planned_start_s + random.exponential(8.0), free_s)
            if hold.wait_for_next:
                start_s = planned_start_s + headway_s
            trip = _run_trip(route, direction, planned_start_s, start_s, hold, random)
        trips.append(trip)
        free_s = trip.end_s + LAYOVER_MIN_S
        planned_start_s += one_way_s(route) + LAYOVER_S
    return trips


def _planned(route: Route) -> Floats:
    """Arrivals and departures in turn, from the start of a trip."""
    legs = np.diff(route.stops_m) / CRUISE_MPS * SLACK
    stop_s = np.full(len(legs), DWELL_S)
    stop_s[-1] = 0.0
    departs = np.concatenate([[0.0], np.cumsum(legs + stop_s)])
    arrives = np.concatenate([[0.0], departs[:-1] + legs])
    return np.ravel(np.column_stack([arrives, departs]))


def _run_trip(
    route: Route,
    direction: int,
    planned_start_s: float,
    start_s: float,
    hold: Hold,
    random: np.random.Generator,
) -> Trip:
    stops = route.stops_m if direction == 0 else route.length_m - route.stops_m[::-1]
    planned = planned_start_s + _planned(route)
    legs = np.diff(stops) / CRUISE_MPS * random.lognormal(0.0, 0.12, len(stops) - 1)
    dwells = DWELL_S * random.lognormal(-0.1, 0.4, len(stops))
    now_s = start_s
    times, done = [now_s, now_s], [0.0, 0.0]
    stuck = None
    for stop in range(1, len(stops)):
        leg_s = float(legs[stop - 1])
        if hold.stuck_after_stop == stop - 1:
            halfway_m = float(stops[stop - 1] + stops[stop]) / 2
            stuck = now_s + leg_s / 2, now_s + leg_s / 2 + hold.stuck_s
            times += stuck
            done += [halfway_m, halfway_m]
            now_s += hold.stuck_s
        arrive_s = now_s + leg_s
        last = stop == len(stops) - 1
        leave_s = max(arrive_s + dwells[stop], planned[2 * stop + 1] - EARLY_MAX_S)
        now_s = arrive_s if last else float(leave_s)
        times += [arrive_s, now_s]
        done += [float(stops[stop])] * 2
    done_m = np.array(done)
    return Trip(
        direction=direction,
        planned_start_s=planned_start_s,
        times_s=np.array(times),
        done_m=done_m,
        planned_s=_planned_at(done_m, np.ravel(np.column_stack([stops, stops])), planned),
        stuck=stuck,
    )


def _planned_at(done_m: Floats, stops_m: Floats, planned_s: Floats) -> Floats:
    """When a vehicle should have been at these places. Those in the middle of a leg are taken from
    the leg; at a stop both moments are kept."""
    found = np.interp(done_m, stops_m, planned_s)
    at_stop = np.isin(done_m, stops_m)
    found[at_stop] = planned_s
    return found


# Where vehicles go: routes through a city, as paths with stops.


Floats = npt.NDArray[np.float64]

CENTRE_LAT, CENTRE_LON = 60.2, 24.9
METRES_PER_DEGREE = 111_195.0
METRES_PER_DEGREE_LON = METRES_PER_DEGREE * math.cos(math.radians(CENTRE_LAT))
CITY_RADIUS_M = 12_000.0
LENGTH_M = (14_000.0, 20_000.0)
"""With ten vehicles a route this is a headway of eight to eleven minutes: vehicles come together
when they are made to, and not by chance."""
STOP_EVERY_M = 450.0
BEND_EVERY_M = 150.0


class Route(NamedTuple):
    """A line of a city; direction 0 goes along its path, 1 comes back."""

    name: str
    destination: tuple[str, str]
    """What vehicles show in each direction."""
    along_m: Floats
    """Of each bend, from the first terminus."""
    east_m: Floats
    north_m: Floats
    stops_m: Floats
    """Along the path; the first and the last are the termini."""

    @property
    def length_m(self) -> float:
        return float(self.along_m[-1])

    def place(self, direction: int, done_m: Floats) -> tuple[Floats, Floats, Floats]:
        """East, north and heading in degrees, so far into a trip."""
        along = done_m if direction == 0 else self.length_m - done_m
        east = np.interp(along, self.along_m, self.east_m)
        north = np.interp(along, self.along_m, self.north_m)
        bend = np.clip(np.searchsorted(self.along_m, along, side="right"), 1, len(self.along_m) - 1)
        d_east = self.east_m[bend] - self.east_m[bend - 1]
        d_north = self.north_m[bend] - self.north_m[bend - 1]
        heading = np.degrees(np.arctan2(d_east, d_north)) + 180.0 * direction
        return east, north, heading % 360.0


def draw_route(number: int, random: np.random.Generator) -> Route:
    """A path that wanders towards a goal, from somewhere in the city."""
    length = float(random.uniform(*LENGTH_M))
    bends = int(length / BEND_EVERY_M)
    angle = random.uniform(0.0, 2 * math.pi)
    radius = CITY_RADIUS_M * math.sqrt(random.uniform(0.0, 1.0))
    # Through the middle rather than out of town.
    heading = angle + math.pi + np.cumsum(random.normal(0.0, 0.12, bends))
    step = length / bends
    north = np.concatenate([[0.0], np.cumsum(step * np.cos(heading))]) + radius * math.cos(angle)
    east = np.concatenate([[0.0], np.cumsum(step * np.sin(heading))]) + radius * math.sin(angle)
    return Route(
        name=f"{2000 + 7 * number}",
        destination=("Harbour", "Old Mill"),
        along_m=np.linspace(0.0, length, bends + 1),
        east_m=east,
        north_m=north,
        stops_m=np.linspace(0.0, length, round(length / STOP_EVERY_M) + 1),
    )


def to_degrees(east_m: Floats, north_m: Floats) -> tuple[Floats, Floats]:
    """Latitude and longitude of places around the centre."""
    return CENTRE_LAT + north_m / METRES_PER_DEGREE, CENTRE_LON + east_m / METRES_PER_DEGREE_LON
