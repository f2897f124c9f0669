"""All that a node has of one stream."""

from __future__ import annotations

import msgspec

from shoal.base.errors import StreamUnavailable, UsageError
from shoal.base.ids import STREAM_ID_CHARS_MAX, NodeId, show_node_id
from shoal.base.units import MS_NS
from shoal.kernel.wall import WallClock
from shoal.protocols.streams.absence import Absence
from shoal.protocols.streams.channel import Channel
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.overlay import Overlay
from shoal.protocols.streams.placed import PlacedMessage
from shoal.protocols.streams.reports import Reporter


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
