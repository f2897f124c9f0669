"""Round trips to neighbours, measured over the links that carry the data."""

from __future__ import annotations

from random import Random

from shoal.base.ids import NodeId
from shoal.base.units import S_NS, US_NS
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected, RttMeasured
from shoal.protocols.streams.config import RTT_US_MAX
from shoal.protocols.streams.messages import Ping

ANSWER_NS = 5 * S_NS  # an answer that takes longer is not worth waiting for
GAIN = 8  # as TCP smooths its round trips: one new sample counts an eighth


class RttMeter:
    """Pings go out together; the answer to the newest one counts."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._asked: dict[NodeId, tuple[int, int]] = {}  # peer -> (nonce, sent_ns)
        self._smoothed_us: dict[NodeId, int] = {}

    def ping(self, peers: tuple[NodeId, ...], now_ns: int) -> list[Effect]:
        """Ask each peer that does not owe us an answer already."""
        recent_ns = now_ns - ANSWER_NS
        peers = tuple([p for p in peers if self._asked.get(p, (0, recent_ns))[1] <= recent_ns])
        if not peers:
            return []
        # Nobody can answer before it was asked, and so look nearer than it is.
        nonce = self._rng.getrandbits(62)
        for peer in peers:
            self._asked[peer] = (nonce, now_ns)
        return [Send(Ping(nonce), peers)]

    def answered(self, peer: NodeId, nonce: int, now_ns: int) -> list[Effect]:
        """A Pong came: late ones, and ones that nobody asked for, are ignored."""
        asked = self._asked.get(peer)
        if asked is None or asked[0] != nonce:
            return [Rejected(peer, "unasked-pong")]
        del self._asked[peer]
        sample_us = min((now_ns - asked[1]) // US_NS, RTT_US_MAX)
        before = self._smoothed_us.get(peer, sample_us)
        self._smoothed_us[peer] = before + (sample_us - before) // GAIN
        return [RttMeasured(peer, sample_us)]

    def rtt_us(self, peer: NodeId) -> int | None:
        """The smoothed round trip, if one was measured."""
        return self._smoothed_us.get(peer)

    def keep_only(self, peers: tuple[NodeId, ...]) -> None:
        """Forget whoever is no neighbour any more."""
        self._asked = {p: self._asked[p] for p in peers if p in self._asked}
        self._smoothed_us = {p: self._smoothed_us[p] for p in peers if p in self._smoothed_us}
