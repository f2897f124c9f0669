"""What goes wrong in a fleet on purpose, and is therefore known: the ground truth of alerts."""

from __future__ import annotations

import msgspec


class Stuck(msgspec.Struct, frozen=True):
    """A vehicle stood still between stops; times in seconds since the fleet's start."""

    vehicle: str
    route: str
    direction: int
    start_s: float
    end_s: float


class Bunch(msgspec.Struct, frozen=True):
    """One vehicle went close behind another for a whole trip, from when both were on the way until
    the first of them arrived."""

    route: str
    direction: int
    vehicles: tuple[str, str]
    start_s: float
    end_s: float


class Dropout(msgspec.Struct, frozen=True):
    """Nothing was heard of a vehicle; `held` messages came afterwards, others never."""

    vehicle: str
    start_s: float
    end_s: float
    held: bool


class Incidents(msgspec.Struct, frozen=True):
    """All of them, in no particular order."""

    stuck: tuple[Stuck, ...]
    bunches: tuple[Bunch, ...]
    dropouts: tuple[Dropout, ...]
