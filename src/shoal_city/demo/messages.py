"""What the demo's processes tell each other, one JSON object a line over pipes."""

from __future__ import annotations

import msgspec

from shoal.config.network_file import NetworkFile

# To them


class Work(msgspec.Struct, frozen=True):
    """To a worker, once: be these nodes."""

    network: NetworkFile
    stream: str
    folder: str
    names: tuple[str, ...]
    drop: int = 0
    """How many messages the first subscriber here loses on purpose."""
    alerts: str | None = None
    """A stream that the last node here listens to as well."""


class StationWork(msgspec.Struct, frozen=True):
    """To the station, once: keep the streams, and publish what Spark hands in."""

    network: NetworkFile
    listen: str


class SparkWork(msgspec.Struct, frozen=True):
    """To Spark's driver, once: run these queries."""

    servers: str
    outbox: str
    token: str
    stream: str
    tables: dict[str, str]
    """The streams that tables go to."""
    folder: str


class Start(msgspec.Struct, frozen=True, tag=True):
    """To the publisher: begin."""

    rate: float
    size_bytes: int
    seconds: float | None
    fleet: bool = False
    """Vehicles of a city, and not just numbered messages."""


class Hush(msgspec.Struct, frozen=True, tag=True):
    """To the publisher: publish no more."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To anyone: say your last figures, and end."""


# From them


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a worker: all its nodes have their place in the overlay. From Spark: queries run."""


class Open(msgspec.Struct, frozen=True, tag=True):
    """From the station: here are its gateways."""

    servers: str
    outbox: str


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
    alerts: int = 0
    """That came to the subscriber here."""


class StationFigures(msgspec.Struct, frozen=True, tag=True):
    """From the station, every now and then."""

    waiting_parts: int
    """Of what Spark handed in, and that is not yet stored."""
    problem: str | None
    cpu_seconds: float


class SparkFigures(msgspec.Struct, frozen=True, tag=True):
    """From Spark's driver, every now and then, and at the end."""

    rows: dict[str, int]
    """Messages that each query has read."""
    out: dict[str, int]
    """Rows that each has published."""
    batches: int
    """Of all queries."""
    slowest_s: float
    """The longest batch."""
    busy: bool
    """A batch runs now."""


ToWorker = Start | Hush | Stop
FromChild = Ready | Open | Figures | StationFigures | SparkFigures

# What a demo is asked to do.


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
