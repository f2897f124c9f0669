"""Bubbles of our own: their size, their header, and the way into the network.

Data and queries share one rule: the product of their sizes is c^2 T. Data is always cast for the
network's certainty, so that whoever asks for another one only changes the size of its question.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random

import msgspec

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.kernel.effects import Effect
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.casts import tokens_of
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.headers import BubbleHeader, sign_header
from shoal.protocols.search.limits import NONCE_BYTES, WAY_BYTES
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.payloads import Payload, encode_payload, type_of
from shoal.protocols.search.sizes import (
    bubble_size,
    certainty_of,
    size_limit,
    threshold,
)
from shoal.protocols.search.traffic import Balance

Send = Callable[[BubbleCast, int], list[Effect]]


class Bubble(msgspec.Struct, gc=False):
    """One of our own; its slices are cast one after the other."""

    kind: int
    total: int
    header: BubbleHeader
    payload: bytes
    id: bytes
    cast_to: int = 0
    """Positions that were cast."""


class Bubbles:
    """Makes and casts them."""

    def __init__(
        self,
        key: PrivateKey,
        record: AddressRecord,
        totals: Callable[[], Totals | None],
        send: Send,
        rng: Random,
        config: SearchConfig,
    ) -> None:
        self._key = key
        self._record = record
        self._totals = totals
        self._send = send
        self._rng = rng
        self._config = config
        self.balance = Balance()
        """How much larger data bubbles are than those of queries, by what both cost."""
        self._spent_ns = 0
        """When our budget at others is whole again."""

    @property
    def default_confidence(self) -> float:
        return self._config.confidence

    @property
    def life_ns(self) -> int:
        """How long a bubble may be under way."""
        return self._config.bubble_ns

    def data_size(self) -> int:
        """Nodes that keep a document that is cast now."""
        return self._data_size(self.balance.now)

    def query_size(self, confidence: float) -> int:
        """Nodes that a question has to reach, to meet any document with this probability."""
        wanted = certainty_of(confidence) ** 2 / self.meetings()
        return max(1, min(ceil(wanted), size_limit(self._known())))

    def meetings(self) -> float:
        """Of each node that is asked, with any one document."""
        return self._data_size(self.balance.least) / self._reach()

    def may_put(self, now_ns: int) -> bool:
        """Whether others would take another bubble of ours. We keep to three quarters of what they
        allow: clocks differ, and questions do not wait."""
        burst_ns = self._config.origin_burst * self._config.origin_refill_ns
        return self._spent_ns - now_ns < burst_ns

    def nodes(self) -> float:
        """Of the whole network, as it was measured."""
        return self._known().nodes

    def make(
        self, payload: Payload, total: int, life_ns: int, now_ns: int, about: bytes = b""
    ) -> Bubble:
        """A bubble that was not cast yet. Those about the same thing take the same ways: a version
        takes the place of another, or an end that of its beginning, where both come by."""
        kind, encoded, way = type_of(payload), encode_payload(payload), about[:WAY_BYTES]
        header = sign_header(
            self._key,
            self._record,
            kind=kind,
            total=total,
            payload=encoded,
            nonce=way + self._rng.randbytes(NONCE_BYTES - len(way)),
            expires_ms=(now_ns + life_ns) // MS_NS,
        )
        id = BubbleCast(None, total, total, 0, total, kind, header, encoded).id
        return Bubble(kind, total, header, encoded, id)

    def cast(self, bubble: Bubble, end: int, now_ns: int) -> list[Effect]:
        """Its next positions, up to there."""
        start, bubble.cast_to = bubble.cast_to, end
        total = bubble.total
        if start == 0:
            cost_ns = tokens_of(len(bubble.payload)) * self._config.origin_refill_ns
            self._spent_ns = max(self._spent_ns, now_ns) + cost_ns * 4 // 3  # see may_put()
        cast = BubbleCast(
            None, total, total, start, end, bubble.kind, bubble.header, bubble.payload
        )
        return self._send(cast, now_ns)

    def _data_size(self, balance: float) -> int:
        certainty = certainty_of(self._config.confidence)
        return bubble_size(certainty, balance, self._known())

    def _reach(self) -> float:
        """T; where it makes no sense, the whole network: everybody gets everything then."""
        totals = self._known()
        return max(1.0, threshold(totals) or totals.nodes)

    def _known(self) -> Totals:
        totals = self._totals()
        if totals is None:
            raise UsageError("this node has not joined the search network yet: wait for `joined`")
        return totals
