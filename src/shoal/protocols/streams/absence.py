"""Since when a node has had no neighbour in a stream, and what follows when it has one again.

What passed meanwhile shows as gaps, if its chains go on or a neighbour knows of it. Neighbours that
are all newer than a message know nothing of it: so this node's history machine is told of every
absence, and asks storage (`history/catch_up.py`). Where no storage node keeps the stream, or this
node has no such machine, that ends there.
"""

from __future__ import annotations

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.identity.stream_message import Position
from shoal.kernel.effects import Effect, Send
from shoal.kernel.wall import WallClock
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.history.messages import CatchUp


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
