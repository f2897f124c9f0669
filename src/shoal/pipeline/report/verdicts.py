"""All that ours is held against in one place: what the sources publish, apart from what follows
from it, from what theory allows, from what the simulator gives and from what we claim ourselves."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.pipeline.report.model import Against, Comparison, Section, Table
from shoal.pipeline.report.numbers import NOTHING, percent

CAPTIONS: dict[Against, str] = {
    "source": "Figures that the sources publish, and ours.",
    "derived": "Figures that no source publishes, and what follows from figures that one does.",
    "theory": "Figures that no source publishes, and what theory gives or allows.",
    "simulator": "Runs over sockets, and what the simulator gives for the same settings and seed.",
    "own": "What we claim ourselves: errors, and the limit that we set them.",
}
COLUMNS: dict[Against, tuple[str, str]] = {
    "source": ("published", "spread"),
    "derived": ("derived", "spread"),
    "theory": ("expected", "bounds"),
    "simulator": ("simulated", "bounds"),
    "own": ("limit", "bounds"),
}


def verdict_section(comparisons: Sequence[Comparison]) -> Section:
    """A table for each of what ours is held against."""
    tables = tuple(
        _table(against, those) for against, those in _by_kind(comparisons).items() if those
    )
    return Section(title="Verdicts", blocks=tables)


def summarise_verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """How many of them are as they should be, and each one that is not."""
    found = _by_kind(comparisons)
    lines = []
    if source := found["source"]:
        good = [told for told in source if told.reproduced]
        inside = sum(bool(told.inside) for told in good)
        errors = sum(told.at_most and not told.inside for told in good)
        near = len(good) - inside - errors
        lines.append(
            f"Of {len(source)} figures that the sources publish, {len(good)} are reproduced: "
            f"{inside} inside the published spread, {near} within our tolerance of the published "
            f"value, {errors} as errors no higher than the published one."
        )
    if derived := found["derived"]:
        lines.append(
            f"Of {len(derived)} figures that follow from published ones, {_good(derived)} are "
            "reproduced."
        )
    if theory := found["theory"]:
        lines.append(
            f"Of {len(theory)} figures that theory gives or bounds, {_good(theory)} are consistent "
            "with it."
        )
    if simulator := found["simulator"]:
        lines.append(
            f"Over sockets, {_good(simulator)} of {len(simulator)} mean delays lie within "
            f"{100 * simulator[0].tolerance:g} % of the simulator's."
        )
    if own := found["own"]:
        lines.append(f"Of {len(own)} limits of our own, {_good(own)} are kept.")
    outside = [told for told in comparisons if not told.reproduced]
    return lines + [
        f"Outside: {told.figure} ({told.point}): {_short(told.ours)}, {_held_against(told)}."
        for told in outside
    ]


def _good(comparisons: Sequence[Comparison]) -> int:
    return sum(told.reproduced for told in comparisons)


def _by_kind(comparisons: Sequence[Comparison]) -> dict[Against, list[Comparison]]:
    return {kind: [told for told in comparisons if told.against == kind] for kind in CAPTIONS}


def _held_against(told: Comparison) -> str:
    value, _ = COLUMNS[told.against]
    return f"{value} {_spread(told) if told.reference is None else _short(told.reference)}"


def _table(against: Against, comparisons: Sequence[Comparison]) -> Table:
    return Table(
        caption=CAPTIONS[against],
        columns=("figure", "point", *COLUMNS[against], "ours", "difference", "verdict"),
        rows=tuple(
            (
                told.figure,
                told.point,
                NOTHING if told.reference is None else _short(told.reference),
                _spread(told),
                _short(told.ours),
                percent(told.difference, signed=True),
                told.verdict,
            )
            for told in comparisons
        ),
        left=2,
    )


def _spread(told: Comparison) -> str:
    return NOTHING if told.spread is None else f"{told.spread[0]:.4g}–{told.spread[1]:.4g}"


def _short(value: float) -> str:
    return f"{value:.5g}"
