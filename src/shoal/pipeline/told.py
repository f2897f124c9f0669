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


class Figures(msgspec.Struct, frozen=True):
    """Those that are in no table."""

    prediction: Prediction | None = None


class PairFigures(msgspec.Struct, frozen=True):
    """The same, of a run that counted pairs: without them counts mean nothing."""

    overlays: Count
    degree: Count
    block_p_value: float | None = None


class Result(msgspec.Struct, frozen=True):
    """What the run gave."""

    figures: Figures = Figures()
    replay: str = ""


class PairResult(msgspec.Struct, frozen=True):
    """The same, of a run that counted pairs."""

    figures: PairFigures


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


def check_told(content: bytes, *, pairs: bool) -> None:
    """msgspec.DecodeError, which names the field, if a file says something of another type."""
    msgspec.json.decode(content, type=RunTold)
    if pairs:
        msgspec.json.decode(content, type=PairsTold)
