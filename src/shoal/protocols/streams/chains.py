"""What a node has seen of a stream, and delivered: per chain, and chains in bounded number.

A chain may be forgotten only when all it holds is stale, since stale messages are refused anyway;
while the table is full of fresh chains, new ones are refused. So no flood of chains can make the
node take a message twice.
"""

from __future__ import annotations

from shoal.base.ids import MessageId, NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.duplicates import DuplicateDetector, Number
from shoal.protocols.streams.messages import Position
from shoal.protocols.streams.ordering import ChainOrder, Delivery

Chain = tuple[NodeId, int, str]  # publisher, partition, chain
ChainKey = tuple[int, str]  # (partition, chain)

# Room is asked for before the signature is checked, so refusing what somebody made up must cost
# next to nothing: what is full is searched for stale chains at most this often.
SEARCH_NS = 1 * S_NS


def chain_of(id: MessageId) -> Chain:
    """The chain that a message belongs to."""
    return (id.publisher, id.partition, id.chain)


class ChainState:
    """One chain: what was seen of it, and what was delivered."""

    __slots__ = ("detector", "order")

    def __init__(self, config: NodeConfig, baseline: Number) -> None:
        self.detector = DuplicateDetector(config.ranges_per_chain_max)
        self.order = ChainOrder(baseline, config.waiting_max)


class _Publisher:
    """The chains of one publisher."""

    __slots__ = ("chains", "searched_ns")

    def __init__(self) -> None:
        self.chains: dict[ChainKey, ChainState] = {}
        self.searched_ns = -SEARCH_NS

    def forget_stale(self, oldest_fresh_ms: int) -> None:
        for key, state in list(self.chains.items()):
            if state.detector.newest[0] < oldest_fresh_ms:
                del self.chains[key]


class ChainTable:
    """The chains of one stream, by publisher."""

    def __init__(self, config: NodeConfig, since_ms: int = 0) -> None:
        self.baseline: Number = (since_ms, 0)
        """Where our own time in the stream begins: what lies before is history, and no gap."""
        self._config = config
        self._publishers: dict[NodeId, _Publisher] = {}
        self._searched_ns = -SEARCH_NS

    # Seen

    def seen(self, id: MessageId) -> bool:
        """Whether this position of its chain was marked before."""
        publisher = self._publishers.get(id.publisher)
        if publisher is None:
            return False
        state = publisher.chains.get((id.partition, id.chain))
        return state is not None and state.detector.seen((id.timestamp_ms, id.sequence))

    def mark(self, id: MessageId, previous: Position | None) -> ChainState | None:
        """Mark a verified message; the chain it belongs to, or None if it was seen before."""
        state = self._state(id)
        before = None if previous is None else (previous.timestamp_ms, previous.sequence)
        return state if state.detector.mark(before, (id.timestamp_ms, id.sequence)) else None

    # Delivered

    def give_up(self, chain: Chain, upto: Number) -> list[Delivery]:
        """What is missing of a chain up to a position will not come any more."""
        state = self._find(chain)
        if state is None:
            return []
        state.detector.abandon(upto)
        return state.order.given_up(upto)

    def begin_delivery(self) -> None:
        """Subscribers came to a stream that we were in before: each chain goes on from here."""
        for publisher in self._publishers.values():
            for state in publisher.chains.values():
                state.order.begin(state.detector.newest)

    # Missing

    def gaps(self, chain: Chain) -> list[tuple[Number, Number]]:
        """What is missing of a chain between what was seen, as ranges (after, upto]."""
        state = self._find(chain)
        return [] if state is None else state.detector.gaps(self.baseline)

    def newest(self, chain: Chain) -> Number:
        """The highest position seen of a chain, or where our time begins."""
        state = self._find(chain)
        return self.baseline if state is None else max(self.baseline, state.detector.newest)

    def lacks(self, chain: Chain, number: Number, now_ns: int) -> bool:
        """Whether a position that somebody else has seen is one that we should have."""
        if number <= self.baseline or number[0] < self._oldest_fresh_ms(now_ns):
            return False
        if number[0] * MS_NS > now_ns + self._config.future_ns:
            return False  # whoever says so lies: we would not take it
        state = self._find(chain)
        return state is None or not state.detector.seen(number)

    # Bounds

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

    def _find(self, chain: Chain) -> ChainState | None:
        publisher = self._publishers.get(chain[0])
        return None if publisher is None else publisher.chains.get((chain[1], chain[2]))

    def _state(self, id: MessageId) -> ChainState:
        publisher = self._publishers.get(id.publisher)
        if publisher is None:
            publisher = self._publishers[id.publisher] = _Publisher()
        state = publisher.chains.get((id.partition, id.chain))
        if state is None:
            state = ChainState(self._config, self.baseline)
            publisher.chains[id.partition, id.chain] = state
        return state
