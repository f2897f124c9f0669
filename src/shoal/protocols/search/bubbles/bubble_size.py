"""How large a bubble has to be.

Two bubbles of sizes s_a and s_b meet with probability 1 - exp(-s_a * s_b / T), where the threshold
T stands for the number of nodes, corrected for degrees: whoever has twice the edges is reached
twice as often. With s_a * s_b = c^2 * T, certainty c decides how sure a match is, and the balance
which of the two bubbles carries the load: the one that is sent less often becomes the larger one.
"""

from __future__ import annotations

from math import ceil, exp, isfinite, log, sqrt

from shoal.base.errors import UsageError
from shoal.protocols.search.config import INT32_MAX
from shoal.protocols.search.messages import Totals

BALANCE_MAX = 100.0  # either way: one bubble ten times the usual size, the other a tenth
CERTAINTY_MAX = 4.0  # one search in nine million misses; nobody needs a larger bubble
LIMIT_SLACK = 2.0  # others may still know the network as it was when it was twice as large
LIMIT_UNKNOWN = 4096  # as long as nobody has told us how large the network is


def confidence_of(certainty: float) -> float:
    """How likely two bubbles of this certainty meet."""
    if not 0 <= certainty < float("inf"):
        raise UsageError(f"certainty {certainty}: write a number of 0 or more")
    return 1 - exp(-certainty * certainty)


def certainty_of(confidence: float) -> float:
    """The certainty that a match with this probability needs."""
    if not 0 < confidence < 1:
        raise UsageError(
            f"confidence {confidence}: write a number between 0 and 1, for example 0.99"
        )
    return sqrt(-log(1 - confidence))


def threshold(totals: Totals) -> float | None:
    """T; None where nodes have two edges each or fewer: nothing branches there, so flood."""
    surplus = totals.squares - 2 * totals.degrees
    return totals.degrees * totals.degrees / surplus if surplus > 0 else None


def balance(own: float, other: float) -> float:
    """What multiplies T for bubbles of one type, given the bytes a second that are started of this
    type and of the one that it shall meet. Both types together give 1. Without traffic: 1."""
    if not (isfinite(own) and isfinite(other)) or own < 0 or other < 0:
        raise UsageError(f"rates {own} and {other}: write bytes a second, 0 or more")
    if own == other:
        return 1.0
    if own * BALANCE_MAX <= other:
        return BALANCE_MAX
    return max(other / own, 1 / BALANCE_MAX)


def bubble_size(certainty: float, balance: float, totals: Totals, share: float = 1.0) -> int:
    """Nodes that a bubble shall reach; never more than ceil(c * T), which reaches everybody. Where
    only a share of the nodes can match them, bubbles meet as if T were so much larger."""
    if not 0 < certainty <= CERTAINTY_MAX:
        raise UsageError(f"certainty {certainty}: write more than 0, and {CERTAINTY_MAX:g} at most")
    if not 1 / BALANCE_MAX <= balance <= BALANCE_MAX:
        raise UsageError(
            f"balance {balance}: write {1 / BALANCE_MAX:g} to {BALANCE_MAX:g}, 1 for equal sizes"
        )
    t = threshold(totals)
    wanted = (
        totals.nodes if t is None else min(certainty * sqrt(t / share * balance), certainty * t)
    )
    return _whole(wanted)


def size_limit(totals: Totals | None) -> int:
    """The largest bubble of somebody else that is passed on."""
    if totals is None:
        return LIMIT_UNKNOWN
    t = threshold(totals)
    largest = totals.nodes if t is None else CERTAINTY_MAX * t
    return max(_whole(LIMIT_SLACK * largest), LIMIT_UNKNOWN)


def _whole(size: float) -> int:
    """At least one node; and no more than the field of the message holds."""
    return ceil(min(max(size, 1.0), float(INT32_MAX)))
