"""What flooding needs to know of one stream that this node takes part in."""

from __future__ import annotations

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.wall import WallClock
from shoal.protocols.streams.chains import ChainTable
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.feeds import Feeds
from shoal.protocols.streams.recent import RecentMessages
from shoal.protocols.streams.repair import Repair


class Channel:
    """What was seen, what is passed on, and to whom."""

    __slots__ = (
        "active",
        "feeds",
        "kept",
        "neighbours",
        "recent",
        "repair",
        "seen",
        "subscribed",
        "unordered",
    )

    def __init__(
        self,
        stream: StreamId,
        config: NodeConfig,
        since_ms: int = 0,
        node: NodeId | None = None,
        redundant_feeds: int | None = None,
        wall: WallClock | None = None,
    ) -> None:
        """`since_ms` is when this node came, in its monotonic time."""
        wall = WallClock() if wall is None else wall
        self.seen = ChainTable(config, since_ms, wall)
        self.recent = RecentMessages(config)
        self.feeds = Feeds(stream, redundant_feeds)
        self.repair = Repair(stream, self.seen, self.recent, config, node, self.feeds, wall)
        self.subscribed = False
        """Some local subscriber wants each chain in order."""
        self.unordered = False
        """Some local subscriber wants messages as they come."""
        self.kept = False
        self.active: tuple[NodeId, ...] = ()
        """Neighbours that get data."""
        self.neighbours: frozenset[NodeId] = frozenset()
        """Whoever data is taken from."""

    def joined(self, command: JoinStream) -> None:
        """One more reason to be in the stream."""
        wants_order = command.subscribe and command.ordered
        if wants_order and not self.subscribed:
            self.seen.begin_delivery()
        self.subscribed |= wants_order
        self.unordered |= command.subscribe and not command.ordered
        self.kept |= command.keep
