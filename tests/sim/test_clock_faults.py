"""Faults of clocks: monotonic ones drift and never go back, times of day step both ways."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import MS_NS, S_NS
from shoal.kernel.effects import Effect, SetTimer
from shoal.kernel.inputs import Input, TimerFired
from shoal.kernel.records import LinkUp
from shoal.kernel.wall_clock import WallClock
from shoal.sim.faults import ClockDrift, ClockStep
from shoal.sim.host import DriftingClock
from shoal.sim.simulation import START_NS
from tests.support.machines import React, Scripted
from tests.support.tiny_network import TinyNetwork


@given(
    st.floats(-500_000, 500_000),
    st.lists(st.integers(0, 10**11), max_size=20),
)
def test_a_drifting_clock_never_goes_back(ppm: float, steps: list[int]) -> None:
    clock = DriftingClock(0, 17, ppm)
    now_ns, shown = 0, [17]
    for number, step_ns in enumerate(steps):
        now_ns += step_ns
        shown.append(clock.read(now_ns))
        if number == len(steps) // 2:
            clock = DriftingClock(now_ns, shown[-1], -ppm)
    assert shown == sorted(shown)


def test_time_never_goes_back_while_the_clock_is_set() -> None:
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
    assert errors_ms == [0] * 50, "what measures durations is right"
    errors_ms = [node.wall_offset_ns / MS_NS for node in net.nodes]
    assert max(errors_ms) <= 500
    assert min(errors_ms) >= -500
    assert max(errors_ms) > 300
    assert min(errors_ms) < -300
    net.run(6)
    now_ns = net.simulation.scheduler.now_ns
    assert all(node.host.now_ns() == now_ns for node in net.nodes if node.host)
    assert not any(node.wall_offset_ns for node in net.nodes)


class WallReader(Scripted):
    """Notes both times of each input."""

    def __init__(self, react: React | None = None) -> None:
        super().__init__(react=react)
        self.wall = WallClock()
        self.walls_ns: list[int] = []

    def handle(self, event: Input, now_ns: int) -> Sequence[Effect]:
        self.walls_ns.append(self.wall.read(now_ns))
        return super().handle(event, now_ns)


@pytest.mark.parametrize("step_s", [-600, 600, 3600, 30 * 86_400])
def test_a_step_is_seen_at_once_while_it_lasts_and_moves_no_timer(step_s: int) -> None:
    net = TinyNetwork(1, machine=WallReader)
    machine = net.machine(0)
    assert isinstance(machine, WallReader)
    ClockStep(step_s=step_s, start_s=2, end_s=12).install(net.simulation)
    for when_s in range(1, 15):
        net.at(when_s, 0)
    net.at(0.5, 0, SetTimer("tea", 5 * S_NS))
    net.run(16)
    steady_s = [(ns - START_NS) / S_NS for ns in machine.times_ns]
    wall_s = [(ns - START_NS) / S_NS for ns in machine.walls_ns]
    assert steady_s == sorted(steady_s)
    off = {round(s, 1): round(w - s, 1) for s, w in zip(steady_s, wall_s, strict=True)}
    assert off[1] == off[13] == 0
    assert off[3] == off[11] == step_s
    assert 5.5 in off, "the timer fired in time"


def test_a_node_that_starts_with_a_wrong_time_of_day_takes_it_for_both() -> None:
    net = TinyNetwork(1, machine=WallReader)
    node = net.nodes[0]
    node.crash()
    node.step_wall(3600 * S_NS)
    node.start()
    assert node.host is not None
    assert node.host.now_ns() == net.simulation.scheduler.now_ns + 3600 * S_NS
    assert node.wall_offset_ns == 0
    node.step_wall(-3600 * S_NS)
    net.do(0)
    machine = net.machine(0)
    assert isinstance(machine, WallReader)
    assert machine.walls_ns[-1] == net.simulation.scheduler.now_ns


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
