"""What a finished run gave, beside what was published for the same setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from shoal.explorer.run_files import RunFile
from shoal.pipeline.report import published
from shoal.pipeline.report.as_published import (
    fault_kinds,
    network_as_published,
    topics_as_published,
)
from shoal.pipeline.report.model import Comparison
from shoal.pipeline.run_settings import flat_settings

FIGURES_MAX = 64  # rows


class ShownFigure(msgspec.Struct, frozen=True):
    """A figure of the run, and the published one if there is one for its setting."""

    name: str
    ours: float | str
    published: float | None = None
    spread: tuple[float, float] | None = None
    difference: float | None = None
    verdict: str = ""


def shown_figures(file: RunFile) -> list[ShownFigure]:
    """First those with something to compare, then all others."""
    compared = [
        ShownFigure(
            told.figure,
            told.ours,
            told.published,
            told.spread,
            told.difference,
            # Without a spread or a tolerance there is a difference, and no verdict.
            told.verdict if told.spread or told.tolerance or told.at_most else "",
        )
        for told in comparisons(file)
    ]
    others = [ShownFigure(name, value) for name, value in _flat(file.figures)]
    return [*compared, *others][:FIGURES_MAX]


def comparisons(file: RunFile) -> Iterator[Comparison]:
    """Published figures of the same setting; a run of another one has none."""
    kind = (file.setting("protocol"), file.setting("experiment"))
    if kind == ("streams", "delivery"):
        yield from _delivery(file)
    elif kind == ("topics", "reddit"):
        yield from _coverage(file)


def _delivery(file: RunFile) -> Iterator[Comparison]:
    figures, nodes = file.figures, file.setting("network", "nodes")
    delay, hops = figures.get("delay_ms"), figures.get("hops")
    settings = flat_settings(file.scenario)
    as_published = network_as_published(settings) and not fault_kinds(settings)
    if not as_published or not delay or not hops:
        return
    point = f"{nodes:,} nodes"
    size = published.propagation().get(nodes)
    if size is not None:
        yield Comparison(
            figure="mean delay, ms",
            point=point,
            published=size.mean_ms,
            spread=(size.min_ms, size.max_ms),
            ours=delay["mean"],
            tolerance=published.MEAN_TOLERANCE,
        )
    if nodes == published.P99_NODES:
        yield Comparison(
            figure="99 % of deliveries within, ms",
            point=point,
            published=published.P99_MS,
            spread=None,
            ours=delay["p99"],
            tolerance=published.P99_TOLERANCE,
        )
        yield Comparison(
            figure="relative delay penalty",
            point=point,
            published=published.RDP,
            spread=None,
            ours=delay["mean"] / published.UNICAST_MS,
            tolerance=published.MEAN_TOLERANCE,
        )
    if nodes == published.REDUNDANCY_NODES:
        low, high = published.REDUNDANCY_D4
        yield Comparison(
            figure="duplicates per message and node",
            point=point,
            published=(low + high) / 2,
            spread=published.REDUNDANCY_D4,
            ours=figures["duplicates_per_message"],
        )


def _coverage(file: RunFile) -> Iterator[Comparison]:
    options, figures = file.setting("options") or {}, file.figures
    floods = options.get("system") == "floodsub"
    ordered, slow = bool(options.get("ordered")) and not floods, bool(options.get("slow"))
    system = "floodsub" if floods else "pulsarcast"
    told = published.coverage().get((system, ordered, slow))
    as_published = topics_as_published(flat_settings(file.scenario))
    if not as_published or told is None or "coverage_percent" not in figures:
        return
    yield Comparison(
        figure="deliveries of accepted events that came, %",
        point=system,
        published=told.of_published_percent,
        spread=None,
        ours=figures["coverage_percent"],
    )
    yield Comparison(
        figure="deliveries of all events that came, %",
        point=system,
        published=told.of_injected_percent,
        spread=None,
        ours=figures["coverage_of_issued_percent"],
    )


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, float | str]]:
    """Numbers and words of nested figures, each under its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name} {key}".strip().replace("_", " "))
    elif isinstance(value, bool):
        yield name, "yes" if value else "no"
    elif isinstance(value, int | float | str):
        yield name, value
