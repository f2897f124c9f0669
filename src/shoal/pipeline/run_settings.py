"""The settings of a run by dotted name, as runs are told apart by and compared.

Older runs do not mention some of them, since there was no choice then. A run that has one of these
as it always was is the same run, by name and as a repeat of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import basename
from typing import Any

OLD_SETTINGS: dict[str, Any] = {
    "on": "simulator",
    "network.policy": "random",
    "network.redundant_feeds": "all",
    "network.liars": 0.0,
    "network.lie": "near",
}
"""What they were, by dotted name."""

FILES = ("network.delays", "options.workload")
"""Settings that may be files or folders; then there is a digest of these beside them."""

DIGITS = 8  # of a digest, for people

NO_SETTINGS = frozenset({"name", "about", "seed", "repeats"})
"""What a scenario says of itself, and what tells repeats apart."""


def flat_settings(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a scenario by dotted name, `faults.0.probability` for one, without what tells
    repeats apart, and without the folders in which files lie: what is in these is the setting."""
    flat: dict[str, Any] = {}
    for key, value in scenario.items():
        if key not in NO_SETTINGS:
            flat.update(_flatten(key, value))
    for path in FILES:
        digest = flat.pop(f"{path}_digest", None)
        if digest is not None and path in flat:
            flat[path] = f"{basename(str(flat[path]))} {str(digest)[:DIGITS]}"
    return flat | {name: OLD_SETTINGS[name] for name in OLD_SETTINGS if flat and name not in flat}


def _flatten(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {f"{key}.{name}": setting for name, setting in value.items()}
    if isinstance(value, list) and value and all(isinstance(table, dict) for table in value):
        return {
            f"{key}.{number}.{name}": setting
            for number, table in enumerate(value)
            for name, setting in table.items()
        }
    return {key: value}
