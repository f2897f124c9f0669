"""What a run of the model found, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from shoal_lab.experiments.search_model.gossip import Step
from shoal_lab.runs.run_tables import run_table_schema
from shoal_lab.scenarios.experiment_kinds import Rows


class MatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Bubbles of one certainty: how many pairs of data and query met."""

    certainty: float
    data: str
    """"new": as old as the stage; "old": from before the event."""
    data_size: int
    query_size: int
    pairs: int
    matched: float
    error: float
    """Its standard error."""
    theory: float
    """1 - exp(-c^2)."""
    reached: float
    """Nodes that a query came to, in the mean."""
    messages: float
    """That a query took."""
    collisions: float
    """Of those, to nodes that had it already."""
    hops_max: int
    hops_bound: int
    """ceil(log2 n + log2 c + 1)."""


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that nodes of one degree received."""

    degree: int
    nodes: int
    messages: int


class StageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The network before the event, or in a state after it."""

    stage: str
    nodes: int
    """Living ones."""
    edges: int
    """Of the living, with each other."""
    largest_part: float
    """Of the living, in the largest component."""
    threshold: float
    """T as the nodes know it; 0 where they flood."""
    matches: tuple[MatchFigures, ...]
    loads: tuple[LoadFigures, ...]

    @property
    def load_spread(self) -> tuple[float, float]:
        """Messages per edge of the nodes of one degree over those of all, least and most.

        Degrees that few nodes have are left out: their figures are noise.
        """
        edges = sum(load.degree * load.nodes for load in self.loads)
        messages = sum(load.messages for load in self.loads)
        some = [load for load in self.loads if load.degree and load.nodes * 100 >= self.nodes]
        if not messages or not some:
            return 0.0, 0.0
        each = [load.messages / (load.degree * load.nodes) * edges / messages for load in some]
        return min(each), max(each)


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One network, and what became of it."""

    nodes: int
    locations: str
    event: str
    stages: tuple[StageFigures, ...]
    repair_rounds: int
    """Of walks, after a crash."""
    splits: int
    """Edges that were split in them."""
    steps: tuple[int | None, ...]
    """Beats until 99 % of the nodes of the last stage had D0, D1 and D2 within 5 %, for each holder
    of the largest fish; None: never, since a network in parts has no one fish for all."""

    @property
    def last(self) -> StageFigures:
        """The stage in which the network stayed."""
        return self.stages[-1]


def model_rows(figures: ModelFigures) -> Rows:
    """All of it, for a table."""
    rows = [("network", f"{figures.nodes:,} nodes of {figures.locations} locations")]
    if figures.event != "none":
        rows.append(("event", figures.event))
    for stage in figures.stages:
        rows += stage_rows(stage)
    if figures.splits:
        rows.append(("repair", f"{figures.splits:,} edges split in {figures.repair_rounds} rounds"))
    if figures.steps:
        rows.append(("measurement", f"within 5 % at 99 % of the nodes after {_steps(figures)}"))
    return rows


def model_line(figures: ModelFigures) -> str:
    """The most important ones: the last stage, and the largest differences from theory."""
    last = figures.last
    parts = [f"{last.nodes:,} nodes {last.stage}, largest part {last.largest_part:.2%}"]
    parts += worst_match(last)
    if figures.steps:
        parts.append(f"measured after {_steps(figures)}")
    return ", ".join(parts)


def stage_rows(stage: StageFigures) -> Rows:
    """One stage, for a table."""
    rows = [(stage.stage, _stage(stage))]
    rows += [(f"  c = {m.certainty:g}, {m.data} data", _match(m)) for m in stage.matches]
    if stage.matches:
        low, high = stage.load_spread
        rows.append(("  load per edge", f"{low:.3f} to {high:.3f} of the mean, by degree"))
    return rows


def worst_match(stage: StageFigures) -> list[str]:
    """How far new data was off theory, if there was any."""
    new = [match for match in stage.matches if match.data == "new"]
    if not new:
        return []
    worst = max(new, key=lambda match: abs(match.matched - match.theory))
    off = worst.matched - worst.theory
    return [f"matches off theory by {off:+.4f} at most (c = {worst.certainty:g})"]


def _stage(stage: StageFigures) -> str:
    return (
        f"{stage.nodes:,} nodes, {stage.edges:,} edges, {stage.largest_part:.3%} of them in the "
        f"largest part, T = {stage.threshold:,.0f}"
    )


def _match(match: MatchFigures) -> str:
    return (
        f"{match.matched:.4f} ± {match.error:.4f} of {match.pairs:,} pairs, theory "
        f"{match.theory:.4f}; {match.reached:,.0f} of {match.query_size:,} nodes reached with "
        f"{match.messages:,.0f} messages{_hops(match)}"
    )


def _hops(match: MatchFigures) -> str:
    """A simulation whose hops take different times does not tell them: -1."""
    return "" if match.hops_max < 0 else f" in {match.hops_max} of {match.hops_bound} hops"


def _steps(figures: ModelFigures) -> str:
    told = ["never" if steps is None else str(steps) for steps in figures.steps]
    return f"{', '.join(told)} steps"


# The tables of a run of the model, and of what is looked at as the model looks at it.


def model_tables(
    run: str, stages: Sequence[StageFigures], steps: Sequence[Step]
) -> dict[str, pa.Table]:
    """Those that have rows; `search_stages` always."""
    states = [
        {
            "stage": stage.stage,
            "nodes": stage.nodes,
            "edges": stage.edges,
            "largest_part": stage.largest_part,
            "threshold": stage.threshold,
        }
        for stage in stages
    ]
    matches = [
        {"stage": stage.stage, **_fields(match)} for stage in stages for match in stage.matches
    ]
    loads = [
        {"stage": stage.stage, **_fields(load)}
        for stage in stages
        if stage.matches
        for load in stage.loads
    ]
    made = {
        "search_stages": states,
        "search_matches": matches,
        "search_loads": loads,
        "search_steps": [step._asdict() for step in steps],
    }
    return {name: rows_table(name, run, rows) for name, rows in made.items() if rows}


def _fields(struct: Any) -> Mapping[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def rows_table(name: str, run: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One table of a run."""
    schema = run_table_schema(name)
    return pa.Table.from_pylist([{"run": run, **row} for row in rows], schema=schema)
