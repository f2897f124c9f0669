"""What a demo is asked to do."""

from __future__ import annotations

import msgspec

NODES, NODES_WITH_SPARK = 16, 8
PROCESSES, PROCESSES_WITH_SPARK = 4, 2  # Spark has the other half of a small machine


class DemoSettings(msgspec.Struct, frozen=True):
    """The Helsinki vehicle stream of the paper, on one machine."""

    nodes: int = NODES
    processes: int = PROCESSES
    degree: int = 4
    rate: float = 653.0
    size_bytes: int = 308
    seconds: float | None = None
    drop: int = 0
    spark: bool = False
    """The whole story: a fleet, Spark's queries over its stream, and alerts that come back."""
