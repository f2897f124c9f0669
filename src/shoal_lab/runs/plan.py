"""All runs of a scenario: every point of its grid, with every seed.

    repeats = 3             # each point with seeds 1, 2, 3: another topology every time
    seed = 1

    [network]
    nodes = [32, 256]       # a list where one value is expected: two points
    degree = [4, 6]         # and two each of those

A field whose value is a list anyway is swept by a list of lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from shoal.base.errors import ConfigError
from shoal.sim.faults import AnyFault
from shoal_lab.runs.run_files import run_name
from shoal_lab.runs.runner import replay_command
from shoal_lab.scenarios.experiment_kinds import find_kind
from shoal_lab.scenarios.overrides import as_override, key_of, put_value
from shoal_lab.scenarios.scenario import Scenario, parse_scenario, read_scenario, short_forms

RUNS_MAX = 100_000  # whoever wants more has mistyped something
NOT_SWEPT = ("name", "about", "protocol", "experiment", "repeats")


class Axis(NamedTuple):
    """A field and the values that it takes."""

    key: str
    values: list[Any]


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, and how to have it alone."""

    run: str
    scenario: Scenario
    seed: int
    point: dict[str, Any]
    """Its values of the fields that are swept."""
    overrides: tuple[str, ...]
    replay: str

    @property
    def title(self) -> str:
        """Its place in the grid, for people."""
        where = "".join(f", {key.rsplit('.', 1)[-1]} {self.point[key]}" for key in self.point)
        return f"seed {self.seed}{where}"

    @property
    def in_real_time(self) -> bool:
        """Whether it needs this machine, and as much of it as there is."""
        scenario = self.scenario
        return find_kind(scenario.protocol, scenario.experiment).takes_real_time(scenario)


class Plan(msgspec.Struct, frozen=True):
    """Everything that a scenario asks for."""

    name: str
    runs: tuple[PlannedRun, ...]


def load_plan(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    seed: int | None = None,
    check: bool | None = None,
    called: str | None = None,
) -> Plan:
    """Read a scenario file as all of its runs; ConfigError says what is wrong, and where.

    `called`: how the file was named, for the commands that repeat a run.
    """
    table = read_scenario(path, overrides)
    if seed is not None:
        table["seed"] = seed
    repeats = _repeats(table, str(path))
    axes = find_axes(table, str(path))
    count = math.prod(len(axis.values) for axis in axes) * repeats
    if count > RUNS_MAX:
        raise ConfigError(f"{path}: {count:,} runs: at most {RUNS_MAX:,}; shorten a list")
    swept, short = {axis.key for axis in axes}, short_forms()
    kept = [one for one in overrides if key_of(one, short) not in {*swept, "repeats", "seed"}]
    # A file that repeats would repeat the one run, too.
    once = ["repeats=1"] if "repeats" in read_scenario(path) else []
    called = str(path) if called is None else called
    runs: dict[str, PlannedRun] = {}
    for point in _points(axes):
        scenario = parse_scenario(_at(table, point), str(path))
        changed = [as_override(key, point[key]) for key in point if key != "seed"]
        own = (*kept, *changed, *once)
        for number in range(scenario.seed, scenario.seed + repeats):
            run = PlannedRun(
                run=run_name(scenario, number),
                scenario=scenario,
                seed=number,
                point=dict(point),
                overrides=own,
                replay=replay_command(called, number, own, check),
            )
            runs.setdefault(run.run, run)  # two points with seeds in common
    return Plan(table["name"], tuple(runs.values()))


def find_axes(table: Mapping[str, Any], source: str) -> list[Axis]:
    """The fields that are swept, in the order of the file."""
    axes = []
    for key, value, is_list in _leaves(table):
        swept = isinstance(value, list) and (
            not is_list or (bool(value) and all(isinstance(one, list) for one in value))
        )
        if swept and not value:
            raise ConfigError(f"{source}: {key} = []: a sweep over nothing: write a value or more")
        if swept and key not in NOT_SWEPT:
            axes.append(Axis(key, value))
    return axes


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Key and value of every field, and whether a list is what it expects."""
    for name, value in table.items():
        if name == "faults" and isinstance(value, list):
            for number, fault in enumerate(value):
                if isinstance(fault, dict):
                    for field, inner in fault.items():
                        yield f"faults.{number}.{field}", inner, field in _fault_lists()
        elif isinstance(value, dict):
            for field, inner in value.items():
                yield f"{name}.{field}", inner, False
        else:
            yield name, value, False


@cache
def _fault_lists() -> frozenset[str]:
    return frozenset(
        name
        for fault in get_args(AnyFault)
        for name, hint in get_type_hints(fault).items()
        if _takes_list(hint)
    )


def _takes_list(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_takes_list(one) for one in get_args(hint))
    return (get_origin(hint) or hint) in (tuple, list)


def _points(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    for values in product(*(axis.values for axis in axes)):
        yield {axis.key: value for axis, value in zip(axes, values, strict=True)}


def _at(table: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in table.items() if key != "repeats"}
    for key, value in point.items():
        found = put_value(found, key, value)
    return found


def _repeats(table: Mapping[str, Any], source: str) -> int:
    repeats = table.get("repeats", 1)
    if type(repeats) is not int or not 1 <= repeats <= RUNS_MAX:
        raise ConfigError(f"{source}: repeats = {repeats!r}: expected 1 to {RUNS_MAX:,}")
    return repeats
