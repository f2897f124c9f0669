"""Whether a node can do its work now: one check for each of its roles, or several.

A check gives None if all is well, or one sentence for people that says what is wrong and what to
do. It is asked often, by probes and for metrics: it looks at what is known, and waits for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

ROLES_MAX = 64  # a node has about ten; the answer to a probe has a bound
REASONS_MAX = 4  # of one role: the first ones say enough
CHANGED_LOOKS = 2  # at a change, before it is one
BEGIN_LOOKS = 10  # at a role that begins: 20 s, in which nodes find each other
REASON_CHARS_MAX = 400  # a sentence, with an address and two ids

Check = Callable[[], str | None]

log = logging.getLogger("shoal.node")


class RoleReadiness(msgspec.Struct, frozen=True):
    """Whether one role works, and if not, why."""

    role: str
    ready: bool
    reasons: list[str]


class Readiness(msgspec.Struct, frozen=True):
    """Whether a node can do its work now."""

    ready: bool
    problems: list[str]
    """Each begins with the role that it is about."""
    roles: list[RoleReadiness]


class _Told(msgspec.Struct):
    """What the operator knows of a role."""

    said: bool | None = None
    seen: bool | None = None
    looks: int = 0
    """So many in a row have seen the same."""


class ReadinessChecks:
    """The checks of one node. Its parts add theirs when they start."""

    def __init__(self) -> None:
        self._checks: dict[str, list[Check]] = {}
        self._told: dict[str, _Told] = {}

    def add(self, role: str, check: Check) -> None:
        """Ask this one, too, from now on. A role may have several checks."""
        if role not in self._checks and len(self._checks) >= ROLES_MAX:
            raise ValueError(f"{ROLES_MAX} roles have checks: add {role!r} to one of them")
        self._checks.setdefault(role, []).append(check)

    def remove(self, role: str, check: Check) -> None:
        """Do not ask it any more; a role without checks is not shown."""
        checks = self._checks.get(role, [])
        if check in checks:
            checks.remove(check)
        if not checks:
            self._checks.pop(role, None)

    def look(self) -> Readiness:
        """How it is now."""
        roles = []
        for role, checks in self._checks.items():
            reasons = [reason for check in list(checks) if (reason := _asked(check)) is not None]
            roles.append(RoleReadiness(role, not reasons, reasons[:REASONS_MAX]))
        problems = [f"{one.role}: {reason}" for one in roles for reason in one.reasons]
        return Readiness(not problems, problems, roles)

    def log_changes(self, whose: str) -> None:
        """Tell the operator which roles work no more, and which do again. A change counts when two
        looks in a row have seen it: a link that breaks and is back at once is none. A role that
        has never worked has more time: it begins."""
        for one in self.look().roles:
            told = self._told.setdefault(one.role, _Told())
            told.looks = told.looks + 1 if one.ready == told.seen else 1
            told.seen = one.ready
            if told.said is None and one.ready:
                told.said = True
            looks_min = BEGIN_LOOKS if told.said is None else CHANGED_LOOKS
            if one.ready == told.said or told.looks < looks_min:
                continue
            if not one.ready:
                log.warning("%s: %s not ready: %s", whose, one.role, "; ".join(one.reasons))
            else:
                log.info("%s: %s ready again", whose, one.role)
            told.said = one.ready


def _asked(check: Check) -> str | None:
    try:
        reason = check()
    except Exception as error:  # a check that fails must not hide the others
        log.debug("a readiness check failed", exc_info=error)
        reason = f"cannot be checked: {type(error).__name__}: {error}"
    if reason is None or len(reason) <= REASON_CHARS_MAX:
        return reason
    return reason[: REASON_CHARS_MAX - 3] + "..."
