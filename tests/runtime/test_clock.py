"""The time of a node, while the system clock is set."""

from __future__ import annotations

from time import time_ns

import pytest

from shoal.base.units import MS_NS, S_NS
from shoal.runtime import clock as module
from shoal.runtime.clock import Clock


class System:
    """Both clocks of a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ns, self.steady_ns = 1_000_000 * S_NS, 50 * S_NS
        monkeypatch.setattr(module, "time_ns", lambda: self.wall_ns)
        monkeypatch.setattr(module, "monotonic_ns", lambda: self.steady_ns)

    def passes(self, ns: int) -> None:
        self.wall_ns += ns
        self.steady_ns += ns


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


def test_it_is_the_system_s_time() -> None:
    before_ns = time_ns()
    assert before_ns <= Clock().now_ns() <= time_ns()


def test_a_step_ahead_is_taken_at_once(system: System) -> None:
    clock = Clock()
    clock.now_ns()
    system.wall_ns += 3600 * S_NS
    system.passes(7)
    assert clock.now_ns() == system.wall_ns


def test_after_a_step_back_time_goes_on_until_the_system_has_come_up(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    first_ns = clock.now_ns()
    system.wall_ns -= 10 * S_NS
    for number in range(1, 2001):
        system.passes(10 * MS_NS)
        assert clock.now_ns() == first_ns + number * 5 * MS_NS
    assert clock.now_ns() == system.wall_ns
    system.passes(S_NS)
    assert clock.now_ns() == system.wall_ns
    (warning,) = caplog.messages
    assert warning.startswith("the system clock was set back by 10.0 s")


def test_every_step_back_is_told_once_and_small_ones_are_not(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    for step_ns in (S_NS // 2, 5 * S_NS, 4 * S_NS):
        clock.now_ns()
        system.wall_ns -= step_ns
        for _ in range(20):
            system.passes(S_NS)
            clock.now_ns()
    assert len(caplog.messages) == 2
