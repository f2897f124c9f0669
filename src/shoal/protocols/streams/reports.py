"""What a node tells its tracker of its neighbours, gathered and rate-limited.

Lost links and offenders go out soon, at most once per `report_min_ns`; round trips ride along,
and go out alone once per `report_rtt_ns`, for the first time `report_first_ns` after the node has
its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import US_NS
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.protocols.streams.config import DEGREE_MAX, RTT_US_MAX, NodeConfig
from shoal.protocols.streams.messages import Report, Rtt
from shoal.protocols.streams.rtt import RttMeter


class Reporter:
    """Gathers one stream's news."""

    def __init__(self, stream: StreamId, config: NodeConfig) -> None:
        self._stream = stream
        self._config = config
        self._lost: dict[NodeId, None] = {}
        self._accused: dict[NodeId, None] = {}
        self._sent_ns = -config.report_min_ns

    def lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link that worked broke."""
        self._lost[peer] = None
        return self._soon(now_ns)

    def accuse(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A neighbour sent invalid messages."""
        self._accused[peer] = None
        return self._soon(now_ns)

    def report(
        self,
        tracker: NodeId,
        active: Sequence[NodeId],
        rtts: RttMeter,
        now_ns: int,
        handling_ns: int = 0,
    ) -> list[Effect]:
        """Tell what there is to tell."""
        measured = [(peer, rtts.rtt_us(peer)) for peer in active[:DEGREE_MAX]]
        report = Report(
            self._stream,
            tuple(
                Rtt(peer, rtt_us, min(rtts.deviation_us(peer), RTT_US_MAX))
                for peer, rtt_us in measured
                if rtt_us is not None
            ),
            tuple(p for p in self._lost if p not in active)[:DEGREE_MAX],  # some came back
            tuple(self._accused)[:DEGREE_MAX],
            min(handling_ns // US_NS, RTT_US_MAX),
        )
        self._lost.clear()
        self._accused.clear()
        # Even an empty report says that we are here; a tracker that forgot us will say so.
        self._sent_ns = now_ns
        timer = SetTimer(("report", self._stream), self._config.report_rtt_ns)
        return [Send(report, (tracker,)), timer]

    def _soon(self, now_ns: int) -> list[Effect]:
        wait_ns = max(0, self._sent_ns + self._config.report_min_ns - now_ns)
        return [SetTimer(("report", self._stream), wait_ns)]
