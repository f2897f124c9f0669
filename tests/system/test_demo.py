"""`shoal demo` as a whole: nothing is lost, and what is lost on purpose is seen."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import PATIENCE_S, Running, children_of, is_running

SMALL = ("--no-spark", "--nodes", "8", "--processes", "2", "--rate", "100", "--json")


def summary_of(demo: Running) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(demo.out[-1])
    return summary


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


class Demo(Running):
    """A demo, its workers, and its folder in a place of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__("demo", *options, own_session=True, environment={"TMPDIR": str(folder)})
        self.folder = folder

    def wait_for_workers(self, count: int) -> list[int]:
        """Their process ids, once messages flow."""
        self.wait_for(lambda: len(self.workers()) == count)
        self.wait_for(lambda: [*self.folder.glob("*/published.journal")])
        return self.workers()

    def workers(self) -> list[int]:
        return [pid for pid in children_of(self.process.pid) if "worker" in _command_of(pid)]

    def left(self) -> list[Path]:
        return list(self.folder.iterdir())


def _command_of(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_text()
    except OSError:
        return ""


def test_nothing_is_lost(tmp_path: Path) -> None:
    with Demo(tmp_path, "--seconds", "2", *SMALL) as demo:
        assert demo.end() == 0, demo.err
        summary = summary_of(demo)
        assert len(demo.out) == 1
        assert not demo.left()
    published = summary["published"]
    assert 50 <= published <= 200
    assert summary["expected"] == summary["delivered"] == published * 7
    assert (summary["lost"], summary["double"], summary["invented"]) == (0, 0, 0)
    # Every link carries every message both ways, but for the way it came first: on a regular
    # graph of degree 4, (4 + 7 * 3 - 7) / 7. On a busy machine, neighbours that take late ones
    # for lost ask for them, and add a few.
    assert 0.99 < summary["duplicates_per_message"] / (18 / 7) < 1.5
    assert 0 < summary["delay_ms"]["p50"] <= summary["delay_ms"]["p99"]
    assert summary["nodes"] == 8
    assert summary["degrees"] == [4] * 8
    assert summary["wanted_rate"] == 100


def test_what_is_lost_on_purpose_is_seen(tmp_path: Path) -> None:
    with Demo(tmp_path, "--seconds", "2", "--drop", "1", *SMALL) as demo:
        assert demo.end() == 1
        summary = summary_of(demo)
        assert summary["lost"] == 1
        assert summary["delivered"] == summary["expected"] - 1
        assert not demo.left()


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_in_good_order_with_a_summary(tmp_path: Path, name: signal.Signals) -> None:
    with Demo(tmp_path, *SMALL) as demo:
        workers = demo.wait_for_workers(2)
        time.sleep(1)
        # As a terminal does it: everybody in the foreground gets it.
        os.killpg(demo.process.pid, name)
        assert demo.end() == 0, demo.err
        summary = summary_of(demo)
        assert summary["lost"] == 0
        assert summary["published"] > 0
        assert not any(is_running(pid) for pid in workers)
        assert not demo.left()
        assert not any("Traceback" in line for line in demo.err)


def test_a_worker_that_dies_makes_it_fail_and_nobody_is_left(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL) as demo:
        workers = demo.wait_for_workers(2)
        os.kill(workers[1], signal.SIGKILL)
        assert demo.end() == 1
        assert demo.out == []
        assert "ended with code -9 before its time" in demo.err[-1]
        assert not any("Traceback" in line for line in demo.err)
        assert not any(is_running(pid) for pid in workers)
        assert not demo.left()


def test_workers_do_not_outlive_a_demo_that_is_killed(tmp_path: Path) -> None:
    with Demo(tmp_path, *SMALL) as demo:
        workers = demo.wait_for_workers(2)
        demo.process.kill()
        assert demo.end() == -signal.SIGKILL
        until(lambda: not any(is_running(pid) for pid in workers))
        assert not any("Traceback" in line for line in demo.err)


def test_a_demo_for_people_shows_a_table() -> None:
    arguments = ("--no-spark", "--nodes", "4", "--processes", "2", "--rate", "50", "--seconds", "1")
    with Running("demo", *arguments) as demo:
        assert demo.end() == 0, demo.err
        assert "Nothing lost" in "\n".join(demo.out)
        assert demo.err[0] == "4 nodes in 2 processes, 50 messages/s of 308 bytes"
