"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from shoal_lab.report.analysis.report_data import Point, Spread

NOTHING = "–"


def number(value: float | None, digits: int = 1) -> str:
    """With separators, and a dash for what is not known."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def percent(part: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """A part of one, in per cent."""
    if part is None:
        return NOTHING
    return f"{100 * part:{'+' if signed else ''}.{digits}f} %"


def spread(value: Spread | None, digits: int = 1) -> str:
    """The mean, with least and greatest where there are several."""
    if value is None:
        return NOTHING
    if value.repeats == 1:
        return number(value.mean, digits)
    return f"{number(value.mean, digits)} ({between(value.min, value.max, digits)})"


def between(low: float, high: float, digits: int = 1) -> str:
    """From the least to the greatest."""
    return f"{number(low, digits)}–{number(high, digits)}"


# Names of rows and lines, which must be told from one another.


def tell_apart(
    names: Sequence[str], points: Sequence[Point], shown: Sequence[Hashable] = ()
) -> list[str]:
    """The names of points, with scenario and label of those that share one. `shown` is all that
    stands in a row besides its results, if that is more than a name."""
    keys = list(shown or names)
    return [
        name if keys.count(key) == 1 else f"{name} ({point.scenario}, {point.label})"
        for name, key, point in zip(names, keys, points, strict=True)
    ]
