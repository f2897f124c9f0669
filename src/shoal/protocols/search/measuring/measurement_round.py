"""One round of the measurement at one node: its water, its fish, and whether they are at rest."""

from __future__ import annotations

from collections import deque
from math import isfinite
from typing import NamedTuple

from shoal.base.errors import UsageError
from shoal.protocols.search.config import EXTRA_NAME_CHARS_MAX, EXTRAS_MAX
from shoal.protocols.search.measuring.plausibility import EXTRA_MAX
from shoal.protocols.search.messages import EdgeName, Ping, Totals

NO_FISH = -(1 << 63)  # smaller than any
NOTHING = Totals(0.0, 0.0, 0.0)
SHARES_MAX = 20  # so many quick beats pass until a silent neighbour counts as gone


class Share(NamedTuple):
    """What each neighbour gets at a beat."""

    round: int
    fish_size: int
    totals: Totals
    fish: float
    extras: tuple[tuple[str, float], ...]

    def ping(self, edge: EdgeName | None) -> Ping:
        """The message; without an edge it is a leaver's last."""
        return Ping(edge, self.round, self.fish_size, self.totals, self.fish, self.extras)


class Lake:
    """What this node holds of one round."""

    def __init__(
        self,
        number: int,
        totals: Totals = NOTHING,
        fish: float = 0.0,
        fish_size: int = NO_FISH,
        columns: dict[str, float] | None = None,
    ) -> None:
        self.number = number
        self.receipts = 0
        self.beats = 0
        self._nodes, self._degrees, self._squares = totals.nodes, totals.degrees, totals.squares
        self._fish = fish
        self._fish_size = fish_size
        self._columns = Columns(columns or {})
        self._anchor = NOTHING
        """The estimate when it moved last."""
        self._still = 0
        """Receipts since then."""
        self._sent: deque[Share] = deque(maxlen=SHARES_MAX)

    @property
    def estimate(self) -> Totals | None:
        """What the water stands for; None before the first fish."""
        fish = self._fish
        if fish <= 0:
            return None
        return Totals(self._nodes / fish, self._degrees / fish, self._squares / fish)

    @property
    def columns(self) -> dict[str, float]:
        """What user-defined columns stand for; needs fish."""
        return self._columns.results(self._fish)

    def divide(self, parts: int) -> Share:
        """Keep one of so many equal parts; all others are like it."""
        self.beats += 1
        self._nodes /= parts
        self._degrees /= parts
        self._squares /= parts
        self._fish /= parts
        self._columns.divide(parts)
        share = self.all()
        self._sent.append(share)
        return share

    def all(self) -> Share:
        """Everything that is here."""
        totals = Totals(self._nodes, self._degrees, self._squares)
        return Share(self.number, self._fish_size, totals, self._fish, self._columns.values)

    def receive(self, ping: Ping, rest: float) -> int:
        """A part of this round. For how many receipts nothing has moved by more than `rest`."""
        self.receipts += 1
        self._add(ping.totals, ping.fish, ping.fish_size, ping.extras)
        now = self.estimate
        if now is None or not _is_near(now, self._anchor, rest):
            self._anchor = now or NOTHING
            self._still = 0
        else:
            self._still += 1
        return self._still

    def take_back(self, beats: int) -> None:
        """The shares of the last beats that one neighbour did not live to pass on."""
        for share in list(self._sent)[-beats:] if beats > 0 else ():
            self._add(share.totals, share.fish, share.fish_size, share.extras)

    def _add(
        self, totals: Totals, fish: float, fish_size: int, extras: tuple[tuple[str, float], ...]
    ) -> None:
        self._nodes += totals.nodes
        self._degrees += totals.degrees
        self._squares += totals.squares
        self._columns.add(extras)
        if fish <= 0:
            return  # where there is no fish, none is eaten
        if fish_size > self._fish_size:
            self._fish_size, self._fish = fish_size, fish
        elif fish_size == self._fish_size:
            self._fish += fish


def _is_near(now: Totals, anchor: Totals, rest: float) -> bool:
    return (
        abs(now.nodes - anchor.nodes) <= rest * anchor.nodes
        and abs(now.degrees - anchor.degrees) <= rest * anchor.degrees
        and abs(now.squares - anchor.squares) <= rest * anchor.squares
    )


# Columns that users measure beside D0, D1 and D2: sums, minima and maxima over all nodes.
#
# A sum is water like the others: it is divided with every beat, and fish tell what it stands for. A
# minimum or maximum is passed on as it is; whoever knows a better one forgets it. Nodes need not
# know a column to carry it. Above EXTRAS_MAX a column that is new here is left out, so its sum
# comes out too low: users of one network have to agree on that many.


SUM, MINIMUM, MAXIMUM = "s:", "min:", "max:"


class Columns:
    """One round's part of the columns at this node."""

    def __init__(self, own: dict[str, float]) -> None:
        self._values = dict(own)

    @property
    def values(self) -> tuple[tuple[str, float], ...]:
        """As a Ping carries them."""
        return tuple(self._values.items())

    def add(self, extras: tuple[tuple[str, float], ...]) -> None:
        """What a Ping has brought."""
        for name, value in extras:
            held = self._values.get(name)
            if held is None:
                if len(self._values) < EXTRAS_MAX and _kind(name):
                    self._values[name] = value
            elif name.startswith(SUM):
                self._values[name] = held + value
            else:
                self._values[name] = (min if name.startswith(MINIMUM) else max)(held, value)

    def divide(self, parts: int) -> None:
        """Keep one of so many equal parts of each sum."""
        for name in self._values:
            if name.startswith(SUM):
                self._values[name] /= parts

    def results(self, fish: float) -> dict[str, float]:
        """What they stand for in the whole network."""
        return {
            name: value / fish if name.startswith(SUM) else value
            for name, value in self._values.items()
        }


def checked(name: str, value: float) -> None:
    """Refuse a column that no Ping could carry."""
    if not _kind(name) or len(name) > EXTRA_NAME_CHARS_MAX:
        raise UsageError(
            f"column {name!r}: write s:, min: or max: and a name,"
            f" {EXTRA_NAME_CHARS_MAX} characters at most"
        )
    if not isfinite(value) or abs(value) > EXTRA_MAX:
        raise UsageError(f"{name} is {value}: write a number of at most {EXTRA_MAX:g} either way")


def _kind(name: str) -> str:
    return next((kind for kind in (SUM, MINIMUM, MAXIMUM) if name.startswith(kind)), "")
