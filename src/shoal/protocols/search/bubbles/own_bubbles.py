"""Bubbles of our own: their size, their header, and the way into the network.

Data and queries share one rule: the product of their sizes is c^2 T. Data is always cast for the
network's certainty, so that whoever asks for another one only changes the size of its question.
Each space has sizes of its own (spread.py). As long as nobody has measured who has a space, we are
taken for the only one: everybody is asked then, up to a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from random import Random

import msgspec

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey
from shoal.kernel.effects import Effect
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.search.bubbles.bubble_relay import tokens_of
from shoal.protocols.search.bubbles.bubble_size import (
    LIMIT_UNKNOWN,
    bubble_size,
    certainty_of,
    size_limit,
    threshold,
)
from shoal.protocols.search.bubbles.data_density import Spread
from shoal.protocols.search.config import NONCE_BYTES, WAY_BYTES, SearchConfig
from shoal.protocols.search.documents.document import DOCUMENTS
from shoal.protocols.search.messages import BubbleCast, Totals
from shoal.protocols.search.payloads import Payload, encode_payload, type_of
from shoal.protocols.search.signed_records import AddressRecord, BubbleHeader, sign_header
from shoal.protocols.search.spaces import Space, kind_of

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
        wall: WallClock | None = None,
    ) -> None:
        self.wall = WallClock() if wall is None else wall
        self._key = key
        self._record = record
        self._totals = totals
        self._send = send
        self._rng = rng
        self._config = config
        self.spreads: dict[str, Spread] = {}
        """How the data of each space lies in the network."""
        self._spent_ns = 0
        """When our budget at others is whole again."""

    @property
    def default_confidence(self) -> float:
        return self._config.confidence

    @property
    def life_ns(self) -> int:
        """How long a bubble may be under way."""
        return self._config.bubble_ns

    def beat(self, measured: Mapping[str, float], now_ns: int) -> None:
        """What was measured last."""
        totals = self._known()
        for spread in self.spreads.values():
            spread.hear(measured, totals.nodes)
            # Where the share is not known, others may know better, and cast by that.
            if spread.in_use and spread.share is not None:
                spread.note(self._size(spread, spread.others), self._reach(spread), now_ns)

    def data_size(self, space: str = DOCUMENTS) -> int:
        """Nodes that keep a document that is cast now."""
        spread = self.spreads[space]
        return self._size(spread, spread.own)

    def query_size(self, confidence: float, space: str = DOCUMENTS) -> int:
        """Nodes that a question has to reach, to meet any document with this probability."""
        certainty, totals = certainty_of(confidence), self._known()
        wanted = certainty**2 / self.meetings(space)
        everybody = certainty * _threshold(totals)
        return max(1, min(ceil(min(wanted, everybody)), size_limit(totals)))

    def meetings(self, space: str = DOCUMENTS) -> float:
        """Of each node that is asked, with any one document."""
        spread = self.spreads[space]
        return spread.thinnest(self._size(spread, spread.others), self._reach(spread))

    def share(self, space: str = DOCUMENTS) -> float:
        """Of the nodes that a bubble reaches, how many have its space."""
        return self._share(self.spreads[space])

    def may_put(self, now_ns: int) -> bool:
        """Whether others would take another bubble of ours. We keep to three quarters of what they
        allow: clocks differ, and questions do not wait."""
        burst_ns = self._config.origin_burst * self._config.origin_refill_ns
        return self._spent_ns - now_ns < burst_ns

    def nodes(self) -> float:
        """Of the whole network, as it was measured."""
        return self._known().nodes

    def make(
        self,
        space: Space,
        payload: Payload,
        total: int,
        life_ns: int,
        now_ns: int,
        about: bytes = b"",
    ) -> Bubble:
        """A bubble that was not cast yet. Those about the same thing take the same ways: a version
        takes the place of another, or an end that of its beginning, where both come by."""
        kind, way = kind_of(space, type_of(payload)), about[:WAY_BYTES]
        encoded = encode_payload(payload)
        header = sign_header(
            self._key,
            self._record,
            kind=kind,
            total=total,
            payload=encoded,
            nonce=way + self._rng.randbytes(NONCE_BYTES - len(way)),
            expires_ms=(self.wall.read(now_ns) + life_ns) // MS_NS,
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

    def _size(self, spread: Spread, balance: float) -> int:
        certainty, totals = certainty_of(self._config.confidence), self._known()
        size = bubble_size(certainty, balance, totals, self._share(spread))
        return size if spread.share is not None else min(size, LIMIT_UNKNOWN)

    def _reach(self, spread: Spread) -> float:
        """T, as if all nodes had the space."""
        return _threshold(self._known()) / self._share(spread)

    def _share(self, spread: Spread) -> float:
        return spread.share or 1.0 / max(self._known().nodes, 1.0)

    def _known(self) -> Totals:
        totals = self._totals()
        if totals is None:
            raise UsageError("this node has not joined the search network yet: wait for `joined`")
        return totals


def _threshold(totals: Totals) -> float:
    """T; where it makes no sense, the whole network: everybody gets everything then."""
    return max(1.0, threshold(totals) or totals.nodes)
