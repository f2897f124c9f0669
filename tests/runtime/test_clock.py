"""The two times of a node, while the system clock is set."""

from __future__ import annotations

from time import time_ns

import pytest

from shoal.base.units import MS_NS, S_NS
from shoal.runtime import clock as module
from shoal.runtime.clock import Clock


class System:
    """Both clocks of a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_ns, self.mono_ns = 1_000_000 * S_NS, 50 * S_NS
        monkeypatch.setattr(module, "time_ns", lambda: self.wall_ns)
        monkeypatch.setattr(module, "steady_ns", lambda: self.mono_ns)
        self.told: list[int] = []

    def stepped(self, offset_ns: int, now_ns: int) -> None:
        self.told.append(offset_ns)

    def passes(self, ns: int) -> None:
        self.wall_ns += ns
        self.mono_ns += ns


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


def test_it_begins_at_the_system_s_time() -> None:
    told: list[tuple[int, int]] = []
    before_ns = time_ns()
    clock = Clock(lambda *step: told.append(step))
    assert before_ns - MS_NS <= clock.now_ns() <= time_ns() + MS_NS
    assert not told


@pytest.mark.parametrize("step_s", [600, -600, 3600, 30 * 86_400, -30 * 86_400])
def test_a_step_does_not_touch_durations_and_costs_no_more_than_it_lasts(
    system: System, step_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(system.stepped)
    first_ns = clock.now_ns()
    system.wall_ns += step_s * S_NS
    system.passes(10 * S_NS)
    assert clock.now_ns() == first_ns + 10 * S_NS
    assert system.told == [step_s * S_NS] == [clock.offset_ns]
    system.wall_ns -= step_s * S_NS
    system.passes(S_NS)
    assert clock.now_ns() == first_ns + 11 * S_NS
    assert system.told == [step_s * S_NS, 0]
    assert len(caplog.messages) == 2


def test_slewing_is_followed_and_not_logged(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(system.stepped)
    for _ in range(100):
        system.passes(S_NS)
        system.wall_ns += MS_NS // 4
        clock.now_ns()
    assert abs(clock.offset_ns - 25 * MS_NS) < MS_NS
    assert not caplog.messages


def test_a_pause_between_two_readings_is_no_step(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(system.stepped)
    pauses = iter([S_NS])

    def paused_time_ns() -> int:
        system.passes(next(pauses, 0))
        return system.wall_ns

    monkeypatch.setattr(module, "time_ns", paused_time_ns)
    clock.now_ns()
    assert not system.told
