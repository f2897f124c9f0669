"""A city's fleet: messages as a transit agency sends them, from nothing but a seed.

    fleet = Fleet(FleetSettings(duration_s=600))
    for message in fleet.messages():            # by the time of measurement
        ...
    for message in in_sent_order(fleet.messages()):
        publish(message.content)                # as a network would see them
    fleet.incidents                             # what alerts should find

The rate and the size are those of the public vehicle stream of Helsinki, as the paper on Streamr
measured it over a day: 653 messages a second of 308 bytes. Places are drawn; none is a real street.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, sleep
from typing import NamedTuple

import msgspec
import numpy as np

from shoal.base.errors import UsageError
from shoal_city.fleet.motion import SPOILT, Motion, encode
from shoal_city.fleet.timetable import (
    FOLLOW_S,
    Hold,
    Route,
    Trip,
    cycle_s,
    draw_route,
    one_way_s,
    run_vehicle,
)

SLAB_S = 60.0
"""Messages are made for so long at once: 40,000 at the usual rate."""
LATENCY_MAX_S = 3.0
START_MS = 1_772_348_400_000
"""Sunday 1 March 2026, 07:00 UTC: any run with the same seed has the same bytes."""


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How large, how long, and how much goes wrong."""

    seed: int = 1
    start_ms: int = START_MS
    duration_s: float = 3600.0
    vehicles: int = 700
    routes: int = 70
    rate: float = 653.0
    """Messages a second, of all vehicles together, lost ones not counted."""
    stuck: int = 12
    """Vehicles that stand still for four to five minutes."""
    bunches: int = 8
    """Trips on which one vehicle follows another closely."""
    dropouts_per_hour: float = 1.5
    """Of each vehicle."""
    dropout_s: tuple[float, float] = (10.0, 90.0)
    held: float = 0.5
    """The part of dropouts whose messages come afterwards; those of the others are lost."""
    malformed: float = 0.001
    repeated: float = 0.002
    """Parts of all messages."""


class Message(NamedTuple):
    """One message of one vehicle."""

    time_ms: int
    sent_ms: int
    vehicle: str
    content: bytes
    fault: str = ""
    """Known here only: `held`, `repeated`, or how it is malformed (see content.py)."""


