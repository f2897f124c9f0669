"""What happens in a soak test, drawn from a seed before it begins.

The plan is the same for the same seed. What comes of it is not: real processes and sockets take as
long as they take, and that is half the point.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

Kind = Literal["join", "leave", "start", "kill", "kill early", "reset"]

KINDS: tuple[Kind, ...] = ("join", "leave", "start", "kill", "kill early", "reset")
WEIGHTS = (36, 27, 7, 6, 2, 22)
CLOSES: dict[Kind, Kind] = {"leave": "join", "kill": "start", "kill early": "start"}

GUESTS_MAX, PROCESSES_MAX = 6, 2
PAUSE_MAX_S = 0.06


class Event(msgspec.Struct, frozen=True):
    """One thing that happens, to whom (by number), and the pause before the next."""

    kind: Kind
    who: int
    pause_s: float


def plan(rng: Random, events: int) -> list[Event]:
    """So many events, at the end of which every guest has left and every process is killed."""
    most: dict[Kind, int] = {"join": GUESTS_MAX, "start": PROCESSES_MAX}
    here: dict[Kind, list[int]] = {"join": [], "start": []}
    planned: list[Event] = []
    while len(planned) < events:
        (kind,) = rng.choices(KINDS, WEIGHTS)
        room = events - len(planned) - sum(map(len, here.values()))  # beside all that must end
        if kind in here:
            if room < 2 or len(here[kind]) == most[kind]:
                continue
            who = len(planned)
            here[kind].append(who)
        elif kind in CLOSES:
            present = here[CLOSES[kind]]
            if not present:
                continue
            who = present.pop(rng.randrange(len(present)))
        elif room:
            who = rng.randrange(1 << 16)
        else:
            continue
        planned.append(Event(kind, who, rng.random() * PAUSE_MAX_S))
    return planned
