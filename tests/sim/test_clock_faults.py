"""Faults of clocks: they drift, and never go back."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import SetTimer
from shoal.kernel.inputs import TimerFired
from shoal.kernel.records import LinkUp
from shoal.sim.clocks import DriftingClock
from shoal.sim.faults import ClockDrift
from shoal.sim.simulation import START_NS
from tests.support.tiny_network import TinyNetwork


@given(
    st.integers(-(10**12), 10**12),
    st.floats(-500_000, 500_000),
    st.lists(st.integers(0, 10**11), max_size=20),
)
def test_a_drifting_clock_never_goes_back(offset_ns: int, ppm: float, steps: list[int]) -> None:
    clock = DriftingClock(0, offset_ns, ppm, shown_ns=17)
    now_ns, shown = 0, [17]
    for number, step_ns in enumerate(steps):
        now_ns += step_ns
        shown.append(clock.read(now_ns))
        if number == len(steps) // 2:
            clock.mend()
    assert shown == sorted(shown)


def test_a_clock_that_turns_late_while_a_node_runs_never_goes_back() -> None:
    net = TinyNetwork()
    for when_ms in range(0, 16_000, 100):
        net.at(when_ms / 1000, 0)
    for when_s, offset_s in [(2, -3), (6, 2), (8, -2), (9, 0)]:
        net.simulation.at_s(when_s, partial(net.nodes[0].set_clock, offset_s * S_NS, 0))
    net.run(20)
    times_ns = net.machine(0).times_ns
    assert times_ns == sorted(times_ns)
    assert times_ns[-1] - START_NS == 15_900 * MS_NS


def test_clocks_are_off_within_bounds_and_right_again_after_the_fault() -> None:
    net = TinyNetwork(50)
    ClockDrift(offset_ms=500, end_s=10).install(net.simulation)
    net.run(5)
    now_ns = net.simulation.scheduler.now_ns
    errors_ms = [(node.host.now_ns() - now_ns) / MS_NS for node in net.nodes if node.host]
    assert max(errors_ms) <= 500
    assert min(errors_ms) >= -500
    assert max(errors_ms) > 300
    assert min(errors_ms) < -300
    net.run(6)
    now_ns = net.simulation.scheduler.now_ns
    assert all(node.host.now_ns() == now_ns for node in net.nodes if node.host)


def test_a_node_times_by_its_own_clock() -> None:
    net = TinyNetwork()
    net.nodes[0].set_clock(0, 100_000)  # a tenth fast
    net.nodes[1].set_clock(0, -100_000)
    for number in (0, 1):
        net.do(number, SetTimer("tea", S_NS))
    fired_s = []
    for number in (0, 1):
        while not net.machine(number).heard(TimerFired):
            net.run(0.001)
        fired_s.append(net.simulation.time_s)
        started_ns, rang_ns = net.machine(number).times_ns[-2:]
        assert rang_ns - started_ns == pytest.approx(S_NS, abs=2)
    assert fired_s == pytest.approx([1 / 1.1, 1 / 0.9], abs=0.002)


def test_records_keep_true_time() -> None:
    """Whoever analyses a run wants to compare nodes."""
    net = TinyNetwork()
    net.nodes[0].set_clock(10 * S_NS, 0)
    net.link()
    times = {row[0] for row in net.rows if isinstance(row[2], LinkUp)}
    assert len(times) == 1
