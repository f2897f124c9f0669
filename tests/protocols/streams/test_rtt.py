"""Round trips: what is asked, what counts as an answer, what is remembered."""

from __future__ import annotations

import itertools
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import MS_NS, S_NS, US_NS
from shoal.kernel.effects import Send, SetTimer
from shoal.kernel.records import Rejected, RttMeasured
from shoal.protocols.streams.config import RTT_US_MAX
from shoal.protocols.streams.member.ping_meter import (
    ANSWER_NS,
    EAGER,
    EAGER_NS,
    GAIN,
    RttMeter,
    RunningMean,
)
from shoal.protocols.streams.messages import Ping
from tests.support.streams import ALICE, BOB, NOW_NS, sent

LEISURE_NS = 10 * S_NS


def ask(meter: RttMeter, *peers: bytes, now_ns: int = NOW_NS) -> int:
    """Ping peers; the nonce of the question. Whoever was asked before is forgotten."""
    meter._asked.clear()
    [(ping, asked)] = sent(meter.ping(tuple(peers), now_ns))  # type: ignore[arg-type]
    assert asked == peers
    return int(ping.nonce)


def test_nobody_is_asked_nothing() -> None:
    assert RttMeter(Random(1)).ping((), NOW_NS) == []


def test_all_are_asked_with_one_message() -> None:
    (send,) = RttMeter(Random(1)).ping((ALICE, BOB), NOW_NS)
    assert isinstance(send, Send)
    assert isinstance(send.message, Ping)
    assert send.peers == (ALICE, BOB)


def test_the_first_answer_is_the_round_trip() -> None:
    meter = RttMeter(Random(1))
    nonce = ask(meter, ALICE, BOB)
    assert meter.rtt_us(ALICE) is None
    assert meter.answered(ALICE, nonce, NOW_NS + 3 * MS_NS)[0] == RttMeasured(ALICE, 3000)
    assert meter.rtt_us(ALICE) == 3000
    assert meter.rtt_us(BOB) is None


def measure(meter: RttMeter, *samples_us: int) -> None:
    """Round trips to Alice."""
    for sample_us in samples_us:
        meter.answered(ALICE, ask(meter, ALICE), NOW_NS + sample_us * US_NS)


def test_the_first_answers_count_alike() -> None:
    meter = RttMeter(Random(1))
    measure(meter, 8000)
    assert meter.deviation_us(ALICE) == 0, "of one sample nobody knows"
    measure(meter, 16000)
    assert meter.rtt_us(ALICE) == 12000
    measure(meter, 12000, 14000)
    assert meter.rtt_us(ALICE) == 12500
    assert meter.deviation_us(ALICE) == round(statistics.stdev([8000, 16000, 12000, 14000]))
    assert meter.deviation_us(BOB) == 0


def test_from_the_eighth_on_a_later_answer_counts_an_eighth() -> None:
    meter = RttMeter(Random(1))
    measure(meter, *[8000] * 100)
    assert (meter.rtt_us(ALICE), meter.deviation_us(ALICE)) == (8000, 0)
    measure(meter, 16000)
    assert meter.rtt_us(ALICE) == 9000
    measure(meter, *[16000] * 40)
    assert meter.rtt_us(ALICE) == pytest.approx(16000, rel=0.01), "a route that changed"


def test_the_deviation_is_that_of_the_samples_however_long_the_series() -> None:
    rng = Random(1)
    found = []
    for _ in range(300):
        mean = RunningMean()
        for _ in range(60):
            mean.add(rng.gauss(100.0, 5.0))
        found.append(mean.deviation**2)
    # Of a smoothed series too: its weights do not sum to those of a plain mean.
    assert statistics.fmean(found) == pytest.approx(25.0, rel=0.08)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=GAIN))
def test_few_samples_have_their_plain_mean_and_deviation(samples: list[float]) -> None:
    mean = RunningMean()
    for sample in samples:
        mean.add(sample)
    assert mean.mean == pytest.approx(statistics.fmean(samples), abs=1e-6)
    assert mean.deviation == pytest.approx(statistics.stdev(samples), abs=1e-3)


