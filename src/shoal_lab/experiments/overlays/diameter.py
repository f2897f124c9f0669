"""How wide overlays are: hops between all pairs, and the published bounds of the diameter.

The bounds are those of Bollobás and Fernandez de la Vega for random d-regular graphs, as the paper
gives them: they hold for almost all graphs as n grows, and for any epsilon above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from shoal.base.errors import InvariantViolated
from shoal_lab.experiments.overlays.growing import (
    OVERLAY_SETTINGS,
    Ends,
    OverlayOptions,
    options_of,
    overlay_cost,
    surveyed,
)
from shoal_lab.scenarios.experiment_kinds import ExperimentKind, Rows
from shoal_lab.scenarios.scenario import Scenario

EPSILON = 0.0  # the limit: a larger one only makes the upper bound looser


class DiameterFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the overlays of a run are like."""

    nodes: int
    degree: int
    overlays: int
    hops_mean: float
    diameter_min: int
    diameter_mean: float
    diameter_max: int
    bound_low: int
    bound_high: int
    within: int
    """Overlays whose diameter lies within the bounds."""


def diameter_bounds(nodes: int, degree: int) -> tuple[int, int]:
    """The published bounds, at least 1 where they say nothing."""
    if nodes < 3:
        return 1, 1
    base, log_n = degree - 1, math.log(nodes)
    low = 1 + math.floor(math.log(nodes, base))
    low += math.floor(math.log((degree - 2) / (6 * degree) * log_n, base))
    high = 1 + math.ceil(math.log((2 + EPSILON) * degree * nodes * log_n, base))
    return max(1, low), high


def hops_between(ends: Ends) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Links on the shortest way between all nodes; infinite where there is none."""
    rows, slots = np.nonzero(ends >= 0)
    links = csr_array((np.ones(len(rows)), (rows, ends[rows, slots])), shape=(len(ends),) * 2)
    hops: np.ndarray[Any, np.dtype[np.float64]] = shortest_path(links, unweighted=True)
    return hops


class DiameterSurvey:
    """Measures each overlay."""

    def __init__(self, nodes: int, degree: int) -> None:
        self.nodes = nodes
        self.degree = degree
        self.bounds = diameter_bounds(nodes, degree)
        self._diameters: list[int] = []
        self._means: list[float] = []

    def add(self, ends: Ends) -> None:
        """One more overlay."""
        hops = hops_between(ends)
        if np.isinf(hops).any():
            raise InvariantViolated("the overlay is not connected")
        self._diameters.append(int(hops.max()))
        self._means.append(float(hops.sum() / max(1, self.nodes * (self.nodes - 1))))

    def figures(self) -> DiameterFigures:
        """All of them together."""
        low, high = self.bounds
        return DiameterFigures(
            nodes=self.nodes,
            degree=self.degree,
            overlays=len(self._diameters),
            hops_mean=sum(self._means) / len(self._means),
            diameter_min=min(self._diameters),
            diameter_mean=sum(self._diameters) / len(self._diameters),
            diameter_max=max(self._diameters),
            bound_low=low,
            bound_high=high,
            within=sum(low <= diameter <= high for diameter in self._diameters),
        )

    def columns(self) -> Mapping[str, Mapping[str, Any]]:
        """The table `diameters`."""
        count = len(self._diameters)
        columns = {
            "overlay": list(range(count)),
            "nodes": [self.nodes] * count,
            "degree": [self.degree] * count,
            "diameter": self._diameters,
            "hops_mean": self._means,
            "bound_low": [self.bounds[0]] * count,
            "bound_high": [self.bounds[1]] * count,
        }
        return {"diameters": columns}


def _make(scenario: Scenario) -> DiameterSurvey:
    return DiameterSurvey(scenario.network.nodes, scenario.network.degree)


def _cost(scenario: Scenario) -> float:
    # All pairs: a square, beside which joins cost little. Measured with 1,024 and 2,048 nodes.
    nodes = scenario.network.nodes
    return overlay_cost(scenario) + options_of(scenario).overlays * nodes * nodes / 100


def _rows(figures: DiameterFigures) -> Rows:
    return [
        ("overlays", f"{figures.overlays:,} of {figures.nodes:,} nodes, degree {figures.degree}"),
        ("hops", f"mean {figures.hops_mean:.2f}, max {figures.diameter_max}"),
        (
            "diameter",
            f"{figures.diameter_min} to {figures.diameter_max}, bounds {figures.bound_low} to "
            f"{figures.bound_high}: {figures.within:,} of {figures.overlays:,} within",
        ),
    ]


def _line(figures: DiameterFigures) -> str:
    return "; ".join(f"{name} {value}" for name, value in _rows(figures))


DIAMETER = ExperimentKind(
    name="streams/diameter",
    run=surveyed(_make),
    figures=DiameterFigures,
    rows=_rows,
    line=_line,
    cost=_cost,
    reads=OVERLAY_SETTINGS,
    options=OverlayOptions,
)
