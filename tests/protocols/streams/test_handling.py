"""How long messages are said to be at a node: the mean under load, little when it is idle."""

from __future__ import annotations

from shoal.base.units import MS_NS, S_NS
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.inputs import AccessChecked
from shoal.protocols.streams.delivery.flooding import HALF_NS, Flooding, HandlingTime
from shoal.protocols.streams.permissions import AccessTable
from tests.support.flooding_floor import Floor
from tests.support.streams import ALICE, CAROL, NOW_NS, STREAM, body_of, flood_of, message_id

USUAL_NS, BURST_NS = 1 * MS_NS, 150 * MS_NS


def handled(*each_ns: int, every_ns: int = MS_NS) -> tuple[HandlingTime, int]:
    """Messages one after the other, and the time of the last one."""
    handling, now_ns = HandlingTime(), NOW_NS
    for handled_ns in each_ns:
        now_ns += every_ns
        handling.add(handled_ns, now_ns)
    return handling, now_ns


def test_under_load_it_is_the_mean() -> None:
    handling, now_ns = handled(*[USUAL_NS, 3 * USUAL_NS] * 100)
    assert 1.8 * USUAL_NS < handling.typical_ns(now_ns) < 2.2 * USUAL_NS


def test_what_always_takes_as_long_stays_however_long_nothing_comes() -> None:
    handling, now_ns = handled(*[USUAL_NS] * 200)
    assert handling.typical_ns(now_ns + 3600 * S_NS) == handling.typical_ns(now_ns)


def test_a_burst_is_forgotten_when_it_is_over() -> None:
    handling, now_ns = handled(USUAL_NS, *[BURST_NS] * 200)
    assert handling.typical_ns(now_ns) > 0.9 * BURST_NS
    assert handling.typical_ns(now_ns + HALF_NS) < 0.6 * BURST_NS
    assert handling.typical_ns(now_ns + 60 * S_NS) < 1.1 * USUAL_NS
    assert handling.typical_ns(now_ns + 10**6 * S_NS) == USUAL_NS


def test_a_burst_is_forgotten_though_a_message_comes_now_and_then() -> None:
    handling, now_ns = handled(USUAL_NS, *[BURST_NS] * 200)
    for _ in range(6):
        now_ns += 10 * S_NS
        handling.add(USUAL_NS, now_ns)
    assert handling.typical_ns(now_ns) < 1.1 * USUAL_NS


def test_time_that_the_registry_takes_does_not_count() -> None:
    floor = Floor()
    floor.flooding = Flooding(floor.config, floor.channels, floor.offend, access=AccessTable())
    for number in range(100):
        flood = flood_of(body_of(message_id(number)))
        floor.receive(ALICE, flood)
        floor.verified(flood)
    floor.now_ns += 60 * S_NS
    verdict = Verdict(Permission.PUBLISH, NOW_NS + 120 * S_NS)
    taken = floor.flooding.access_checked(AccessChecked(STREAM, CAROL, verdict), floor.now_ns)
    assert len(taken) >= 100
    assert floor.flooding.handling.typical_ns(floor.now_ns) == 0
