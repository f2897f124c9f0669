"""How often one node may ask a tracker for something."""

from __future__ import annotations

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.rate_limit import RateLimit
from shoal.protocols.streams.config import TrackerConfig


class TrackerLimits:
    """Of every node, in each stream and over all of them."""

    def __init__(self, config: TrackerConfig) -> None:
        most = config.limited_max
        self._changes = RateLimit(config.changes_burst, config.changes_refill_ns, most)
        self._node_changes = RateLimit(
            config.node_changes_burst, config.node_changes_refill_ns, most
        )
        self._failures = RateLimit(config.failures_burst, config.failures_refill_ns, most)
        self._questions = RateLimit(config.questions_burst, config.questions_refill_ns, most)
        self._introductions = RateLimit(config.questions_burst, config.questions_refill_ns, most)

    def may_change(self, peer: NodeId, stream: StreamId, now_ns: int) -> bool:
        """Join or leave."""
        in_stream = self._changes.allow((peer, stream), now_ns)
        return self._node_changes.allow(peer, now_ns) and in_stream

    def may_fail(self, peer: NodeId, stream: StreamId, now_ns: int) -> bool:
        """Have a link replaced."""
        return self._failures.allow((peer, stream), now_ns)

    def may_ask(self, peer: NodeId, now_ns: int) -> bool:
        """Who keeps a stream."""
        return self._questions.allow(peer, now_ns)

    def may_be_introduced(self, peer: NodeId, now_ns: int) -> bool:
        """Who has a publisher's keys."""
        return self._introductions.allow(peer, now_ns)
