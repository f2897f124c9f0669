"""The clock of experiments in real time: fine, and still while the process may not run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal_lab.experiments.streams import sockets
from shoal_lab.experiments.streams.sockets import LabLoop


def test_timers_are_finer_than_a_millisecond() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        late_s = []
        for _ in range(50):
            begin_s = loop.time()
            await asyncio.sleep(0.0012)
            late_s.append(loop.time() - begin_s - 0.0012)
        return sorted(late_s)[10]

    with asyncio.Runner(loop_factory=LabLoop) as runner:
        # epoll alone would wait for two whole milliseconds, every time.
        assert runner.run(main()) < 0.0006


def test_the_clock_stands_still_while_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schedstat"
    file.write_text("1000 7000000000 3\n")
    monkeypatch.setattr(sockets, "SCHEDULER_FILE", str(file))
    loop = LabLoop()
    try:
        before_s = loop.time()
        assert loop.stood_still_s() == 0.0, "what was before the loop does not count"
        file.write_text("2000 7250000000 4\n")
        assert loop.stood_still_s() == 0.25
        # A quarter of a second that has not passed: time waits, and never goes back.
        after_s = loop.time()
        assert after_s == before_s
    finally:
        loop.close()


def test_where_nobody_counts_all_time_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "SCHEDULER_FILE", str(tmp_path / "missing"))

    async def main() -> float:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        await asyncio.sleep(0.01)
        return loop.time() - begin_s

    with asyncio.Runner(loop_factory=LabLoop) as runner:
        assert runner.run(main()) >= 0.01
        loop = runner.get_loop()
        assert isinstance(loop, LabLoop)
        assert loop.stood_still_s() == 0.0
