"""What a node believes of what it is told about the size of the network.

Push-sum trusts everybody. Two rules make lies dearer:

- A Ping has to be one that honest nodes could have made. Whatever parts of honest nodes are added
  up, nobody has no edge or more than DEGREE_MAX, so D0 <= D1 <= D2 <= DEGREE_MAX * D1 and so on,
  and D1^2 <= D0 * D2 (Cauchy and Schwarz). All fish of a size were one unit at the beginning, and
  wherever there is water, there is fish.
- A result changes by a factor of four a round at most; in small networks as far as FREE_NODES
  allow, where an error costs little and sizes change fast.

What that costs: a network that loses nine tenths of its nodes, or grows tenfold, is known as it is
one round later than otherwise. What it does not do: whoever lies in every round moves the result
by a factor of four in each, and the largest fish wins, whoever made it.
"""

from __future__ import annotations

from statistics import median_low

from shoal.protocols.search.config import EXTRAS_MAX
from shoal.protocols.search.messages import Ping, Totals

DEGREE_MAX = 256  # four times what a node with 32 locations has: late neighbours are no liars
NODES_MAX = 1e10  # more than there are people; sums stay far from the end of a 32-bit float
EXTRA_MAX = 1e30  # the same for user-defined columns
ROUNDING = 1e-4  # 32-bit floats are exact to 1e-7, and many of them are added up
CHANGE_MAX = 4.0
FREE_NODES = 1000.0
BOOTSTRAPS_MAX = 16  # what neighbours told a newcomer, the first ones


def is_plausible(ping: Ping) -> bool:
    """Whether an honest node could have sent it."""
    if not 0 <= ping.fish <= 1 + ROUNDING or len(ping.extras) > EXTRAS_MAX:
        return False
    if not all(abs(value) <= EXTRA_MAX for _, value in ping.extras):
        return False
    if ping.totals == Totals(0, 0, 0):
        return ping.fish == 0  # a newcomer
    return ping.fish > 0 and are_plausible(ping.totals)


def are_plausible(totals: Totals) -> bool:
    """Whether these can be sums, or parts of sums, over honest nodes."""
    nodes, degrees, squares = totals.nodes, totals.degrees, totals.squares
    more = 1 + ROUNDING
    return (
        0 < nodes <= NODES_MAX
        and nodes <= degrees * more
        and degrees <= squares * more
        and degrees <= DEGREE_MAX * nodes * more
        and squares <= DEGREE_MAX * degrees * more
        and degrees * degrees <= nodes * squares * more
    )


def bounded(measured: Totals, known: Totals) -> Totals:
    """What is believed of a new result, by the last one."""
    factor = max(CHANGE_MAX, FREE_NODES / known.nodes)
    return Totals(
        _within(measured.nodes, known.nodes, factor),
        _within(measured.degrees, known.degrees, factor),
        _within(measured.squares, known.squares, factor),
    )


class Bootstraps:
    """What hellos told a node that has measured nothing yet: the one in the middle, so that it
    takes half of the neighbours to mislead a newcomer."""

    def __init__(self) -> None:
        self._told: list[Totals] = []

    def told(self, totals: Totals) -> Totals | None:
        """One more; whoever knows nothing says 0. What to believe now."""
        if are_plausible(totals) and len(self._told) < BOOTSTRAPS_MAX:
            self._told.append(totals)
        if not self._told:
            return None
        middle = median_low([one.nodes for one in self._told])
        return next(one for one in self._told if one.nodes == middle)


def _within(value: float, known: float, factor: float) -> float:
    return min(max(value, known / factor), known * factor)
