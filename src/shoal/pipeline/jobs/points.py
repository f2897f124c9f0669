"""Which runs are repeats of one another: those that differ in their seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.pipeline.reading import FoundRun

NO_SETTINGS = frozenset({"name", "about", "seed", "repeats"})
"""What a scenario says of itself, and what tells repeats apart."""

ALWAYS_SHOWN = ("network.nodes", "network.degree")


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
        same = msgspec.json.encode(flat_settings(run.info), order="deterministic")
        groups.setdefault((scenario_name(run.info), same), []).append(run)
    points = []
    for (name, _), members in groups.items():
        settings = flat_settings(members[0].info)
        about = str(_scenario(members[0].info).get("about", ""))
        members.sort(key=lambda run: (run.info.get("seed", 0), run.run))
        points.append(PointOfRuns(name, about, settings, "", tuple(members)))
    labelled = [
        msgspec.structs.replace(point, label=_label(point, [p.settings for p in same]))
        for point in points
        for same in [[other for other in points if other.scenario == point.scenario]]
    ]
    return sorted(labelled, key=_order)


def scenario_name(info: Mapping[str, Any]) -> str:
    """Of the run; its own name if it says none."""
    return str(_scenario(info).get("name") or info["run"])


def flat_settings(info: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run by dotted name, without what tells repeats apart."""
    flat: dict[str, Any] = {}
    for key, value in _scenario(info).items():
        if key in NO_SETTINGS:
            continue
        if isinstance(value, dict):
            flat.update({f"{key}.{name}": setting for name, setting in value.items()})
        else:
            flat[key] = value
    return flat


def _scenario(info: Mapping[str, Any]) -> Mapping[str, Any]:
    scenario = info.get("scenario")
    return scenario if isinstance(scenario, dict) else {}


def _label(point: PointOfRuns, siblings: Sequence[Mapping[str, Any]]) -> str:
    names = dict.fromkeys([*ALWAYS_SHOWN, *point.settings])
    shown = [
        f"{name.rsplit('.', 1)[-1]} {_short(point.settings[name])}"
        for name in names
        if name in point.settings
        and (name in ALWAYS_SHOWN or any(s.get(name) != point.settings[name] for s in siblings))
    ]
    return ", ".join(shown)


def _short(value: Any) -> str:
    if isinstance(value, list):
        kinds = [
            str(item.get("kind", "?")) if isinstance(item, dict) else str(item) for item in value
        ]
        return "[" + ", ".join(kinds) + "]"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _order(point: PointOfRuns) -> tuple[Any, ...]:
    sizes = [point.settings.get(name) for name in ALWAYS_SHOWN]
    numbers = tuple(size if isinstance(size, int) else 0 for size in sizes)
    return (point.scenario, *numbers, point.label)
