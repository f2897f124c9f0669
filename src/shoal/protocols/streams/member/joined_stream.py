"""All that a node has of one stream."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.base.errors import StreamUnavailable, UsageError
from shoal.base.ids import STREAM_ID_CHARS_MAX, NodeId, StreamId, show_node_id
from shoal.base.units import MS_NS, US_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import CatchUp, JoinStream
from shoal.protocols.streams.config import DEGREE_MAX, RTT_US_MAX, NodeConfig
from shoal.protocols.streams.delivery.flooding import Channel
from shoal.protocols.streams.member.neighbours import Overlay
from shoal.protocols.streams.member.ping_meter import RttMeter
from shoal.protocols.streams.messages import Report, Rtt
from shoal.protocols.streams.signed_message import PlacedMessage


class StreamState(msgspec.Struct):
    """Neighbours, what flows between them and us, and what the tracker should know."""

    overlay: Overlay
    channel: Channel
    reporter: Reporter
    absence: Absence
    held: list[PlacedMessage] = []
    """What was published before there was a neighbour."""
    ready: bool = False
    """The first instruction was carried out."""

    @property
    def is_open(self) -> bool:
        """Whether a message that is published now gets to the others: until the first instruction
        is settled our neighbours may be newcomers like us, and nobody else would hear of it."""
        alone = not self.overlay.neighbours
        return self.ready and (alone or bool(self.channel.active))

    def holds(self, held_max: int) -> bool:
        """Whether a message that is published now has to wait."""
        if self.is_open:
            return False
        if len(self.held) >= held_max:
            raise StreamUnavailable(
                f"{self.overlay.stream}: {len(self.held)} messages wait for a first neighbour; "
                f"is tracker {show_node_id(self.overlay.tracker)} reachable?"
            )
        return True


def join_stream(
    command: JoinStream,
    node: NodeId,
    config: NodeConfig,
    now_ns: int,
    wall: WallClock | None = None,
) -> StreamState:
    """Begin with a stream."""
    if not 1 <= len(command.stream) <= STREAM_ID_CHARS_MAX:
        raise UsageError(
            f"stream id {command.stream!r}: give 1 to {STREAM_ID_CHARS_MAX} characters"
        )
    wall = WallClock() if wall is None else wall
    # Storage also takes what neighbours still have of the time before it came: it was away, or did
    # not know of the stream.
    since_ns = now_ns - config.recent_ns if command.keep else now_ns
    feeds = command.redundant_feeds
    channel = Channel(command.stream, config, since_ns // MS_NS, node, feeds, wall)
    channel.joined(command)
    return StreamState(
        Overlay(command.stream, node, config),
        channel,
        Reporter(command.stream, config),
        Absence(command.stream, node, config, now_ns, wall),
    )


# Since when a node has had no neighbour in a stream, and what follows when it has one again.
#
# What passed meanwhile shows as gaps, if its chains go on or a neighbour knows of it. Neighbours
# that are all newer than a message know nothing of it: so this node's history machine is told of
# every absence, and asks storage (`history/catch_up.py`). Where no storage node keeps the stream,
# or this node has no such machine, that ends there.


class Absence:
    """One node in one stream."""

    def __init__(
        self,
        stream: StreamId,
        node: NodeId,
        config: NodeConfig,
        now_ns: int,
        wall: WallClock | None = None,
    ) -> None:
        self._stream = stream
        self._node = node
        self._config = config
        self._wall = WallClock() if wall is None else wall
        self._begun_ns = self._alone_ns = now_ns

    def moved(self, was_linked: bool, is_linked: bool, now_ns: int) -> list[Effect]:
        """Neighbours came or went."""
        if was_linked and not is_linked:
            self._alone_ns = now_ns
        if was_linked or not is_linked or now_ns - self._alone_ns < self._config.absent_ns:
            return []
        # The last neighbour may have been cut off before its link was given up; but what lies
        # before our own joining is not asked for. However long it was: rows are bounded, not time.
        since_ns = max(self._alone_ns - self._config.absent_before_ns, self._begun_ns)
        # By a clock that has just been set ahead, nothing would have been missed.
        wall_ns = since_ns + self._wall.earliest(now_ns) - now_ns
        since = Position(wall_ns // MS_NS, 0)
        return [Send(CatchUp(self._stream, since), (self._node,))]


# What a node tells its tracker of its neighbours, gathered and rate-limited.
#
# Lost links and offenders go out soon, at most once per `report_min_ns`; round trips ride along,
# and go out alone once per `report_rtt_ns`, or `report_first_ns` after the node has its place or
# new neighbours.


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
