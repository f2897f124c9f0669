"""Plans: every point of a grid with every seed, once, and the command for each."""

from __future__ import annotations

import math
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import ConfigError
from shoal.sim.faults import Loss, Partition
from shoal_lab.runs.plan import RUNS_MAX, Plan, find_axes, load_plan
from shoal_lab.runs.run_files import run_name
from shoal_lab.scenarios.overrides import apply_overrides, as_override
from shoal_lab.scenarios.scenario import load_scenario


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text("[network]\nnodes = 8\n")
    return file


def plan_of(folder: Path, text: str, *overrides: str, seed: int | None = None) -> Plan:
    file = folder / "mine.toml"
    file.write_text(text)
    return load_plan(file, overrides, seed=seed)


values = {
    "network.nodes": st.integers(1, 2048),
    "network.degree": st.integers(3, 64),
    "network.delays": st.floats(0, 500) | st.just("aws"),
    "network.wire": st.booleans(),
    "network.policy": st.sampled_from(["random", "near-half", "aware"]),
    "network.redundant_feeds": st.integers(0, 64) | st.just("all"),
    "workload.settle_s": st.floats(0, 100),
    "workload.publishers": st.sampled_from(["random", "in-turn"]),
    "seed": st.integers(0, 20),
}
grids = st.fixed_dictionaries(
    {}, optional={key: st.lists(one, min_size=1, max_size=3) for key, one in values.items()}
)


def field(scenario: Any, key: str) -> Any:
    for step in key.split("."):
        scenario = getattr(scenario, step)
    return scenario


@given(grid=grids, repeats=st.integers(1, 3))
def test_a_grid_is_every_point_with_every_seed_once(
    tmp_path_factory: pytest.TempPathFactory, grid: dict[str, list[Any]], repeats: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "grid.toml"
    file.write_text("seed = 3\n")
    plan = load_plan(file, [*(as_override(*axis) for axis in grid.items()), f"repeats={repeats}"])
    found = [(tuple(field(run.scenario, key) for key in grid if key != "seed"), run.seed)
             for run in plan.runs]  # fmt: skip
    seeds = {first + more for first in grid.get("seed", [3]) for more in range(repeats)}
    wanted: set[tuple[Any, ...]] = {()}
    for key in grid:
        if key != "seed":
            wanted = {(*point, value) for point in wanted for value in grid[key]}
    assert set(found) == {(point, seed) for point in wanted for seed in seeds}
    assert len(found) == len(set(found)), "no run is done twice"
    assert len({run.run for run in plan.runs}) == len(found)
    for run in plan.runs[:3]:
        assert run.run == run_name(load_scenario(file, run.overrides), run.seed), "it is replayed"


@given(st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
))  # fmt: skip
def test_any_value_survives_as_an_override(value: Any) -> None:
    assert apply_overrides({}, [as_override("a.b", value)]) == {"a": {"b": value}}


def test_lists_in_a_file_sweep_and_repeat(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "repeats = 2\nseed = 5\n[network]\nnodes = [8, 16]\ndegree = [4, 6]\n")
    assert plan.name == "mine"
    grid = [(r.scenario.network.nodes, r.scenario.network.degree, r.seed) for r in plan.runs]
    assert grid == [(n, d, s) for n in (8, 16) for d in (4, 6) for s in (5, 6)]
    first = plan.runs[0]
    assert first.point == {"network.nodes": 8, "network.degree": 4}
    assert first.title == "seed 5, nodes 8, degree 4"


def test_repeats_and_seed_do_not_change_what_a_run_is(file: Path) -> None:
    few = load_plan(file, ["repeats=2"])
    more = load_plan(file, ["repeats=9"])
    assert [run.run for run in few.runs] == [run.run for run in more.runs[:2]]
    assert [run.run for run in load_plan(file, seed=2).runs] == [few.runs[1].run]


def test_a_field_that_is_a_list_is_swept_by_lists(tmp_path: Path) -> None:
    text = """
        [[faults]]
        kind = "partition"
        regions = ["eu-west-1", "eu-west-2"]
        end_s = 9
        [[faults]]
        kind = "loss"
        probability = [0.0, 0.1]
    """
    one, two = (run.scenario.faults for run in plan_of(tmp_path, text).runs)
    assert one == (Partition(regions=("eu-west-1", "eu-west-2"), end_s=9.0), Loss(probability=0.0))
    assert two[1] == Loss(probability=0.1)
    swept = plan_of(
        tmp_path, text, 'faults.0.regions=[["eu-west-1"], ["eu-west-2"]]', "faults.1.probability=0"
    )
    assert [run.scenario.faults[0] for run in swept.runs] == [
        Partition(regions=("eu-west-1",), end_s=9.0), Partition(regions=("eu-west-2",), end_s=9.0),
    ]  # fmt: skip


def test_delay_tables_beside_the_file_are_swept_too(tmp_path: Path) -> None:
    (tmp_path / "near.tsv").write_text("from\ta\na\t1\n")
    plan = plan_of(tmp_path, '[network]\ndelays = ["aws", "near.tsv", 5]\n')
    delays = [run.scenario.network.delays for run in plan.runs]
    assert delays == ["aws", str(tmp_path / "near.tsv"), 5.0]


def test_the_replay_of_a_run_is_short_and_whole(tmp_path: Path) -> None:
    text = "repeats = 2\n[network]\nnodes = [8, 16]\n"
    plan = plan_of(tmp_path, text, "messages=7", "network.degree=[3,4]")
    last = plan.runs[-1]
    assert shlex.split(last.replay)[3:] == [
        str(tmp_path / "mine.toml"), "--seed", "2", "--set", "messages=7",
        "--set", "network.nodes=16", "--set", "network.degree=4", "--set", "repeats=1",
    ]  # fmt: skip
    again = load_plan(tmp_path / "mine.toml", last.overrides, seed=last.seed)
    assert [run.run for run in again.runs] == [last.run]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["nodes=[]"], r"network\.nodes = \[\]: a sweep over nothing: write a value or more"),
        (["nodes=[8,'x']"], r"network\.nodes = 'x': expected `int`, got `str`"),
        (["nodes=[8,[9]]"], r"network\.nodes = \[9\]: expected `int`, got `array`"),
        (["repeats=0"], r"repeats = 0: expected 1 to 100,000"),
        (["repeats=[1,2]"], r"repeats = \[1, 2\]: expected 1 to"),
        (["repeats=true"], r"repeats = True: expected 1 to"),
        (["name=['a','b']"], r"name = \['a', 'b'\]: expected `str`"),
        (["repeats=1000", "seed=[1,2]", "degree=[3,4,5,6]", f"nodes={[*range(1, 99)]}"],
         r"784,000 runs: at most 100,000; shorten a list"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_names_value_and_remedy(
    file: Path, overrides: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=rf"mine\.toml: {complaint}"):
        load_plan(file, overrides)


def test_one_scenario_is_no_sweep(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"network\.nodes = \[1, 2\]: expected `int`"):
        load_scenario(file, ["nodes=[1,2]"])


def test_axes_come_in_the_order_of_the_file() -> None:
    table = tomllib.loads("seed = [1]\n[workload]\nmessages = [1, 2]\n[network]\nnodes = [3]\n")
    assert [axis.key for axis in find_axes(table, "x")] == [
        "seed", "workload.messages", "network.nodes",
    ]  # fmt: skip
    assert math.prod(len(axis.values) for axis in find_axes(table, "x")) == 2 < RUNS_MAX
