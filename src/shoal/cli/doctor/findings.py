"""What an examination finds."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class State(StrEnum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not everything, or not for long."""
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line."""

    what: str
    state: State
    found: str
    remedy: str = ""


def ok(what: str, found: str) -> Finding:
    """All is well."""
    return Finding(what, State.OK, found)


def warning(what: str, found: str, remedy: str) -> Finding:
    """Something to know."""
    return Finding(what, State.WARNING, found, remedy)


def problem(what: str, found: str, remedy: str) -> Finding:
    """Something to mend."""
    return Finding(what, State.PROBLEM, found, remedy)
