"""What a node has seen of a stream: one duplicate detector per chain, in bounded number.

A chain may be forgotten only when all it holds is stale, since stale messages are refused anyway;
while the table is full of fresh chains, new ones are refused. So no flood of chains can make the
node take a message twice.
"""

from __future__ import annotations

from shoal.base.ids import MessageId, NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.duplicates import DuplicateDetector
from shoal.protocols.streams.messages import Position

ChainKey = tuple[int, str]  # (partition, chain)

# Room is asked for before the signature is checked, so refusing what somebody made up must cost
# next to nothing: what is full is searched for stale chains at most this often.
SEARCH_NS = 1 * S_NS


class _Publisher:
    """The chains of one publisher."""

    __slots__ = ("chains", "searched_ns")

    def __init__(self) -> None:
        self.chains: dict[ChainKey, DuplicateDetector] = {}
        self.searched_ns = -SEARCH_NS

    def forget_stale(self, oldest_fresh_ms: int) -> None:
        for key, detector in list(self.chains.items()):
            if detector.newest[0] < oldest_fresh_ms:
                del self.chains[key]


class ChainTable:
    """Detectors of one stream, by publisher and chain."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._publishers: dict[NodeId, _Publisher] = {}
        self._searched_ns = -SEARCH_NS

    def seen(self, id: MessageId) -> bool:
        """Whether this position of its chain was marked before."""
        publisher = self._publishers.get(id.publisher)
        if publisher is None:
            return False
        detector = publisher.chains.get((id.partition, id.chain))
        return detector is not None and detector.seen((id.timestamp_ms, id.sequence))

    def mark(self, id: MessageId, previous: Position | None) -> bool:
        """Mark a verified message; False if it was seen before."""
        publisher = self._publishers.get(id.publisher)
        if publisher is None:
            publisher = self._publishers[id.publisher] = _Publisher()
        detector = publisher.chains.get((id.partition, id.chain))
        if detector is None:
            detector = DuplicateDetector(self._config.ranges_per_chain_max)
            publisher.chains[id.partition, id.chain] = detector
        before = None if previous is None else (previous.timestamp_ms, previous.sequence)
        return detector.mark(before, (id.timestamp_ms, id.sequence))

    def has_room(self, id: MessageId, now_ns: int) -> bool:
        """Whether the chain is known or may be added, forgetting stale chains if need be."""
        publisher = self._publishers.get(id.publisher)
        if publisher is None:
            most = self._config.publishers_per_stream_max
            if len(self._publishers) >= most and now_ns - self._searched_ns >= SEARCH_NS:
                self._searched_ns = now_ns
                self._forget_stale(now_ns)
            return len(self._publishers) < most
        if (id.partition, id.chain) in publisher.chains:
            return True
        most = self._config.chains_per_publisher_max
        if len(publisher.chains) >= most and now_ns - publisher.searched_ns >= SEARCH_NS:
            publisher.searched_ns = now_ns
            publisher.forget_stale(self._oldest_fresh_ms(now_ns))
        return len(publisher.chains) < most

    def chain_count(self) -> int:
        """How many chains are held."""
        return sum(len(publisher.chains) for publisher in self._publishers.values())

    def _forget_stale(self, now_ns: int) -> None:
        oldest_fresh_ms = self._oldest_fresh_ms(now_ns)
        for id, publisher in list(self._publishers.items()):
            publisher.forget_stale(oldest_fresh_ms)
            if not publisher.chains:
                del self._publishers[id]

    def _oldest_fresh_ms(self, now_ns: int) -> int:
        return (now_ns - self._config.freshness_ns) // MS_NS
