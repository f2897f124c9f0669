"""What a node tells its tracker of its neighbours, gathered and rate-limited.

Lost links and offenders go out soon, at most once per `report_min_ns`; round trips ride along,
and go out alone once per `report_rtt_ns`, or `report_first_ns` after the node has its place or new
neighbours.
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
        self._due_ns = 0

    def lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link that worked broke."""
        self._lost[peer] = None
        return self._soon(now_ns)

    def accuse(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A neighbour sent invalid messages."""
        self._accused[peer] = None
        return self._soon(now_ns)

    def ready(self, now_ns: int) -> list[Effect]:
        """This node has its place: the first report is due."""
        return self._at(now_ns + self._config.report_first_ns, now_ns)

    def linked(self, now_ns: int) -> list[Effect]:
        """There are new neighbours: their round trips are news."""
        due_ns = now_ns + self._config.report_first_ns
        return self._at(due_ns, now_ns) if due_ns < self._due_ns else []

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
        return [Send(report, (tracker,)), *self._at(now_ns + self._config.report_rtt_ns, now_ns)]

    def _soon(self, now_ns: int) -> list[Effect]:
        return self._at(max(now_ns, self._sent_ns + self._config.report_min_ns), now_ns)

    def _at(self, due_ns: int, now_ns: int) -> list[Effect]:
        self._due_ns = due_ns
        return [SetTimer(("report", self._stream), due_ns - now_ns)]
