"""What the demo's processes tell each other, one JSON object a line over pipes."""

from __future__ import annotations

import msgspec

from shoal.node.network_file import PeerEntry


class Work(msgspec.Struct, frozen=True):
    """To a worker, once: be these nodes."""

    tracker: PeerEntry
    stream: str
    folder: str
    names: tuple[str, ...]
    drop: int = 0
    """How many messages the first subscriber here loses on purpose."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """To the publisher: begin."""

    rate: float
    size_bytes: int
    seconds: float | None


class Hush(msgspec.Struct, frozen=True, tag=True):
    """To the publisher: publish no more."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To anyone: say your last Figures, and end."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a worker: all its nodes have their place in the overlay."""

    nodes: int


class Figures(msgspec.Struct, frozen=True, tag=True):
    """From a worker, every now and then, and at the end: sums since its start."""

    published: int
    received: int
    delivered: int
    duplicates: int
    degrees: tuple[int, ...]
    ages_tenth_ms: dict[int, int]
    """Deliveries by age, in tenths of a millisecond, coarser for large ones."""
    publishing: bool
    cpu_seconds: float


ToWorker = Start | Hush | Stop
FromWorker = Ready | Figures
