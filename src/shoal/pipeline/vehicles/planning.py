"""Who runs when, and whom something happens to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.base.errors import UsageError
from shoal.pipeline.vehicles.incidents import Bunch, Stuck
from shoal.pipeline.vehicles.motion import Motion
from shoal.pipeline.vehicles.routes import Route, draw_route
from shoal.pipeline.vehicles.timetable import FOLLOW_S, Hold, Trip, cycle_s, one_way_s, run_vehicle

STUCK_S = (240.0, 300.0)
"""Shorter than a headway: the next vehicle does not catch up."""


class Plan(NamedTuple):
    """All vehicles, and what happens to some of them on purpose."""

    vehicles: list[Motion]
    stuck: tuple[Stuck, ...]
    bunches: tuple[Bunch, ...]


def plan_vehicles(
    vehicles: int,
    routes: int,
    duration_s: float,
    random: np.random.Generator,
    *,
    stuck: int,
    bunches: int,
) -> Plan:
    """Vehicles are spread over routes evenly, and over the day of a route as well."""
    lines = [draw_route(number, random) for number in range(routes)]
    # Every second vehicle may be stuck, or wait for the next: no two of them are neighbours.
    first_of_pair = [
        (route, place)
        for route in range(routes)
        for place in range(0, len(range(route, vehicles, routes)) - 1, 2)
    ]
    if stuck + bunches > len(first_of_pair):
        raise UsageError(
            f"{stuck} stuck vehicles and {bunches} bunches: {vehicles} vehicles on {routes} "
            f"routes have room for {len(first_of_pair)} in all"
        )
    chosen = [first_of_pair[index] for index in random.permutation(len(first_of_pair))]
    stuck_at, bunched_at = set(chosen[:stuck]), set(chosen[stuck : stuck + bunches])
    motions: list[Motion] = []
    found_stuck: list[Stuck] = []
    found_bunches: list[Bunch] = []
    for number, route in enumerate(lines):
        running = _run_route(
            route, len(range(number, vehicles, routes)), duration_s, random,
            stuck={place for line, place in stuck_at if line == number},
            bunched={place for line, place in bunched_at if line == number},
        )  # fmt: skip
        names = [f"{10 + number:04d}/{place:05d}" for place in range(len(running.trips))]
        motions += [
            Motion(name, route, trips) for name, trips in zip(names, running.trips, strict=True)
        ]
        for place, trip in running.stuck:
            assert trip.stuck is not None
            found_stuck.append(Stuck(names[place], route.name, trip.direction, *trip.stuck))
        found_bunches += [
            Bunch(route.name, trip.direction, (names[place], names[place + 1]),
                  trip.start_s + FOLLOW_S, trip.end_s)
            for place, trip in running.bunched
        ]  # fmt: skip
    return Plan(motions, tuple(found_stuck), tuple(found_bunches))


class _Running(NamedTuple):
    trips: list[list[Trip]]
    stuck: list[tuple[int, Trip]]
    bunched: list[tuple[int, Trip]]


def _run_route(
    route: Route,
    vehicles: int,
    duration_s: float,
    random: np.random.Generator,
    *,
    stuck: set[int],
    bunched: set[int],
) -> _Running:
    cycle = cycle_s(route)
    headway_s = cycle / vehicles
    phase_s = random.uniform(0.0, headway_s)
    all_trips: list[list[Trip]] = []
    found = _Running(all_trips, [], [])
    following: int | None = None
    for place in range(vehicles):
        # The last one begins when the day does, the first a whole cycle before.
        first_start_s = -cycle + phase_s + place * headway_s
        moment_s = duration_s * float(random.uniform(0.2, 0.5))
        hold, (number, stop) = Hold(), _trip_at(route, first_start_s, moment_s)
        if following is not None:
            hold, number, following = Hold(follow=True), following, None
        elif place in bunched:
            hold, following = Hold(wait_for_next=True), number
        elif place in stuck:
            hold = Hold(stuck_after_stop=stop, stuck_s=float(random.uniform(*STUCK_S)))
        ahead = all_trips[-1] if all_trips else []
        trips = run_vehicle(
            route, first_start_s, duration_s, headway_s, {number: hold}, ahead, random
        )
        all_trips.append(trips)
        if place in stuck:
            found.stuck.append((place, trips[number]))
        elif place in bunched:
            found.bunched.append((place, trips[number]))
    return found


def _trip_at(route: Route, first_start_s: float, moment_s: float) -> tuple[int, int]:
    """The number of the trip that a vehicle should be on then, and of the stop behind it; well
    away from both ends."""
    every_s = cycle_s(route) / 2
    number = max(0, int((moment_s - first_start_s) / every_s))
    done = (moment_s - first_start_s - number * every_s) / one_way_s(route)
    return number, int(np.clip(done * len(route.stops_m), 2, len(route.stops_m) - 4))
