"""Progress: nothing, a line now and then, or a bar."""

from __future__ import annotations

import io

import pytest

from shoal.cli.terminal import progress as module
from shoal.cli.terminal.progress import ProgressLine
from shoal_lab.scenarios.experiment_kinds import RunProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)


def run(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, duration_s: int) -> str:
    """A run of so many seconds that reports ten times a second."""
    clock = Clock(monkeypatch)
    with ProgressLine("smoke, seed 7", stream) as line:
        for tick in range(duration_s * 10):
            clock.now_s = 100.0 + tick / 10
            line.update(RunProgress(tick / 2, 250.0, tick * 1000, tick / 500))
    return stream.getvalue()


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(io.StringIO(), monkeypatch, 2) == ""
    assert run(Terminal(), monkeypatch, 2) == ""


def test_off_a_terminal_it_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(io.StringIO(), monkeypatch, 25).splitlines()
    assert len(lines) == 3
    assert lines[0] == "smoke, seed 7: 10 of 250 s simulated, about 48 s left"
    assert lines[2].endswith("about 28 s left")


def test_before_anything_is_done_no_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    with ProgressLine("smoke", stream) as line:
        clock.now_s += 5.0
        line.update(RunProgress(0, 250.0, 0, 0.0))
    assert stream.getvalue() == "smoke: 0 of 250 s simulated\n"


def test_on_a_terminal_it_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run(Terminal(), monkeypatch, 4)
    assert "of 250 s simulated" in shown
    assert shown.endswith("\x1b[2K"), "the line is cleared"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (600, "10 min"), (7500, "2 h 5 min")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert module.show_duration(seconds) == text
