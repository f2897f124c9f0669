"""The made-up fleet: how much it says, how late, and that what goes wrong in it is known."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import islice, pairwise

import msgspec
import pytest

from shoal.base.errors import UsageError
from shoal_city.fleet.fleet import Dropout, Fleet, FleetSettings, Message, in_sent_order, paced
from shoal_city.fleet.motion import SPOILT

SMALL = FleetSettings(vehicles=40, routes=4, rate=8.0, stuck=4, bunches=3, dropouts_per_hour=3.0)


@pytest.fixture(scope="module")
def city() -> list[Message]:
    """A minute of the usual fleet."""
    return list(Fleet(FleetSettings(duration_s=60.0)).messages())


@pytest.fixture(scope="module")
def small() -> tuple[Fleet, list[Message]]:
    """An hour of a small one."""
    fleet = Fleet(SMALL)
    return fleet, list(fleet.messages())


def test_the_rate_and_the_size_are_those_that_were_measured_in_helsinki(
    city: list[Message],
) -> None:
    assert len(city) / 60 == pytest.approx(653, rel=0.02)
    assert sum(len(message.content) for message in city) / len(city) == pytest.approx(308, rel=0.02)


def test_an_hour_of_any_fleet_has_the_rate_that_was_asked_for(
    small: tuple[Fleet, list[Message]],
) -> None:
    assert len(small[1]) / 3600 == pytest.approx(SMALL.rate, rel=0.01)


def test_messages_come_in_the_order_of_measurement_and_are_sent_later(city: list[Message]) -> None:
    assert all(a.time_ms <= b.time_ms for a, b in pairwise(city))
    assert all(message.time_ms <= message.sent_ms for message in city)
    # Else nothing would ever be out of order.
    sent = [message.sent_ms for message in city]
    assert sum(a > b for a, b in pairwise(sent)) > len(sent) / 10


def test_in_sent_order_is_a_sort(city: list[Message]) -> None:
    assert list(in_sent_order(city)) == sorted(city, key=lambda message: message.sent_ms)


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, again, other = (
        list(islice(Fleet(msgspec.structs.replace(SMALL, seed=seed)).messages(), 500))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_malformed_and_repeated_messages_are_as_many_as_asked_for(city: list[Message]) -> None:
    faults = Counter(message.fault for message in city)
    assert set(SPOILT) < set(faults)
    assert sum(faults[name] for name in SPOILT) / len(city) == pytest.approx(0.001, rel=0.4)
    assert faults["repeated"] / len(city) == pytest.approx(0.002, rel=0.4)
    contents = Counter(message.content for message in city)
    assert all(contents[message.content] > 1 for message in city if message.fault == "repeated")


def test_every_other_message_says_what_it_should(city: list[Message]) -> None:
    for message in city[::50]:
        if message.fault in SPOILT:
            continue
        said = json.loads(message.content)
        assert said["vehicle"] == message.vehicle
        assert 59.9 < said["lat"] < 60.5
        assert 0 <= said["speed"] < 25
        assert said["terminus"] <= (said["speed"] == 0)


def test_dropouts_are_silent_or_held_back(small: tuple[Fleet, list[Message]]) -> None:
    fleet, messages = small
    start_ms = fleet.settings.start_ms
    gaps: dict[str, list[Dropout]] = {}
    for gap in fleet.incidents.dropouts:
        gaps.setdefault(gap.vehicle, []).append(gap)
    heard = Counter[bool]()
    for message in messages:
        time_s = (message.time_ms - start_ms) / 1000
        for gap in gaps.get(message.vehicle, ()):
            if gap.start_s + 0.001 < time_s < gap.end_s - 0.001:
                heard[gap.held] += 1
                assert message.sent_ms >= start_ms + int(gap.end_s * 1000)
    assert heard[False] == 0
    assert heard[True] > 0


def test_stuck_vehicles_stand_still_and_bunches_are_close(
    small: tuple[Fleet, list[Message]],
) -> None:
    fleet, messages = small
    places: dict[str, list[tuple[float, float, float]]] = {}
    for message in messages:
        if message.fault not in SPOILT:
            said = json.loads(message.content)
            if said["accuracy"] < 25:
                time_s = (message.time_ms - fleet.settings.start_ms) / 1000
                places.setdefault(message.vehicle, []).append((time_s, said["lat"], said["lon"]))
    assert len(fleet.incidents.stuck) == 4
    for stuck in fleet.incidents.stuck:
        during = [p for p in places[stuck.vehicle] if stuck.start_s <= p[0] <= stuck.end_s]
        assert len(during) > 20
        assert all(_metres(during[0], place) < 40 for place in during)
    assert len(fleet.incidents.bunches) == 3
    for bunch in fleet.incidents.bunches:
        ahead, behind = (
            [p for p in places[name] if bunch.start_s <= p[0] <= bunch.end_s]
            for name in bunch.vehicles
        )
        near = [_metres(min(ahead, key=lambda a: abs(a[0] - b[0])), b) for b in behind]
        assert sorted(near)[len(near) // 2] < 100


def test_paced_waits_until_a_message_is_due_at_the_speed_asked_for(city: list[Message]) -> None:
    now_s, waits = 100.0, []

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        waits.append(seconds)

    sent = list(paced(in_sent_order(city[:2000]), speed=10.0, clock=lambda: now_s, pause=pause))
    assert now_s - 100.0 == pytest.approx((sent[-1].sent_ms - sent[0].sent_ms) / 10_000)
    assert min(waits) > 0


def test_a_fleet_that_cannot_be_is_refused_with_its_figures() -> None:
    with pytest.raises(UsageError, match="5 vehicles on 3 routes"):
        Fleet(FleetSettings(vehicles=5, routes=3))
    with pytest.raises(UsageError, match="room for 2 in all"):
        Fleet(FleetSettings(vehicles=4, routes=2, stuck=2, bunches=1))


def _metres(a: tuple[float, float, float], b: tuple[float, float, float]) -> float:
    east = (a[2] - b[2]) * math.cos(math.radians(a[1]))
    return math.hypot(a[1] - b[1], east) * 111_195