class Fleet:
    """A fleet and its day; the same settings give the same bytes."""

    def __init__(self, settings: FleetSettings | None = None) -> None:
        self.settings = chosen = settings or FleetSettings()
        if chosen.vehicles < 2 * chosen.routes:
            raise UsageError(
                f"{chosen.vehicles} vehicles on {chosen.routes} routes: at least two for each"
            )
        random = np.random.default_rng([chosen.seed, 0])
        plan = plan_vehicles(chosen.vehicles, chosen.routes, chosen.duration_s, random,
                             stuck=chosen.stuck, bunches=chosen.bunches)  # fmt: skip
        self.vehicles = plan.vehicles
        self._dropouts = [self._draw_dropouts(motion, random) for motion in plan.vehicles]
        self._phase = random.uniform(0.0, 1.0, len(plan.vehicles))
        lost_s = sum(gap.end_s - gap.start_s for gaps in self._dropouts for gap in gaps
                     if not gap.held)  # fmt: skip
        heard_s = chosen.vehicles * chosen.duration_s - lost_s
        self.interval_s = heard_s * (1 + chosen.repeated) / (chosen.rate * chosen.duration_s)
        """Between two messages of a vehicle: such that what is not lost comes to the rate."""
        self.incidents = Incidents(
            stuck=plan.stuck,
            bunches=plan.bunches,
            dropouts=tuple(gap for gaps in self._dropouts for gap in gaps),
        )

    def messages(self) -> Iterator[Message]:
        """All of them, by the time at which they were measured."""
        start_s = 0.0
        while start_s < self.settings.duration_s:
            end_s = min(start_s + SLAB_S, self.settings.duration_s)
            # Its own randomness: who iterates twice gets the same messages twice.
            random = np.random.default_rng([self.settings.seed, 1, int(start_s)])
            slab = [
                message
                for number in range(len(self.vehicles))
                for message in self._vehicle_messages(number, start_s, end_s, random)
            ]
            slab.sort(key=lambda message: (message.time_ms, message.vehicle))
            yield from slab
            start_s = end_s

    def _vehicle_messages(
        self, number: int, start_s: float, end_s: float, random: np.random.Generator
    ) -> Iterator[Message]:
        motion, chosen = self.vehicles[number], self.settings
        first, last = (
            int(np.ceil(edge / self.interval_s - self._phase[number])) for edge in (start_s, end_s)
        )
        times_s = (np.arange(first, last) + self._phase[number]) * self.interval_s
        latency_s = np.minimum(random.lognormal(-1.4, 0.8, len(times_s)), LATENCY_MAX_S)
        sent_s = times_s + latency_s
        kept = np.ones(len(times_s), dtype=bool)
        held = np.zeros(len(times_s), dtype=bool)
        for gap in self._dropouts[number]:
            inside = (gap.start_s <= times_s) & (times_s < gap.end_s)
            if gap.held:
                held |= inside
                sent_s[inside] = gap.end_s + latency_s[inside]
            else:
                kept &= ~inside
        spoil, repeat = random.uniform(size=(2, len(times_s)))
        readings = motion.readings(chosen.start_ms, times_s, sent_s, random)
        for index, reading in enumerate(readings):
            if not kept[index]:
                continue
            content, fault = encode(reading), "held" if held[index] else ""
            if spoil[index] < chosen.malformed:
                fault = list(SPOILT)[int(spoil[index] / chosen.malformed * len(SPOILT))]
                content = SPOILT[fault](content)
            message = Message(reading.time_ms, reading.sent_ms, reading.vehicle, content, fault)
            yield message
            if repeat[index] < chosen.repeated:
                again_ms = message.sent_ms + int(2000 * repeat[index] / chosen.repeated)
                yield message._replace(sent_ms=again_ms, fault=fault or "repeated")

    def _draw_dropouts(self, motion: Motion, random: np.random.Generator) -> list[Dropout]:
        chosen = self.settings
        count = random.poisson(chosen.dropouts_per_hour * chosen.duration_s / 3600)
        # Not one inside another: then the seconds that are lost can simply be added up.
        starts = np.sort(random.uniform(0.0, chosen.duration_s, count))
        gaps: list[Dropout] = []
        for start_s in starts:
            end_s = min(start_s + random.uniform(*chosen.dropout_s), chosen.duration_s)
            held = bool(random.uniform() < chosen.held)
            if not gaps or gaps[-1].end_s < start_s:
                gaps.append(Dropout(motion.vehicle, float(start_s), float(end_s), held))
        return gaps


def in_sent_order(messages: Iterable[Message]) -> Iterator[Message]:
    """The same messages as they are sent; nothing is sent before it is measured."""
    waiting: list[tuple[int, int, Message]] = []
    for number, message in enumerate(messages):
        while waiting and waiting[0][0] <= message.time_ms:
            yield heapq.heappop(waiting)[2]
        heapq.heappush(waiting, (message.sent_ms, number, message))
    while waiting:
        yield heapq.heappop(waiting)[2]


def paced(
    messages: Iterable[Message],
    speed: float = 1.0,
    *,
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> Iterator[Message]:
    """Each message when it is due by `sent_ms`, `speed` times as fast as the clock."""
    began_s = clock()
    first_ms: int | None = None
    for message in messages:
        first_ms = message.sent_ms if first_ms is None else first_ms
        due_s = began_s + (message.sent_ms - first_ms) / 1000 / speed
        if (wait_s := due_s - clock()) > 0:
            pause(wait_s)
        yield message


# What goes wrong in a fleet on purpose, and is therefore known: the ground truth of alerts.


class Stuck(msgspec.Struct, frozen=True):
    """A vehicle stood still between stops; times in seconds since the fleet's start."""

    vehicle: str
    route: str
    direction: int
    start_s: float
    end_s: float


class Bunch(msgspec.Struct, frozen=True):
    """One vehicle went close behind another for a whole trip, from when both were on the way until
    the first of them arrived."""

    route: str
    direction: int
    vehicles: tuple[str, str]
    start_s: float
    end_s: float


class Dropout(msgspec.Struct, frozen=True):
    """Nothing was heard of a vehicle; `held` messages came afterwards, others never."""

    vehicle: str
    start_s: float
    end_s: float
    held: bool


class Incidents(msgspec.Struct, frozen=True):
    """All of them, in no particular order."""

    stuck: tuple[Stuck, ...]
    bunches: tuple[Bunch, ...]
    dropouts: tuple[Dropout, ...]


# Who runs when, and whom something happens to.


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
