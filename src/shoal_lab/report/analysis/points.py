"""Which runs are repeats of one another: those that differ in their seed alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from shoal_lab.runs.run_files import flat_settings
from shoal_lab.runs.run_frames import FoundRun

POLICY = "network.policy"

NODES = "network.nodes"

SIZES = ("network.nodes", "network.degree")
"""Shown of every point; a degree of streams only, since others do not go by it."""


class PointOfRuns(msgspec.Struct, frozen=True):
    """The runs of one setting."""

    scenario: str
    about: str
    settings: dict[str, Any]
    label: str
    runs: tuple[FoundRun, ...]


def group_runs(runs: Sequence[FoundRun]) -> list[PointOfRuns]:
    """Points in the order of scenario, then of their settings, numbers as numbers."""
    groups: dict[tuple[str, bytes], list[FoundRun]] = {}
    for run in runs:
        same = msgspec.json.encode(flat_settings(_scenario(run.info)), order="deterministic")
        groups.setdefault((scenario_name(run.info), same), []).append(run)
    points = []
    for (name, _), members in groups.items():
        settings = flat_settings(_scenario(members[0].info))
        about = str(_scenario(members[0].info).get("about", ""))
        members.sort(key=lambda run: (run.info.get("seed", 0), run.run))
        points.append(PointOfRuns(name, about, settings, "", tuple(members)))
    swept = _swept(points)
    labelled = [
        msgspec.structs.replace(point, label=_label(point, swept[point.scenario]))
        for point in points
    ]
    return sorted(labelled, key=_order)


def scenario_name(info: Mapping[str, Any]) -> str:
    """Of the run; its own name if it says none."""
    return str(_scenario(info).get("name") or info["run"])


def settings_but(settings: Mapping[str, Any], *names: str) -> bytes:
    """The same for settings that differ in these alone."""
    rest = {name: value for name, value in settings.items() if name not in names}
    return msgspec.json.encode(rest, order="deterministic")


def _scenario(info: Mapping[str, Any]) -> Mapping[str, Any]:
    scenario = info.get("scenario")
    return scenario if isinstance(scenario, dict) else {}


def _swept(points: Sequence[PointOfRuns]) -> dict[str, set[str]]:
    """The settings of each scenario in which its points differ."""
    first: dict[str, dict[str, Any]] = {}
    swept: dict[str, set[str]] = {}
    for point in points:
        known = first.setdefault(point.scenario, point.settings)
        differ = {
            name
            for name in known.keys() | point.settings.keys()
            if known.get(name) != point.settings.get(name)
        }
        swept.setdefault(point.scenario, set()).update(differ)
    return swept


def _label(point: PointOfRuns, swept: Collection[str]) -> str:
    streams = point.settings.get("protocol", "streams") == "streams"
    always = SIZES if streams else SIZES[:1]
    names = dict.fromkeys([*always, *point.settings])
    shown = [
        f"{_last_part(name)} {_short(point.settings[name])}"
        for name in names
        if name in point.settings and (name in always or name in swept)
    ]
    return ", ".join(shown)


def _last_part(name: str) -> str:
    """Of faults there may be several, so that theirs is said in full."""
    return name if name.startswith("faults.") else name.rsplit(".", 1)[-1]


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _order(point: PointOfRuns) -> tuple[Any, ...]:
    sizes = [point.settings.get(name) for name in SIZES]
    numbers = tuple(size if isinstance(size, int) else 0 for size in sizes)
    return (point.scenario, *numbers, point.label)


def policy_of(settings: Mapping[str, object]) -> str:
    """Of a point; of one that says nothing of its settings, none."""
    return str(settings.get(POLICY, ""))
