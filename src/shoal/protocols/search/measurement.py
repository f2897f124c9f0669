"""How large the network is, measured by everybody at once: push-sum with fish (2.2.5).

In each round every node pours water into a lake: 1, its degree, and its degree squared. And it puts
in one unit of fish, of a size by lot. With every beat a node divides all it has into equal parts,
one for each edge and one for itself. Big fish eat smaller ones, so in the end one unit is left, and
spreads like the water. Then water over fish is the same everywhere: the sums D0, D1 and D2. The
first node that finds its values at rest begins the next round, and whoever hears of that follows.

How long that takes is a matter of degrees (figures: docs/search.md). REST decides how precise it
is: the first of all nodes to find its values at rest ends the round for everybody, so the threshold
has to be far below the precision that the last ones shall have. In 10,000 nodes with three
locations each, 0.05 % makes rounds of 22 beats that leave every node within 5 %; 1 % would make
them of 15 beats and leave a fortieth of the nodes outside.

A node that has not come to rest when a new round arrives saves what it has, as in the thesis: it is
within 5 % nearly always. To keep the older result instead was tried: results of nodes that were
still moving a little were right, and older ones out of date. But whoever has not heard a whole
window of a round yet keeps the older one; rounds follow each other that fast if somebody plays with
them, or if two networks meet.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from shoal.base.errors import UsageError
from shoal.protocols.search.belief import Bootstraps, bounded, is_plausible
from shoal.protocols.search.columns import Columns, checked
from shoal.protocols.search.limits import EXTRAS_MAX
from shoal.protocols.search.messages import EdgeName, Ping, Totals
from shoal.protocols.search.rounds import FIRST_ROUND, NO_ROUND, is_newer, next_round

REST = 0.0005  # values that change by less are at rest; see above
WINDOW_MORE = 16  # receipts beside one for each edge in which nothing may change
ROUND_BEATS_MAX = 120  # ten minutes: a round that is kept in motion ends as it is
FISH_SIZE_BITS = 64
NO_FISH = -(1 << 63)
NOTHING = Totals(0.0, 0.0, 0.0)


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


class Measurement:
    """One node's part in all rounds."""

    def __init__(self, rng: Random, rest: float = REST) -> None:
        self._rng = rng
        self._rest = rest
        self.round = NO_ROUND
        self.known: Totals | None = None
        """The last result; until there is one, what neighbours say."""
        self.extras: dict[str, float] = {}
        """Results of user-defined columns."""
        self._bootstraps: Bootstraps | None = Bootstraps()
        self._own: dict[str, float] = {}
        self._reset(NOTHING, 0.0, NO_FISH, {})
        self._strange = 0
        """Receipts in a row that belonged to no round that we could follow."""

    # What this node puts in

    def found(self, degree: int) -> None:
        """We are the whole network: begin the first round."""
        self._bootstraps = None
        self.known = Totals(1.0, float(degree), float(degree * degree))
        self._begin(FIRST_ROUND, degree)

    def told(self, bootstrap: Totals) -> None:
        """What a hello says; it counts until we have a result of our own."""
        if self._bootstraps is not None:
            self.known = self._bootstraps.told(bootstrap)

    def put(self, column: str, value: float) -> None:
        """Take part in a column (s:name, min:name or max:name) from the next round on."""
        checked(column, value)
        if column not in self._own and len(self._own) >= EXTRAS_MAX:
            raise UsageError(
                f"column {column!r} is one more than {EXTRAS_MAX}: withdraw another one first"
            )
        self._own[column] = value

    def withdraw(self, column: str) -> None:
        """Take no part in a column any more, from the next round on."""
        self._own.pop(column, None)

    # What goes out and comes in

    def share(self, degree: int) -> Share:
        """At each beat: what goes over each of our edges, once."""
        self._beats += 1
        if self._beats > ROUND_BEATS_MAX and self.round != NO_ROUND:
            self._end(next_round(self.round), degree)
        parts = degree + 1
        self._nodes /= parts
        self._degrees /= parts
        self._squares /= parts
        self._fish /= parts
        self._columns.divide(parts)
        return self._all()

    def hand_over(self) -> Share:
        """All we have, for somebody who stays; we leave."""
        all_ = self._all()
        self._reset(NOTHING, 0.0, NO_FISH, {})
        return all_

    def received(self, ping: Ping, degree: int) -> bool:
        """A part from a neighbour, or of our own that could not be sent and comes back. False: no
        honest node sends that."""
        if not is_plausible(ping):
            return False
        if is_newer(ping.round, self.round):
            self._follow(ping.round, degree)
        elif ping.round != self.round or ping.round == NO_ROUND:
            self._ignored(ping.round, degree)
            return True
        self._strange = 0
        self._add(ping)
        self._look(degree)
        return True

    @property
    def estimate(self) -> Totals | None:
        """What the round has come to so far; None before the first fish."""
        if self._fish <= 0:
            return None
        fish = self._fish
        return Totals(self._nodes / fish, self._degrees / fish, self._squares / fish)

    # Rounds

    def _begin(self, number: int, degree: int) -> None:
        self.round = number
        totals = Totals(1.0, float(degree), float(degree * degree))
        size = self._rng.getrandbits(FISH_SIZE_BITS) + NO_FISH
        self._reset(totals, 1.0, size, self._own)

    def _end(self, number: int, degree: int) -> None:
        """Save what this round has come to, and begin another."""
        estimate = self.estimate
        if estimate is not None and self._receipts >= degree + WINDOW_MORE:
            self.known = estimate if self.known is None else bounded(estimate, self.known)
            self.extras = self._columns.results(self._fish)
            self._bootstraps = None
        self._begin(number, degree)

    def _follow(self, number: int, degree: int) -> None:
        if self.round != NO_ROUND:
            self._end(number, degree)
            return
        # In the middle of a round: nothing of ours goes in, for others count us in the next one.
        self.round = number
        self._reset(NOTHING, 0.0, NO_FISH, {})

    def _ignored(self, number: int, degree: int) -> None:
        """Out of step with all neighbours, for as long as it takes to be sure: become a newcomer,
        and if they are all newcomers, begin."""
        if number == NO_ROUND != self.round:
            return
        self._strange += 1
        if self._strange < degree + WINDOW_MORE:
            return
        self._strange = 0
        if self.round == NO_ROUND:
            self._begin(FIRST_ROUND, degree)
        else:
            self.round = NO_ROUND
            self._reset(NOTHING, 0.0, NO_FISH, {})

    def _add(self, ping: Ping) -> None:
        self._receipts += 1
        totals = ping.totals
        self._nodes += totals.nodes
        self._degrees += totals.degrees
        self._squares += totals.squares
        self._columns.add(ping.extras)
        if ping.fish <= 0:
            return  # where there is no fish, none is eaten
        if ping.fish_size > self._fish_size:
            self._fish_size, self._fish = ping.fish_size, ping.fish
        elif ping.fish_size == self._fish_size:
            self._fish += ping.fish

    def _look(self, degree: int) -> None:
        """Count the receipts since the values moved."""
        now = self.estimate
        if now is None:
            return
        if not self._is_near(now, self._anchor):
            self._anchor = now
            self._still = 0
            return
        self._still += 1
        if self._still >= degree + WINDOW_MORE:
            self._end(next_round(self.round), degree)

    def _is_near(self, now: Totals, anchor: Totals) -> bool:
        rest = self._rest
        return (
            abs(now.nodes - anchor.nodes) <= rest * anchor.nodes
            and abs(now.degrees - anchor.degrees) <= rest * anchor.degrees
            and abs(now.squares - anchor.squares) <= rest * anchor.squares
        )

    # What we hold

    def _all(self) -> Share:
        totals = Totals(self._nodes, self._degrees, self._squares)
        return Share(self.round, self._fish_size, totals, self._fish, self._columns.values)

    def _reset(self, totals: Totals, fish: float, size: int, own: dict[str, float]) -> None:
        self._nodes, self._degrees, self._squares = totals.nodes, totals.degrees, totals.squares
        self._fish, self._fish_size = fish, size
        self._columns = Columns(own)
        self._anchor = NOTHING
        self._still = self._receipts = self._beats = 0