def test_a_new_link_is_measured_a_few_times_soon_and_then_at_leisure() -> None:
    meter = RttMeter(Random(1))
    assert meter.greet((), NOW_NS) == []
    send, timer = meter.greet((ALICE,), NOW_NS)
    assert isinstance(send, Send)
    assert timer == SetTimer("ping", EAGER_NS)
    assert meter.greet((ALICE,), NOW_NS) == [], "it was asked already"
    pauses_ns = []
    now_ns = NOW_NS
    for _ in range(EAGER + 2):
        meter.answered(ALICE, send.message.nonce, now_ns + MS_NS)
        send, timer = meter.tick((ALICE,), now_ns, LEISURE_NS)
        assert isinstance(send, Send)
        assert isinstance(timer, SetTimer)
        pauses_ns.append(timer.delay_ns)
        now_ns += timer.delay_ns
    assert pauses_ns == [EAGER_NS] * (EAGER - 1) + [LEISURE_NS] * 3
    # Somebody new: all are asked more often for a while.
    assert meter.tick((ALICE, BOB), now_ns, LEISURE_NS)[-1] == SetTimer("ping", EAGER_NS)
    assert meter.tick((), now_ns, LEISURE_NS) == [SetTimer("ping", LEISURE_NS)]


def test_an_answer_counts_once_and_only_from_whoever_was_asked() -> None:
    meter = RttMeter(Random(1))
    nonce = ask(meter, ALICE)
    assert meter.answered(BOB, nonce, NOW_NS) == [Rejected(BOB, "unasked-pong")]
    assert meter.answered(ALICE, nonce + 1, NOW_NS) == [Rejected(ALICE, "unasked-pong")]
    assert meter.rtt_us(ALICE) is None
    assert meter.answered(ALICE, nonce, NOW_NS)[0] == RttMeasured(ALICE, 0)
    assert meter.answered(ALICE, nonce, NOW_NS) == [Rejected(ALICE, "unasked-pong")]
    assert meter.rtt_us(ALICE) == 0


def test_an_answer_to_an_older_question_is_too_late() -> None:
    meter = RttMeter(Random(1))
    later_ns = NOW_NS + ANSWER_NS
    [(old_ping, _)] = sent(meter.ping((ALICE,), NOW_NS))
    [(new_ping, _)] = sent(meter.ping((ALICE,), later_ns))
    old, new = old_ping.nonce, new_ping.nonce
    assert meter.answered(ALICE, old, later_ns + MS_NS) == [Rejected(ALICE, "unasked-pong")]
    assert meter.answered(ALICE, new, later_ns + MS_NS)[0] == RttMeasured(ALICE, 1000)


def test_whoever_owes_an_answer_is_not_asked_again() -> None:
    meter = RttMeter(Random(1))
    nonce = ask(meter, ALICE)
    assert meter.ping((ALICE,), NOW_NS + ANSWER_NS - 1) == []
    assert sent(meter.ping((ALICE, BOB), NOW_NS + MS_NS))[0][1] == (BOB,)
    assert meter.answered(ALICE, nonce, NOW_NS + 2 * MS_NS)[0] == RttMeasured(ALICE, 2000)


def test_whoever_is_no_neighbour_any_more_is_forgotten() -> None:
    meter = RttMeter(Random(1))
    nonce = ask(meter, ALICE, BOB)
    meter.answered(ALICE, nonce, NOW_NS + MS_NS)
    meter.keep_only((BOB,))
    assert meter.rtt_us(ALICE) is None
    assert meter.answered(BOB, nonce, NOW_NS + MS_NS)[0] == RttMeasured(BOB, 1000)
    nonce = ask(meter, BOB)
    meter.keep_only(())
    assert meter.answered(BOB, nonce, NOW_NS) == [Rejected(BOB, "unasked-pong")]
    assert meter.rtt_us(BOB) is None


@given(st.lists(st.integers(0, RTT_US_MAX), min_size=1, max_size=40))
def test_the_smoothed_value_stays_within_the_samples(samples_us: list[int]) -> None:
    meter = RttMeter(Random(1))
    for sample_us in samples_us:
        meter.answered(ALICE, ask(meter, ALICE), NOW_NS + sample_us * US_NS)
    smoothed_us = meter.rtt_us(ALICE)
    assert smoothed_us is not None
    assert min(samples_us) <= smoothed_us <= max(samples_us)


def test_a_peer_cannot_know_the_next_nonce() -> None:
    # One that can looks nearer than it is, which draws links to it once delays choose them.
    meter = RttMeter(Random(1))
    nonces = [ask(meter, ALICE, now_ns=NOW_NS + n * ANSWER_NS) for n in range(10)]
    steps = {after - before for before, after in itertools.pairwise(nonces)}
    assert len(steps) > 1
