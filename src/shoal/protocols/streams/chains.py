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

# A full table is searched for stale chains at most this often: room is asked for before the
# signature is checked, so refusing a made-up publisher must cost next to nothing.
SEARCH_NS = 1 * S_NS


class ChainTable:
    """Detectors of one stream, by publisher and chain."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._publishers: dict[NodeId, dict[ChainKey, DuplicateDetector]] = {}
        self._searched_ns = -SEARCH_NS

    def seen(self, id: MessageId) -> bool:
        """Whether this position of its chain was marked before."""
        chains = self._publishers.get(id.publisher)
        if chains is None:
            return False
        detector = chains.get((id.partition, id.chain))
        return detector is not None and detector.seen((id.timestamp_ms, id.sequence))

    def mark(self, id: MessageId, previous: Position | None) -> bool:
        """Mark a verified message; False if it was seen before."""
        detector = self._publishers.setdefault(id.publisher, {}).get((id.partition, id.chain))
        if detector is None:
            detector = DuplicateDetector(self._config.ranges_per_chain_max)
            self._publishers[id.publisher][id.partition, id.chain] = detector
        before = None if previous is None else (previous.timestamp_ms, previous.sequence)
        return detector.mark(before, (id.timestamp_ms, id.sequence))

    def has_room(self, id: MessageId, now_ns: int) -> bool:
        """Whether the chain is known or may be added, forgetting stale chains if need be."""
        chains = self._publishers.get(id.publisher)
        if chains is None:
            full = len(self._publishers) >= self._config.publishers_per_stream_max
            if full and now_ns - self._searched_ns >= SEARCH_NS:
                self._searched_ns = now_ns
                self._forget_stale(now_ns)
            return len(self._publishers) < self._config.publishers_per_stream_max
        if (id.partition, id.chain) in chains:
            return True
        if len(chains) < self._config.chains_per_publisher_max:
            return True
        self._forget_stale_chains(chains, now_ns)
        return len(chains) < self._config.chains_per_publisher_max

    def chain_count(self) -> int:
        """How many chains are held."""
        return sum(len(chains) for chains in self._publishers.values())

    def _forget_stale(self, now_ns: int) -> None:
        for publisher, chains in list(self._publishers.items()):
            self._forget_stale_chains(chains, now_ns)
            if not chains:
                del self._publishers[publisher]

    def _forget_stale_chains(self, chains: dict[ChainKey, DuplicateDetector], now_ns: int) -> None:
        oldest_fresh_ms = (now_ns - self._config.freshness_ns) // MS_NS
        for key, detector in list(chains.items()):
            if detector.newest[0] < oldest_fresh_ms:
                del chains[key]
