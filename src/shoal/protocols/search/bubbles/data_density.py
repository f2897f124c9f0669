"""How densely the data of a space lies in the network: what is cast now, and what was cast lately.

A node that is asked meets a document with probability a / R, where a is the size of the document's
bubble and R is T over the share of nodes that have the space. Both change: traffic moves the
balance, nodes come, and nodes crash. What was cast before is met less often than what is cast now:

- if the network has grown since, a nodes of more have it: a / R of today;
- if it has shrunk, as many of those who had it are gone as of all others: a / R of then.

So it is a over the largest R since it was cast. Questions are made for the thinnest of the last
quarter of an hour, in which everything managed was cast again, and durable data was counted.

Before anybody has put data there is none to be thin: a network that grows from one node to forty
would ask everybody for its first quarter of an hour otherwise. That data is put is measured, so it
is known a round or two later. What was cast meanwhile may be met less often than is stated, if the
network has grown; so may what fades and was cast earlier. A newcomer knows only what was measured
since it came.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.base.units import S_NS
from shoal.protocols.search.bubbles.bubble_size import balance
from shoal.protocols.search.documents.document_store import MANAGED_LEASE_NS
from shoal.protocols.search.spaces import Columns


class _Lately(msgspec.Struct, gc=False):
    until_ns: int
    size: float
    reach: float
    """The largest since."""

    @property
    def density(self) -> float:
        return self.size / self.reach


class Spread:
    """Of one space."""

    def __init__(
        self, columns: Columns, own: float = 1.0, others: float = 1.0, share: float | None = 1.0
    ) -> None:
        self._columns = columns
        self.own = own
        """How much larger than usual the data is that we cast, by what data and questions cost."""
        self.others = others
        """The same of data that we may have to meet. It differs for those who cannot measure."""
        self.share = share
        """Of the nodes that have the space; None: not measured yet."""
        self.in_use = False
        """Whether anybody has put data."""
        self._lately: list[_Lately] = []

    def __len__(self) -> int:
        return len(self._lately)

    def hear(self, measured: Mapping[str, float], nodes: float) -> None:
        """What a round has come to, if it has."""
        columns = self._columns
        self.in_use = measured.get(columns.data, 0.0) > 0
        if columns.data in measured or columns.query in measured:
            data, query = measured.get(columns.data, 0.0), measured.get(columns.query, 0.0)
            self.own = self.others = balance_of(data, query)
        if columns.members in measured:
            # At least we have it; and nobody makes others ask more than everybody.
            self.share = min(max(measured[columns.members], 1.0) / max(nodes, 1.0), 1.0)

    def note(self, size: float, reach: float, now_ns: int) -> None:
        """Data of this size is cast from now on."""
        lately = [one for one in self._lately if one.until_ns > now_ns]
        for one in lately:
            one.reach = max(one.reach, reach)
        # What is no larger, and no denser, and counts for longer makes another needless.
        while lately and lately[-1].size >= size and lately[-1].density >= size / reach:
            lately.pop()
        lately.append(_Lately(now_ns + MANAGED_LEASE_NS, size, reach))
        self._lately = lately

    def thinnest(self, size: float, reach: float) -> float:
        """How likely one node that is asked has any one document: of those that are cast now, in
        this size, and of those of lately."""
        lately = [one.size / max(one.reach, reach) for one in self._lately]
        return min([size / reach, *lately])


# How much of each kind of bubble this node starts, for the balance of their sizes.
#
# Everybody adds its own bytes a second to two columns of the measurement for each space; the sums
# decide how much larger data bubbles are than those of queries. Data that was cast before meets
# questions of today: what that takes is in spread.py, and the bound says how much at most.


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
