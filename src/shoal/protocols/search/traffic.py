"""How much of each kind of bubble this node starts, for the balance of their sizes.

Everybody adds its own bytes a second to two columns of the measurement; the sums decide how much
larger data bubbles are than those of queries. Data that was cast before meets questions of today:
if traffic has changed meanwhile, both may be the small ones, and miss each other. So a question is
as large as the smallest data of the last quarter of an hour needs, in which everything managed was
cast again. What was cast earlier than that and has faded since is found less often; the bound says
by how much at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from shoal.base.units import S_NS
from shoal.protocols.search.holdings import MANAGED_LEASE_NS
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


class Balance:
    """How much larger than usual data bubbles are, and were."""

    def __init__(self, now: float = 1.0, least: float = 1.0) -> None:
        self.now = now
        """Of what we cast."""
        self.least = least
        """Of what a question may have to meet."""
        self._lately: deque[tuple[int, float]] = deque()
        """Until when each counts. Rising: one that is larger than a later one never matters."""

    def beat(self, measured: Mapping[str, float], now_ns: int) -> None:
        """What was measured last, if anything was."""
        if DATA_COLUMN not in measured and QUERY_COLUMN not in measured:
            return
        self.now = balance_of(measured)
        lately = self._lately
        while lately and lately[-1][1] >= self.now:
            lately.pop()
        lately.append((now_ns + MANAGED_LEASE_NS, self.now))
        while lately[0][0] <= now_ns:
            lately.popleft()
        self.least = lately[0][1]


def balance_of(measured: Mapping[str, float]) -> float:
    """How much larger than usual data bubbles are, by what the whole network starts."""
    data, query = measured.get(DATA_COLUMN, 0.0), measured.get(QUERY_COLUMN, 0.0)
    return min(max(balance(max(data, 0.0), max(query, 0.0)), 1 / BALANCE_BOUND), BALANCE_BOUND)
