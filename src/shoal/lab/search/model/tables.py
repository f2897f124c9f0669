"""The tables of a run of the model, and of what is looked at as the model looks at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from shoal.kernel.tables import run_table_schema
from shoal.lab.search.model.figures import StageFigures
from shoal.lab.search.model.gossip import Step


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
