"""The smallest experiments, as a user runs them: the same in every process, and sound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from shoal_lab.runs.runner import run_scenario
from shoal_lab.scenarios.scenario import find_scenario, load_scenario


def lab_run(*arguments: str, hash_seed: int) -> dict[str, Any]:
    """The result of `shoal lab run` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "lab", "run", *arguments, "--json"],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("scenario", ["streams-smoke", "streams-faults"])
def test_a_seed_is_one_run_in_every_process(scenario: str) -> None:
    first = lab_run(scenario, "--seed", "7", hash_seed=1)
    second = lab_run(scenario, "--seed", "7", hash_seed=2)
    assert first["trace_hash"] == second["trace_hash"]


def test_another_seed_is_another_run() -> None:
    scenario = load_scenario(find_scenario("streams-smoke"))
    assert run_scenario(scenario, 7).trace_hash != run_scenario(scenario, 8).trace_hash


def test_smoke_delivers_everything_on_a_regular_overlay() -> None:
    result = run_scenario(load_scenario(find_scenario("streams-smoke")), 7, check=True)
    figures = result.figures
    assert (result.checks.safety, result.checks.liveness) == ("passed", "passed")
    assert (figures.published, figures.expected) == (100, 100 * 63)
    assert (figures.delivered, figures.lost) == (figures.expected, 0)
    assert figures.degree.nodes == {4: 64}
    assert figures.connected
    # d - 2 + 2 / n: every link carries every message both ways, but for the way it first came.
    assert figures.duplicates_per_message == 2 + 2 / 64


@pytest.mark.parametrize("seed", [1, 2])
def test_every_kind_of_fault_heals(seed: int) -> None:
    scenario = load_scenario(find_scenario("streams-faults"))
    kinds = {type(fault).__name__ for fault in scenario.faults}
    assert len(kinds) == 9, f"one of each, not only {sorted(kinds)}"
    result = run_scenario(scenario, seed, check=True)
    figures = result.figures
    assert (result.checks.safety, result.checks.liveness) == ("passed", "passed")
    # Joining alone cuts two links per node. Messages need not be lost: gaps are filled.
    assert figures.control.links_cut > 4 * 64, "faults that nobody notices show nothing"
    assert figures.lost_after_healing == 0
    assert figures.degree.nodes == {4: 64}
