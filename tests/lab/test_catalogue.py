"""Finding scenarios by name and by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.base.errors import NotFound
from shoal_lab.runs.plan import load_plan
from shoal_lab.scenarios import scenario
from shoal_lab.scenarios.scenario import find_scenario, list_scenarios, scenario_folder

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", list_scenarios(), ids=lambda file: file.stem)
def test_every_scenario_that_ships_is_sound(file: Path) -> None:
    plan = load_plan(file)
    assert plan.name == file.stem, "it is found by the name of its file"
    assert all(run.scenario.about for run in plan.runs)
    assert find_scenario(plan.name) == file


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("")
    assert find_scenario(str(file)) == file


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(NotFound, match=r"'streams-smok': did you mean streams-smoke\? .*-2048"):
        find_scenario("streams-smok")
    with pytest.raises(NotFound, match=r"'qqq': there are aware-aws, .*, streams-2048, "):
        find_scenario("qqq")


@pytest.mark.parametrize("name", ["missing.toml", "somewhere/missing"])
def test_a_missing_file_is_named(name: str) -> None:
    with pytest.raises(NotFound, match=f"no scenario file {name}"):
        find_scenario(name)


def test_a_wheel_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "_PACKAGE", tmp_path / "a" / "b" / "c")
    assert scenario_folder() == tmp_path / "scenarios"
    shipped = tmp_path / "a" / "b" / "c" / "scenarios_data"
    shipped.mkdir(parents=True)
    assert scenario_folder() == shipped
    # The build puts them where the lab looks.
    assert (
        '"shoal_lab/scenarios/scenarios_data"' in (ROOT / "scripts" / "wheel_data.py").read_text()
    )
