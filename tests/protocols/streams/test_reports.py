"""Reports: what they gather, and how often they go."""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import Send, SetTimer
from shoal.protocols.streams.config import DEGREE_MAX, NodeConfig
from shoal.protocols.streams.member.joined_stream import Reporter
from shoal.protocols.streams.member.ping_meter import RttMeter
from shoal.protocols.streams.messages import Report, Rtt
from shoal.protocols.streams.wire import StreamsCodec
from tests.support.streams import ALICE, BOB, CAROL, NOW_NS, STREAM, TRACKER, node, sent

CONFIG = NodeConfig(report_min_ns=1 * S_NS, report_rtt_ns=30 * S_NS)
NEXT = SetTimer(("report", STREAM), CONFIG.report_rtt_ns)


@pytest.fixture
def reporter() -> Reporter:
    return Reporter(STREAM, CONFIG)


@pytest.fixture
def rtts() -> RttMeter:
    """Alice is 2 ms away, Bob 5 ms, Carol has not answered."""
    meter = RttMeter(Random(1))
    [(ping, _)] = sent(meter.ping((ALICE, BOB, CAROL), NOW_NS))
    meter.answered(ALICE, ping.nonce, NOW_NS + 2 * MS_NS)
    meter.answered(BOB, ping.nonce, NOW_NS + 5 * MS_NS)
    return meter


def soon(delay_ns: int) -> list[SetTimer]:
    return [SetTimer(("report", STREAM), delay_ns)]


def test_round_trips_of_active_neighbours_are_told(reporter: Reporter, rtts: RttMeter) -> None:
    assert reporter.report(TRACKER, (ALICE, CAROL), rtts, NOW_NS) == [
        Send(Report(STREAM, (Rtt(ALICE, 2000),), (), ()), (TRACKER,)),
        NEXT,
    ]


def test_the_first_news_goes_at_once_and_the_next_waits_its_turn(
    reporter: Reporter, rtts: RttMeter
) -> None:
    assert reporter.lost(ALICE, NOW_NS) == soon(0)
    reporter.report(TRACKER, (), rtts, NOW_NS)
    assert reporter.lost(BOB, NOW_NS + S_NS // 4) == soon(3 * S_NS // 4)
    assert reporter.accuse(CAROL, NOW_NS + S_NS // 2) == soon(S_NS // 2)
    assert reporter.accuse(CAROL, NOW_NS + 5 * S_NS) == soon(0)


def test_news_is_gathered_and_told_once(reporter: Reporter, rtts: RttMeter) -> None:
    for peer in (ALICE, BOB, ALICE):
        reporter.lost(peer, NOW_NS)
    reporter.accuse(CAROL, NOW_NS)
    assert sent(reporter.report(TRACKER, (), rtts, NOW_NS)) == [
        (Report(STREAM, (), (ALICE, BOB), (CAROL,)), (TRACKER,))
    ]
    assert sent(reporter.report(TRACKER, (), rtts, NOW_NS + S_NS)) == [
        (Report(STREAM, (), (), ()), (TRACKER,))
    ]


def test_a_neighbour_that_came_back_meanwhile_is_not_lost(
    reporter: Reporter, rtts: RttMeter
) -> None:
    # The tracker would replace a link that works.
    reporter.lost(ALICE, NOW_NS)
    reporter.lost(BOB, NOW_NS)
    [(report, _)] = sent(reporter.report(TRACKER, (ALICE,), rtts, NOW_NS + S_NS))
    assert report.lost == (BOB,)


def test_a_report_fits_the_wire_whatever_happened(reporter: Reporter, rtts: RttMeter) -> None:
    for number in range(DEGREE_MAX + 10):
        reporter.lost(node(1000 + number), NOW_NS)
        reporter.accuse(node(2000 + number), NOW_NS)
    active = (ALICE, BOB, *(node(number) for number in range(3000, 3000 + DEGREE_MAX)))
    [(report, _)] = sent(reporter.report(TRACKER, active, rtts, NOW_NS))
    codec = StreamsCodec()
    assert codec.decode(codec.encode(report)) == report


# When round trips are news


def test_the_first_report_waits_until_round_trips_were_measured_a_few_times(
    reporter: Reporter,
) -> None:
    assert reporter.ready(NOW_NS) == soon(CONFIG.report_first_ns)


def test_new_neighbours_before_the_node_has_its_place_are_no_news(reporter: Reporter) -> None:
    assert reporter.linked(NOW_NS) == []


def test_new_neighbours_bring_the_next_report_forward_but_never_put_it_off(
    reporter: Reporter, rtts: RttMeter
) -> None:
    reporter.ready(NOW_NS)
    assert reporter.linked(NOW_NS + S_NS) == [], "the first report tells of them, too"
    now_ns = NOW_NS + CONFIG.report_first_ns
    assert reporter.report(TRACKER, (), rtts, now_ns)[-1:] == [NEXT]
    assert reporter.linked(now_ns + S_NS) == soon(CONFIG.report_first_ns)
    assert reporter.linked(now_ns + 2 * S_NS) == [], "nor do newcomers, one after the other"
    assert reporter.lost(ALICE, now_ns + 3 * S_NS) == soon(0)
    assert reporter.linked(now_ns + 3 * S_NS) == []
    late_ns = now_ns + 6 * S_NS
    reporter.report(TRACKER, (), rtts, late_ns)
    soon_due_ns = late_ns + CONFIG.report_rtt_ns - CONFIG.report_first_ns
    assert reporter.linked(soon_due_ns) == []
    assert reporter.linked(soon_due_ns - 1) == soon(CONFIG.report_first_ns)
