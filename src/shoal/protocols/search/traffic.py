"""How much of each kind of bubble this node starts, for the balance of their sizes.

Everybody adds its own bytes a second to two columns of the measurement for each space; the sums
decide how much larger data bubbles are than those of queries. Data that was cast before meets
questions of today: what that takes is in spread.py, and the bound says how much at most.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.base.units import S_NS
from shoal.protocols.search.sizes import balance

SMOOTH = 0.1  # of each beat's rate goes into the mean: about a minute
BALANCE_BOUND = 4.0


class Traffic:
    """Bytes a second of what we start."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def open(self, *columns: str) -> None:
        """Kinds of bubbles that we may start."""
        self._bytes.update(dict.fromkeys(columns, 0))
        self._rates.update(dict.fromkeys(columns, 0.0))

    def started(self, column: str, payload_bytes: int) -> None:
        """A bubble of ours."""
        self._bytes[column] += payload_bytes

    def beat(self, interval_ns: int) -> Mapping[str, float]:
        """Our part of each column."""
        for column, count in self._bytes.items():
            rate = count * S_NS / interval_ns
            self._rates[column] += SMOOTH * (rate - self._rates[column])
            self._bytes[column] = 0
        return self._rates


def balance_of(data: float, query: float) -> float:
    """How much larger than usual data bubbles are, by the bytes a second that the whole network
    starts. Sums that a liar made negative count as nothing."""
    return min(max(balance(max(data, 0.0), max(query, 0.0)), 1 / BALANCE_BOUND), BALANCE_BOUND)
