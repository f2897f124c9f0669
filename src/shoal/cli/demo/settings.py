"""What a demo is asked to do."""

from __future__ import annotations

import msgspec


class DemoSettings(msgspec.Struct, frozen=True):
    """The Helsinki vehicle stream of the paper, on one machine."""

    nodes: int = 16
    processes: int = 4
    degree: int = 4
    rate: float = 653.0
    size_bytes: int = 308
    seconds: float | None = None
    drop: int = 0
