"""What a run's own file may say that a report makes use of, and of which type it must be then.

Whatever else is in it is for people. A file that says a word where a number belongs is damaged, and
found to be before anything is made of it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]


class Prediction(msgspec.Struct, frozen=True):
    """What the tracker foretold."""

    estimated_ms: float | None = None
    error_percent: float | None = None
    mape_percent: float | None = None


class Packets(msgspec.Struct, frozen=True):
    """What links did with packets, where they lose some, and whether the machine kept up."""

    packets: int
    dropped: int
    """Because links were told to."""
    overflowed: int
    """Without being asked: a queue was full."""
    host_late_us_mean: float
    """How much later than planned messages were published."""


class Held(msgspec.Struct, frozen=True):
    """Over sockets: how late frames were given."""

    late_ms_mean: float


class Figures(msgspec.Struct, frozen=True):
    """Those that are in no table."""

    prediction: Prediction | None = None
    network: Packets | None = None
    """Of runs under packet loss."""
    held: Held | None = None


class PairFigures(msgspec.Struct, frozen=True):
    """The same, of a run that counted pairs: without them counts mean nothing."""

    overlays: Count
    degree: Count
    block_p_value: float | None = None


class Times(msgspec.Struct, frozen=True):
    """How long something took, in milliseconds."""

    p50: float
    p99: float


class OverNodes(msgspec.Struct, frozen=True):
    """How something is spread over nodes."""

    mean: float
    sd: float
    p95: float
    p99: float
    max: float


class Messages(msgspec.Struct, frozen=True):
    """Of one protocol."""

    per_event: float
    sent: OverNodes
    received: OverNodes


class TopicFigures(msgspec.Struct, frozen=True):
    """The figures of a run of topics: what counts them is not in its tables."""

    issued: int
    injected: int
    coverage_percent: float
    coverage_of_issued_percent: float
    copies_per_delivery: float
    network_mib: float
    wrong: int
    rpc: Messages
    topic_state_bytes: OverNodes
    dht_state_bytes: OverNodes
    dht: Messages | None = None
    delivery_ms: Times | None = None
    to_100_ms: Times | None = None
    run_to_100_s: float | None = None


class Result(msgspec.Struct, frozen=True):
    """What the run gave."""

    figures: Figures = Figures()
    replay: str = ""


class PairResult(msgspec.Struct, frozen=True):
    """The same, of a run that counted pairs."""

    figures: PairFigures


class TopicResult(msgspec.Struct, frozen=True):
    """The same, of a run of topics."""

    figures: TopicFigures


class Provenance(msgspec.Struct, frozen=True):
    """What made it."""

    commit: str = ""
    shoal: str = ""
    python: str = ""
    machine: str = ""
    packages: dict[str, str] = {}


class RunTold(msgspec.Struct, frozen=True):
    """The file."""

    seed: int = 0
    scenario: dict[str, Any] = {}
    result: Result = Result()
    provenance: Provenance = Provenance()


class PairsTold(msgspec.Struct, frozen=True):
    """The same, of a run that counted pairs."""

    result: PairResult


class TopicsTold(msgspec.Struct, frozen=True):
    """The same, of a run of topics."""

    result: TopicResult


def check_told(content: bytes, *, pairs: bool, topics: bool = False) -> None:
    """msgspec.DecodeError, which names the field, if a file says something of another type."""
    msgspec.json.decode(content, type=RunTold)
    if pairs:
        msgspec.json.decode(content, type=PairsTold)
    if topics:
        msgspec.json.decode(content, type=TopicsTold)
