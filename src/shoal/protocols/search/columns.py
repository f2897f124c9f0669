"""Columns that users measure beside D0, D1 and D2: sums, minima and maxima over all nodes.

A sum is water like the others: it is divided with every beat, and fish tell what it stands for. A
minimum or maximum is passed on as it is; whoever knows a better one forgets it. Nodes need not know
a column to carry it. Above EXTRAS_MAX a column that is new here is left out, so its sum comes out
too low: users of one network have to agree on that many.
"""

from __future__ import annotations

from math import isfinite

from shoal.base.errors import UsageError
from shoal.protocols.search.belief import EXTRA_MAX
from shoal.protocols.search.limits import EXTRA_NAME_CHARS_MAX, EXTRAS_MAX

SUM, MINIMUM, MAXIMUM = "s:", "min:", "max:"


class Columns:
    """One round's part of the columns at this node."""

    def __init__(self, own: dict[str, float]) -> None:
        self._values = dict(own)

    @property
    def values(self) -> tuple[tuple[str, float], ...]:
        """As a Ping carries them."""
        return tuple(self._values.items())

    def add(self, extras: tuple[tuple[str, float], ...]) -> None:
        """What a Ping has brought."""
        for name, value in extras:
            held = self._values.get(name)
            if held is None:
                if len(self._values) < EXTRAS_MAX and _kind(name):
                    self._values[name] = value
            elif name.startswith(SUM):
                self._values[name] = held + value
            else:
                self._values[name] = (min if name.startswith(MINIMUM) else max)(held, value)

    def divide(self, parts: int) -> None:
        """Keep one of so many equal parts of each sum."""
        for name in self._values:
            if name.startswith(SUM):
                self._values[name] /= parts

    def results(self, fish: float) -> dict[str, float]:
        """What they stand for in the whole network."""
        return {
            name: value / fish if name.startswith(SUM) else value
            for name, value in self._values.items()
        }


def checked(name: str, value: float) -> None:
    """Refuse a column that no Ping could carry."""
    if not _kind(name) or len(name) > EXTRA_NAME_CHARS_MAX:
        raise UsageError(
            f"column {name!r}: write s:, min: or max: and a name,"
            f" {EXTRA_NAME_CHARS_MAX} characters at most"
        )
    if not isfinite(value) or abs(value) > EXTRA_MAX:
        raise UsageError(f"{name} is {value}: write a number of at most {EXTRA_MAX:g} either way")


def _kind(name: str) -> str:
    return next((kind for kind in (SUM, MINIMUM, MAXIMUM) if name.startswith(kind)), "")
