"""A sweep in a process of its own that is stopped goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shoal_lab.runs.places import ThisProcess
from shoal_lab.runs.plan import load_plan
from shoal_lab.runs.sweep import run_plan
from tests.cli.test_app import ends
from tests.lab.test_sweep import SCENARIO


def start(file: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal.cli", "lab", "run", str(file)]
    return subprocess.Popen(
        [*command, "--out", str(out), "--jobs", "2", "--json", "--no-check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def results(out: Path) -> dict[str, Any]:
    """All that must not depend on how often a sweep was stopped."""
    said = {}
    for folder in out.iterdir():
        info = json.loads((folder / "run.json").read_text())
        kept = {key: info["result"][key] for key in ("trace_hash", "figures", "events", "seed")}
        said[folder.name] = {**kept, "tables": info["tables"]}
    return said


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The long runs come first, and there are more of them than are done at once: when the first
    is there, others are under way or not begun."""
    file = tmp_path_factory.mktemp("sweep") / "mine.toml"
    file.write_text(SCENARIO.replace("[6, 16]", "[6, 64]").replace("repeats = 4", "repeats = 3"))
    return file


@pytest.fixture(scope="module")
def whole(file: Path) -> dict[str, Any]:
    """What came of the sweep that nobody stopped."""
    list(run_plan(load_plan(file), ThisProcess(), folder=file.parent / "whole", check=False))
    return results(file.parent / "whole")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_stopped_goes_on_where_it_was(
    how: signal.Signals,
    file: Path,
    whole: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    command = ["lab", "run", str(file), "--out", str(out), "--json", "--no-check"]
    sweep = start(file, out)
    assert sweep.stdout is not None
    sweep.stdout.readline()  # one run is there
    if how is signal.SIGKILL:
        # The command alone, as a machine short of memory would: its workers notice by themselves.
        sweep.kill()
    else:
        os.killpg(sweep.pid, how)  # as a terminal does
    _, shown = sweep.communicate(timeout=30)
    if how is signal.SIGINT:
        assert sweep.returncode == 130
        assert "the same command goes on from here" in shown
        assert not [f for f in out.iterdir() if f.name.startswith(".")]
    wait_until_gone(sweep.pid)
    before = {f.name: (f / "run.json").stat().st_ino for f in out.iterdir() if f.name[0] != "."}
    assert 0 < len(before) < 6, "neither nothing nor everything was done"
    assert ends(*command) == 0
    *runs, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (summary["skipped"], summary["ran"]) == (len(before), 6 - len(before))
    assert {run["run"] for run in runs if run["skipped"]} == before.keys()
    after = {f.name: (f / "run.json").stat().st_ino for f in out.iterdir()}
    assert before.items() <= after.items(), "nothing is written again"
    assert results(out) == whole


def wait_until_gone(group: int) -> None:
    """Workers that lost their parent end when they next say something."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("somebody still works")
