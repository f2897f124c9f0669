"""Overrides: KEY=VALUE from a command line, laid over the tables of a settings file."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.base.errors import UsageError

_BARE_WORD = re.compile(r"[\w./+-]+")


def apply_overrides(
    table: dict[str, Any], overrides: Sequence[str], short: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The table with each override in its place; KEY is dotted, an index picks from a list.

    `short` says what a key of one word may stand for.
    """
    changed = copy.deepcopy(table)
    for override in overrides:
        key, (_, separator, text) = key_of(override, short or {}), override.partition("=")
        if not separator or not key:
            raise UsageError(f"--set {override}: write KEY=VALUE, as in network.nodes=256")
        _put(changed, key.split("."), _value(text.strip(), override), override)
    return changed


def put_value(table: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The table with one value in its place, given its full key."""
    changed = copy.deepcopy(table)
    _put(changed, key.split("."), value, as_override(key, value))
    return changed


def key_of(override: str, short: Mapping[str, str]) -> str:
    """The full key that an override means."""
    key = override.partition("=")[0].strip()
    return short.get(key, key)


def as_override(key: str, value: Any) -> str:
    """KEY=VALUE for a value that came out of a TOML file."""
    return f"{key}={_toml(value)}"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{_toml(k)} = {_toml(v)}' for k, v in value.items())}}}"
    # JSON's strings are TOML's, but for one character that JSON leaves as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


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
