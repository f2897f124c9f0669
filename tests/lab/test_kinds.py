"""Kinds of experiments: another one needs no change to the runner."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import ConfigError, UsageError
from shoal_lab.runs.plan import load_plan
from shoal_lab.runs.runner import run_scenario
from shoal_lab.scenarios import experiment_kinds
from shoal_lab.scenarios.experiment_kinds import (
    Checks,
    ExperimentKind,
    Outcome,
    RunRequest,
    find_kind,
    kind_names,
    register_kind,
)
from shoal_lab.scenarios.scenario import short_forms


class DiceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sides: int = 6


class DiceFigures(msgspec.Struct, frozen=True):
    shown: int


def roll(request: RunRequest) -> Outcome:
    return Outcome(
        figures=DiceFigures(request.seed % request.scenario.options.sides + 1),
        trace_hash="",
        events=1,
        records=0,
        cpu_seconds=0.0,
        simulated_seconds=0.0,
        checks=Checks("off", "off"),
    )


DICE = ExperimentKind(
    name="games/dice",
    run=roll,
    figures=DiceFigures,
    rows=lambda figures: [("shown", str(figures.shown))],
    line=lambda figures: str(figures.shown),
    cost=lambda scenario: 1.0,
    options=DiceOptions,
)


@pytest.fixture
def _dice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment_kinds, "_registered", {})
    register_kind(DICE)


@pytest.mark.usefixtures("_dice")
def test_a_new_kind_is_read_swept_and_run(tmp_path: Path) -> None:
    file = tmp_path / "dice.toml"
    file.write_text(
        'protocol = "games"\nexperiment = "dice"\nseed = 7\n[options]\nsides = [6, 20]\n'
    )
    shown = [run_scenario(r.scenario, r.seed).figures.shown for r in load_plan(file).runs]
    assert shown == [2, 8]
    with pytest.raises(ConfigError, match=r"options\.side: no such field: did you mean sides\?"):
        load_plan(file, ["options.side=3"])


@pytest.mark.usefixtures("_dice")
def test_a_name_is_taken_once() -> None:
    with pytest.raises(UsageError, match="games/dice is registered already"):
        register_kind(DICE)
    with pytest.raises(ConfigError, match="'chess': of games there are dice"):
        find_kind("games", "chess")


def test_every_kind_is_found_by_its_name() -> None:
    assert {"streams/delivery", "topics/reddit", "search/model"} <= {*kind_names()}
    for name in kind_names():
        assert find_kind(*name.split("/")).name == name


def test_every_kind_goes_by_settings_that_there_are() -> None:
    known = {*short_forms(), "faults", "prediction"}
    for name in kind_names():
        kind = find_kind(*name.split("/"))
        assert kind.reads
        assert kind.reads | kind.reads_over_sockets <= known
        assert bool(kind.reads_over_sockets) == (kind.over_sockets is not None)
    assert find_kind("streams", "delivery").reads == known


def test_a_run_loads_its_own_kind_only() -> None:
    """Each process of a sweep would wait for the others, and for all of SciPy."""
    source = (
        "import sys; from shoal_lab.scenarios.experiment_kinds import find_kind; "
        "find_kind('streams', 'delivery'); "
        "lab = 'shoal_lab.experiments.'; "
        "print(*sorted({'scipy', lab + 'search', lab + 'loss'} & {*sys.modules}))"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert run.stdout == "\n"


def test_what_is_not_registered_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no such protocol: there are streams"):
        find_kind("games", "dice")
