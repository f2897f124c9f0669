"""Overrides: KEY=VALUE from a command line, laid over the tables of a settings file."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from shoal.base.errors import UsageError

_BARE_WORD = re.compile(r"[\w./+-]+")


def apply_overrides(table: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The table with each override in its place; KEY is dotted, an index picks from a list."""
    changed = copy.deepcopy(table)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--set {override}: write KEY=VALUE, as in network.nodes=256")
        _put(changed, key.strip().split("."), _value(text.strip(), override), override)
    return changed


def _put(table: Any, steps: list[str], value: Any, override: str) -> None:
    for step in steps[:-1]:
        if isinstance(table, dict):
            table = table.setdefault(step, {})
        else:
            table = table[_index(table, step, override)]
    if isinstance(table, dict):
        table[steps[-1]] = value
    else:
        table[_index(table, steps[-1], override)] = value


def _index(entries: Any, step: str, override: str) -> int:
    if not isinstance(entries, list):
        raise UsageError(f"--set {override}: {step} would lie inside {entries!r}, which is a value")
    if not step.isdecimal() or int(step) >= len(entries):
        count = f"0 to {len(entries) - 1}" if entries else "none: the list is empty"
        raise UsageError(f"--set {override}: no entry {step}: there are {count}")
    return int(step)


def _value(text: str, override: str) -> Any:
    """A TOML value; a word that is none stands for itself, since shells eat quotes."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if _BARE_WORD.fullmatch(text):
            return text
        raise UsageError(f"--set {override}: {text!r} is no TOML value: {error}") from error
    if list(table) != ["value"]:
        raise UsageError(f"--set {override}: one value, please")
    return table["value"]
