"""Names of rows and lines, which must be told from one another."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from shoal.pipeline.jobs.collected import Point


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
