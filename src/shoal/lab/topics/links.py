"""The links of these experiments: slow ones, and a meter on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from shoal.base.ids import NodeId
from shoal.base.units import MS_NS
from shoal.sim.delays import DelayModel
from shoal.sim.network import Frame, LinkEnd, Shaper

SLOW_NS = 500 * MS_NS
JITTER_NS = 300 * MS_NS


class SlowDelay:
    """Another model's delays, and half a second more."""

    def __init__(self, delays: DelayModel) -> None:
        self._delays = delays

    def one_way_ns(self, sender: int, receiver: int) -> int:
        return self._delays.one_way_ns(sender, receiver) + SLOW_NS

    def region(self, node: int) -> str:
        return self._delays.region(node)


class EvenJitter(Shaper):
    """Up to 300 ms sooner or later; order is kept. For links that are slow already."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [t + self._rng.randint(-JITTER_NS, JITTER_NS) for t in arrivals_ns]


Sort = Callable[[Any], Mapping[str, int]]
"""What a message counts as: names, and how many of each."""


class Meter(Shaper):
    """Counts what is sent, and what of it arrives unless its link breaks before."""

    keeps_order = False  # behind all others, whose word on arrivals is final then

    def __init__(self, sort: Sort) -> None:
        self.sent: dict[NodeId, Counter[str]] = {}
        self.received: dict[NodeId, Counter[str]] = {}
        self.bytes = 0
        self._sort = sort
        self._frame: Frame | None = None
        self._counts: Mapping[str, int] = {}

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        if frame is not self._frame:  # one frame goes to many peers
            self._frame, self._counts = frame, self._sort(frame.message)
        self.bytes += frame.size_bytes
        _add(self.sent, end.host.node, self._counts)
        if arrivals_ns:
            _add(self.received, end.peer, self._counts)
        return arrivals_ns


def _add(totals: dict[NodeId, Counter[str]], node: NodeId, counts: Mapping[str, int]) -> None:
    total = totals.get(node)
    if total is None:
        total = totals[node] = Counter()
    for name, count in counts.items():
        total[name] += count
