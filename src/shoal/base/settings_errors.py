"""What is wrong with a settings file, in words: field, value, remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, get_type_hints

import msgspec

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)")


def explain(error: msgspec.ValidationError, table: Any, struct: type[msgspec.Struct]) -> str:
    """One line for an error that msgspec found in a table meant for a struct."""
    found = _WHERE.match(str(error))
    assert found is not None  # the pattern takes any text
    what, steps = found["what"], _STEP.findall(found["path"] or "")
    unknown = _UNKNOWN.match(what)
    if unknown is not None:
        return _explain_unknown([*steps, unknown["field"]], _struct_at(struct, steps))
    if not steps:
        return what[:1].lower() + what[1:]
    return f"{'.'.join(steps)} = {_value_at(table, steps)!r}: {what[:1].lower() + what[1:]}"


def instead_of(word: str, known: Iterable[str]) -> str:
    """What to write for a word that nobody knows: one that is near, or any of those there are."""
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(words)}"


def _explain_unknown(steps: list[str], struct: type[msgspec.Struct]) -> str:
    remedy = instead_of(steps[-1], struct.__struct_fields__)
    return f"{'.'.join(steps)}: no such field: {remedy}"


def _struct_at(struct: type[msgspec.Struct], steps: list[str]) -> type[msgspec.Struct]:
    for step in steps:
        inner = get_type_hints(struct).get(step)
        if not (isinstance(inner, type) and issubclass(inner, msgspec.Struct)):
            break
        struct = inner
    return struct


def _value_at(table: Any, steps: list[str]) -> Any:
    for step in steps:
        table = table[int(step)] if isinstance(table, list) else table[step]
    return table
