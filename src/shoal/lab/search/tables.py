"""The tables of simulated search networks: those of the model, and what only time brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from shoal.lab.search.model.figures import StageFigures
from shoal.lab.search.model.gossip import Step
from shoal.lab.search.model.tables import model_tables, rows_table
from shoal.lab.search.moments import Moment


def search_tables(
    run: str,
    stages: Sequence[StageFigures],
    *,
    steps: Sequence[Step] = (),
    moments: Sequence[Moment] = (),
    watches: Sequence[Mapping[str, int]] = (),
) -> dict[str, pa.Table]:
    """Those that have rows; `search_stages` always."""
    made = model_tables(run, stages, steps)
    if moments:
        made["search_moments"] = rows_table("search_moments", run, [_row(m) for m in moments])
    if watches:
        made["search_watches"] = rows_table("search_watches", run, watches)
    return made


def _row(moment: Moment) -> dict[str, Any]:
    shape: dict[str, Any] = msgspec.structs.asdict(moment.shape)
    del shape["edges"]  # of stages only
    return {"time_s": moment.time_s, **shape, **msgspec.structs.asdict(moment.found)}
