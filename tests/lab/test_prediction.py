"""An estimate beside what was measured."""

from __future__ import annotations

from shoal.base.ids import show_node_id
from shoal.protocols.streams.tracker.delay_estimate import Estimate
from shoal_lab.experiments.streams.figures import compare
from tests.support.streams import ALICE, BOB


def estimate(alice_ms: float, bob_ms: float) -> Estimate:
    per_node: dict[str, float | None] = {show_node_id(ALICE): alice_ms, show_node_id(BOB): bob_ms}
    return Estimate(2, 1, 1, 2, min(alice_ms, bob_ms), None, max(alice_ms, bob_ms), per_node)


def test_errors_are_those_of_the_mean_and_of_each_publisher() -> None:
    told = compare(estimate(110.0, 190.0), {ALICE: 100.0, BOB: 200.0})
    assert told is not None
    assert (told.publishers, told.error_percent, told.worst_percent) == (2, 0.0, 10.0)
    assert told.mape_percent == 7.5


def test_what_took_no_time_has_no_error() -> None:
    assert compare(estimate(0.001, 0.001), {ALICE: 0.0, BOB: 0.0}) is None
    told = compare(estimate(0.001, 190.0), {ALICE: 0.0, BOB: 200.0})
    assert told is not None
    assert (told.publishers, told.error_percent) == (1, -5.0)
