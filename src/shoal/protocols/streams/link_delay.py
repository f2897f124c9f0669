"""What a tracker knows of a link's delay, from the reports of both its ends."""

from __future__ import annotations

import math

import msgspec

from shoal.base.ids import NodeId
from shoal.protocols.streams.messages import Rtt
from shoal.protocols.streams.topology import Pair


class LinkDelay(msgspec.Struct, frozen=True):
    """The newest word of each end. Both measure the same round trips, independently: together
    they know more than whichever reported last."""

    of_a: Rtt | None = None
    of_b: Rtt | None = None

    def told(self, pair: Pair, reporter: NodeId, rtt: Rtt) -> LinkDelay:
        """The same, after one end's report."""
        return LinkDelay(rtt, self.of_b) if reporter == pair.a else LinkDelay(self.of_a, rtt)

    @property
    def rtt_us(self) -> int:
        """The mean round trip."""
        words = self._words()
        return round(sum(word.rtt_us for word in words) / len(words))

    @property
    def one_way_ms(self) -> float:
        """Half of it: what a message takes in the mean, as both ways are alike or average out."""
        words = self._words()
        return sum(word.rtt_us for word in words) / len(words) / 2000

    @property
    def deviation_ms(self) -> float:
        """How much single messages differ: a round trip is two of them, and variances add up."""
        words = self._words()
        squares = sum(word.deviation_us**2 for word in words) / len(words)
        return math.sqrt(squares / 2) / 1000

    def _words(self) -> list[Rtt]:
        return [word for word in (self.of_a, self.of_b) if word is not None]
