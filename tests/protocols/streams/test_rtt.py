"""Round trips: what is asked, what counts as an answer, what is remembered."""

from __future__ import annotations

import itertools
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import MS_NS, US_NS
from shoal.kernel.effects import Send
from shoal.kernel.records import Rejected, RttMeasured
from shoal.protocols.streams.config import RTT_US_MAX
from shoal.protocols.streams.messages import Ping
from shoal.protocols.streams.rtt import ANSWER_NS, RttMeter
from tests.support.streams import ALICE, BOB, NOW_NS, sent


def ask(meter: RttMeter, *peers: bytes, now_ns: int = NOW_NS) -> int:
    """Ping peers; the nonce of the question."""
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
    assert meter.answered(ALICE, nonce, NOW_NS + 3 * MS_NS) == [RttMeasured(ALICE, 3000)]
    assert meter.rtt_us(ALICE) == 3000
    assert meter.rtt_us(BOB) is None


def test_a_later_answer_counts_an_eighth() -> None:
    meter = RttMeter(Random(1))
    meter.answered(ALICE, ask(meter, ALICE), NOW_NS + 8000 * US_NS)
    meter.answered(ALICE, ask(meter, ALICE), NOW_NS + 16000 * US_NS)
    assert meter.rtt_us(ALICE) == 9000


def test_an_answer_counts_once_and_only_from_whoever_was_asked() -> None:
    meter = RttMeter(Random(1))
    nonce = ask(meter, ALICE)
    assert meter.answered(BOB, nonce, NOW_NS) == [Rejected(BOB, "unasked-pong")]
    assert meter.answered(ALICE, nonce + 1, NOW_NS) == [Rejected(ALICE, "unasked-pong")]
    assert meter.rtt_us(ALICE) is None
    assert meter.answered(ALICE, nonce, NOW_NS) == [RttMeasured(ALICE, 0)]
    assert meter.answered(ALICE, nonce, NOW_NS) == [Rejected(ALICE, "unasked-pong")]
    assert meter.rtt_us(ALICE) == 0


def test_an_answer_to_an_older_question_is_too_late() -> None:
    meter = RttMeter(Random(1))
    later_ns = NOW_NS + ANSWER_NS
    old, new = ask(meter, ALICE), ask(meter, ALICE, now_ns=later_ns)
    assert meter.answered(ALICE, old, later_ns + MS_NS) == [Rejected(ALICE, "unasked-pong")]
    assert meter.answered(ALICE, new, later_ns + MS_NS) == [RttMeasured(ALICE, 1000)]


def test_whoever_owes_an_answer_is_not_asked_again() -> None:
    meter = RttMeter(Random(1))
    nonce = ask(meter, ALICE)
    assert meter.ping((ALICE,), NOW_NS + ANSWER_NS - 1) == []
    assert sent(meter.ping((ALICE, BOB), NOW_NS + MS_NS))[0][1] == (BOB,)
    assert meter.answered(ALICE, nonce, NOW_NS + 2 * MS_NS) == [RttMeasured(ALICE, 2000)]


def test_whoever_is_no_neighbour_any_more_is_forgotten() -> None:
    meter = RttMeter(Random(1))
    nonce = ask(meter, ALICE, BOB)
    meter.answered(ALICE, nonce, NOW_NS + MS_NS)
    meter.keep_only((BOB,))
    assert meter.rtt_us(ALICE) is None
    assert meter.answered(BOB, nonce, NOW_NS + MS_NS) == [RttMeasured(BOB, 1000)]
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
