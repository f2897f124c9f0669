"""Trips and alerts as plain rules, without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from shoal_city.fleet.fleet import Fleet, FleetSettings
from shoal_city.fleet.motion import SPOILT
from shoal_city.tables.alerts import WatchRule
from shoal_city.tables.config import Rules
from shoal_city.tables.keyed_rules import NEVER_MS, Row, Rule, Seen
from shoal_city.tables.vehicle_tables import TripRule
from tests.pipeline.vehicle_frames import seen_in

RULES = Rules()
METRE = 1 / 111_195
BASE = Seen(0, "v1", "r1", 0, 60.0, 25.0, 4.0, 0, 0, False)


def at(second: float, metres: float = 0.0, **other: object) -> Seen:
    """A reading so far north of the base."""
    place = {"lat": 60.0 + metres * METRE, "odometer_m": int(metres)}
    return msgspec.structs.replace(BASE, time_ms=int(second * 1000), **place, **other)


def run(rule: type[Rule], readings: Iterable[Seen], end_ms: int = NEVER_MS) -> list[Row]:
    running = rule(RULES)
    rows = [row for seen in readings for row in running.feed(seen)]
    return [*rows, *running.advance(end_ms)]


def test_a_terminus_ends_a_trip_and_is_no_part_of_it() -> None:
    trip = [at(0, terminus=True), at(10, 0), at(20, 80, delay_s=5), at(30, 90, terminus=True)]
    assert run(TripRule, trip) == [("v1", "r1", 0, 10_000, 20_000, "terminus", 2, 80, 0, 5)]


def test_silence_for_longer_than_the_gap_ends_a_trip() -> None:
    exactly = [at(0), at(300, 50), at(600.001, 60)]
    assert [row[3:6] for row in run(TripRule, exactly)] == [
        (0, 300_000, "gap"),
        (600_001, 600_001, "gap"),
    ]
    assert run(TripRule, exactly[:2], end_ms=600_000) == []


def test_a_vehicle_that_comes_back_the_other_way_has_turned() -> None:
    rows = run(TripRule, [at(0), at(10), at(20, direction=1)])
    assert [(row[2], row[5]) for row in rows] == [(0, "turn"), (1, "gap")]


def test_a_vehicle_that_stays_for_three_minutes_is_stuck_until_it_moves() -> None:
    standing = [at(second, second % 20) for second in range(0, 200, 10)]
    rows = run(WatchRule, [*standing, at(210, 100), at(220, 180)])
    assert [(row[:2], row[5], row[6]) for row in rows] == [
        (("stuck", "begins"), 0, 180_000),
        (("stuck", "ends"), 0, 210_000),
    ]


def test_a_crawling_vehicle_and_one_at_its_terminus_are_not_stuck() -> None:
    assert run(WatchRule, [at(second, second * 0.5) for second in range(0, 900, 10)]) == []
    assert run(WatchRule, [at(second, terminus=True) for second in range(0, 900, 10)]) == []


def test_places_that_the_receiver_doubts_do_not_free_a_stuck_vehicle() -> None:
    standing = [at(second) for second in range(0, 200, 10)]
    doubtful = at(95, 500, accuracy_m=60.0)
    assert run(WatchRule, sorted([*standing, doubtful])) == run(WatchRule, standing)


def together(apart_m: float, seconds: int) -> list[Seen]:
    """Two vehicles under way, one so far behind the other."""
    return sorted(
        seen
        for second in range(0, seconds, 5)
        for seen in (at(second, 8 * second), at(second, 8 * second - apart_m, vehicle="v2"))
    )


def test_two_vehicles_that_stay_close_are_a_bunch_until_they_are_apart() -> None:
    rows = run(WatchRule, [*together(60, 120), *(at(125 + s, 1000 + 40 * s) for s in (0, 10, 20)),
                           at(140, 960, vehicle="v2"), at(150, 970, vehicle="v2")])  # fmt: skip
    assert [(row[1], row[4], row[5]) for row in rows] == [
        ("begins", "v1 v2", 10_000),
        ("ends", "v1 v2", 10_000),
    ]
    assert 100_000 <= rows[0][6] <= 110_000


def test_vehicles_that_meet_briefly_or_are_not_that_close_are_no_bunch() -> None:
    assert run(WatchRule, together(60, 90)) == []
    assert run(WatchRule, together(130, 600)) == []


def test_silence_and_a_terminus_end_what_was_said_of_a_vehicle() -> None:
    near = together(60, 200)
    for ending in ([], [at(205, 1600, terminus=True)]):
        rows = run(WatchRule, [*near, *ending])
        assert [row[:2] for row in rows] == [("bunch", "begins"), ("bunch", "ends")]


def test_alerts_are_what_was_done_to_the_fleet_and_nothing_else() -> None:
    fleet = Fleet(FleetSettings(seed=3, vehicles=40, routes=4, rate=8.0, stuck=4, bunches=3))
    by_route: dict[tuple[str, int], list[Seen]] = {}
    for message in fleet.messages():
        if message.fault not in SPOILT:
            seen = seen_in(message.content, message.time_ms)
            by_route.setdefault((seen.route, seen.direction), []).append(seen)
    rows = [row for readings in by_route.values() for row in run(WatchRule, readings)]
    found = {(row[0], row[4]) for row in rows if row[1] == "begins"}
    truth = fleet.incidents
    assert found == {("stuck", stuck.vehicle) for stuck in truth.stuck} | {
        ("bunch", " ".join(bunch.vehicles)) for bunch in truth.bunches
    }
    began_s = {
        row[4]: (row[6] - fleet.settings.start_ms) / 1000 for row in rows if row[1] == "begins"
    }
    for stuck in truth.stuck:
        assert stuck.start_s + 150 < began_s[stuck.vehicle] < stuck.end_s + 60


def test_a_state_that_is_put_away_and_taken_out_anywhere_changes_nothing() -> None:
    random = Random(1)
    readings = [*together(60, 300), at(900), at(1000, terminus=True)]
    for rule in (TripRule, WatchRule):
        expected = run(rule, readings)
        for _ in range(20):
            running = rule(RULES)
            rows: list[Row] = []
            for seen in readings:
                if random.random() < 0.2:
                    rows += running.advance(seen.time_ms - 1)
                    running = rule(RULES, running.state())
                rows += running.feed(seen)
            assert sorted([*rows, *running.advance(NEVER_MS)]) == sorted(expected)
