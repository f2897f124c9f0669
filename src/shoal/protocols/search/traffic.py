"""How much of each kind of bubble this node starts, for the balance of their sizes.

Everybody adds its own bytes a second to two columns of the measurement; the sums decide how much
larger data bubbles are than those of queries. Within bounds: data that was cast before meets
questions of today, and a guess that is off by a factor in one of them costs confidence.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.base.units import S_NS
from shoal.protocols.search.sizes import balance

QUERY_COLUMN = "s:shoal.query"
DATA_COLUMN = "s:shoal.data"
SMOOTH = 0.1  # of each beat's rate goes into the mean: about a minute
BALANCE_BOUND = 4.0


class Traffic:
    """Bytes a second of what we start."""

    def __init__(self) -> None:
        self._bytes = {QUERY_COLUMN: 0, DATA_COLUMN: 0}
        self._rates = {QUERY_COLUMN: 0.0, DATA_COLUMN: 0.0}

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


def balance_of(measured: Mapping[str, float]) -> float:
    """How much larger than usual data bubbles are, by what the whole network starts."""
    data, query = measured.get(DATA_COLUMN, 0.0), measured.get(QUERY_COLUMN, 0.0)
    return min(max(balance(max(data, 0.0), max(query, 0.0)), 1 / BALANCE_BOUND), BALANCE_BOUND)
