"""What is known of a chain that is being repaired."""

from __future__ import annotations

import msgspec

from shoal.base.ids import NodeId
from shoal.identity.stream_message import Position
from shoal.protocols.streams.duplicates import Number
from shoal.protocols.streams.history.messages import FilledFromStorage
from shoal.protocols.streams.messages import Head
from shoal.protocols.streams.placed import Chain


class Broken(msgspec.Struct):
    """A chain of which something is missing."""

    since_ns: int
    upto: Number | None = None  # what Heads told of beyond what we have
    tries: int = 0
    first: int = 0  # where among the neighbours asking began
    asked: NodeId | None = None
    asked_ns: int = 0
    answers_due: int = 0  # of the one who was asked
    along: Number | None = None  # up to where gaps were asked for along with the first one
    range: tuple[Number, Number] | None = None  # what was missing when it was last looked at
    alone_ns: int | None = None  # since when there is no neighbour
    held_off_ns: int | None = None  # since when it would be given up, and some of it is here
    unsure: bool = False  # it would be given up, but our clock has just been set
    storage_ns: int | None = None  # when storage was first asked
    storage_again_ns: int = 0  # when it may be asked again, if it did not answer
    storage_done: bool = False  # and it has answered
    storage_gives: bool = False  # what it answered is of use
    page_ends: Number | None = None  # with this, and is being checked
    page_ns: int = 0  # since when

    def holds_off(
        self,
        chain: Chain,
        missing: tuple[Number, Number],
        here: list[Head],
        now_ns: int,
        freshness_ns: int,
    ) -> bool:
        """Whether some of what would be given up is here, and not too old to be taken."""
        upto = missing[1] if self.along is None else max(missing[1], self.along)
        if not any(head[0] == chain and missing[0] < head[1] <= upto for head in here):
            return False
        if self.held_off_ns is None:
            self.held_off_ns = now_ns
        return now_ns - self.held_off_ns < freshness_ns


def covers(filled: FilledFromStorage, missing: tuple[Number, Number] | None) -> bool:
    """Whether all that is missing now was asked for."""
    if missing is None or filled.after is None or filled.upto is None:
        return True
    after, upto = ends(missing)
    return filled.after <= after and upto <= filled.upto


def ends(missing: tuple[Number, Number]) -> tuple[Position, Position]:
    """A range as it is asked for: there is nothing below the first position."""
    after, upto = (Position(max(0, n[0]), max(0, n[1])) for n in missing)
    return after, upto
