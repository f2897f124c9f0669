"""How large the network is, measured by everybody at once: push-sum with fish (2.2.5).

In each round every node pours water into a lake: 1, its degree, and its degree squared. And it puts
in one unit of fish, of a size by lot. With every beat a node divides all it has into equal parts,
one for each edge and one for itself. Big fish eat smaller ones, so in the end one unit is left, and
spreads like the water. Then water over fish is the same everywhere: the sums D0, D1 and D2. The
first node that finds its values at rest begins the next round, and whoever hears of that follows.

Since the first of all nodes ends the round for everybody, its threshold (REST) has to be far below
the precision that the last ones shall have. In a model of 10,000 nodes with three locations each,
0.05 % made rounds of 22 beats that left every node within 5 %; 1 % made rounds of 15 beats and left
up to a fortieth of the nodes outside.

A node that has not come to rest when a new round arrives saves what it has, as in the thesis: in
the model it was within 5 % nearly always. To keep the older result instead made it worse: what
still moved a little was right, and what was kept was out of date. Deviations from the thesis:

- Whoever has not heard a whole window of a round keeps the older result: rounds follow each other
  that fast only if somebody plays with them, or where two networks meet.
- Shares that went to a neighbour which has died are taken back. Lost early in a round, when few
  nodes hold all the fish, they spoil it for everybody: at 10 % churn a minute, half of it crashes,
  results were 7 % off (root mean square), and 4 % with this.
- A node that is out of step with all its neighbours becomes a newcomer; a round that never comes
  to rest ends as it is. Otherwise one lie could end all measurement, at a node or everywhere.
"""

from __future__ import annotations

from random import Random

from shoal.base.errors import UsageError
from shoal.protocols.search.config import EXTRAS_MAX, UINT32_MAX
from shoal.protocols.search.measuring.measurement_round import NO_FISH, Lake, Share, checked
from shoal.protocols.search.measuring.plausibility import Bootstraps, bounded, is_plausible
from shoal.protocols.search.messages import Ping, Totals

REST = 0.0005  # values that change by less are at rest; see above
WINDOW_MORE = 16  # receipts beside one for each edge in which nothing may change
ROUND_BEATS_MAX = 120  # ten minutes; the slowest rounds of the model, with 2 locations, took 44
FISH_SIZE_BITS = 64


class Measurement:
    """One node's part in all rounds."""

    def __init__(self, rng: Random, rest: float = REST) -> None:
        self._rng = rng
        self._rest = rest
        self._lake = Lake(NO_ROUND)
        self._own: dict[str, float] = {}
        self._bootstraps: Bootstraps | None = Bootstraps()
        self._strange = 0
        """Receipts in a row of rounds that we could not follow."""
        self.known: Totals | None = None
        """The last result; until there is one, what neighbours say."""
        self.extras: dict[str, float] = {}
        """Results of user-defined columns."""

    @property
    def round(self) -> int:
        """Its number; 0 as long as we know of none."""
        return self._lake.number

    @property
    def estimate(self) -> Totals | None:
        """What the round has come to so far."""
        return self._lake.estimate

    # What this node puts in

    def found(self, degree: int) -> None:
        """We are the whole network: begin the first round."""
        self._bootstraps = None
        self.known = _own_totals(degree)
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
        """At each beat: what goes over each of our edges, self loops included, once."""
        if self._lake.beats >= ROUND_BEATS_MAX and self.round != NO_ROUND:
            self._end(next_round(self.round), degree)
        return self._lake.divide(degree + 1)

    def received(self, ping: Ping, degree: int) -> bool:
        """A part from a neighbour, or all of somebody who leaves. False: no honest node sends
        that."""
        if not is_plausible(ping):
            return False
        if is_newer(ping.round, self.round):
            self._follow(ping.round, degree)
        elif ping.round != self.round or ping.round == NO_ROUND:
            self._ignored(ping.round, degree)
            return True
        self._strange = 0
        if self._lake.receive(ping, self._rest) >= degree + WINDOW_MORE:
            self._end(next_round(self.round), degree)
        return True

    def edge_lost(self, beats: int) -> None:
        """A neighbour is gone without a word, and was silent for so many beats of ours: what it got
        since has gone nowhere. Once for each edge."""
        self._lake.take_back(beats)

    def hand_over(self) -> Share:
        """All we have, for somebody who stays: we leave."""
        share = self._lake.all()
        self._lake = Lake(NO_ROUND)
        return share

    # Rounds

    def _begin(self, number: int, degree: int) -> None:
        size = self._rng.getrandbits(FISH_SIZE_BITS) + NO_FISH
        self._lake = Lake(number, _own_totals(degree), 1.0, size, self._own)

    def _end(self, number: int, degree: int) -> None:
        """Save what this round has come to, and begin another."""
        estimate = self._lake.estimate
        if estimate is not None and self._lake.receipts >= degree + WINDOW_MORE:
            self.known = estimate if self.known is None else bounded(estimate, self.known)
            self.extras = self._lake.columns
            self._bootstraps = None
        self._begin(number, degree)

    def _follow(self, number: int, degree: int) -> None:
        if self.round == NO_ROUND:
            # In the middle of a round nothing of ours goes in: the next one counts us.
            self._lake = Lake(number)
        else:
            self._end(number, degree)

    def _ignored(self, number: int, degree: int) -> None:
        """If all neighbours are elsewhere, become a newcomer; if they are newcomers all, begin."""
        if number == NO_ROUND != self.round:
            return  # a newcomer is not ahead of us, and will follow
        self._strange += 1
        if self._strange < degree + WINDOW_MORE:
            return
        self._strange = 0
        if self.round == NO_ROUND:
            self._begin(FIRST_ROUND, degree)
        else:
            self._lake = Lake(NO_ROUND)


def _own_totals(degree: int) -> Totals:
    degree = max(degree, 1)  # nobody believes in nodes without an edge; ours will come
    return Totals(1.0, float(degree), float(degree * degree))


# Numbers of measurement rounds: 32 bits that wrap, and 0 for whoever knows of none (2.2.5).


NO_ROUND = 0
FIRST_ROUND = 1
AHEAD_MAX = 1 << 16  # whoever is further ahead is taken for behind


def next_round(current: int) -> int:
    """The round after this one."""
    return FIRST_ROUND if current >= UINT32_MAX else current + 1


def is_newer(seen: int, current: int) -> bool:
    """Whether a round that somebody else is in begins here, too. Whoever knows of no round takes
    any: the printed rule would keep newcomers out once 65,536 rounds are over."""
    if seen in (NO_ROUND, current):
        return False
    return current == NO_ROUND or (seen - current) % (UINT32_MAX + 1) <= AHEAD_MAX
