"""What a node has lately passed on, so that neighbours can ask for what they missed, and so that
a publisher who contradicts itself is found out."""

from __future__ import annotations

from collections import deque

from shoal.base.ids import MessageId
from shoal.protocols.streams.chains import Chain, chain_of
from shoal.protocols.streams.config import HEADS_MAX, SIGNATURE_BYTES, NodeConfig
from shoal.protocols.streams.duplicates import Number

Kept = tuple[int, int, Chain, Number]  # when, how many bytes, which


class RecentMessages:
    """The last messages of one stream, bounded in bytes and age, oldest dropped first."""

    def __init__(self, config: NodeConfig, known: dict[bytes, MessageId] | None = None) -> None:
        """`known` is to name what is kept here, by its bytes; others may be in it, too."""
        self._known = {} if known is None else known
        self._recent_ns = config.recent_ns
        self._bytes_max = config.recent_bytes_max
        self._config = config
        self._chains: dict[Chain, dict[Number, bytes]] = {}
        self._order: deque[Kept] = deque()
        self._heads: dict[Chain, tuple[Number, int]] = {}  # newest and when; latest last
        self._settled: set[tuple[Chain, Number]] = set()  # ids known to have two bodies
        self._bytes = 0

    def add(self, id: MessageId, signed: bytes, now_ns: int) -> None:
        """Keep a message that was verified."""
        chain, number = chain_of(id), (id.timestamp_ms, id.sequence)
        kept = self._chains.get(chain)
        if kept is None:
            kept = self._chains[chain] = {}
        kept[number] = signed
        self._known[signed] = id
        head = self._heads.pop(chain, None)
        newest = number if head is None or head[0] < number else head[0]
        self._heads[chain] = (newest, now_ns)
        order, size_bytes = self._order, len(signed)
        order.append((now_ns, size_bytes, chain, number))
        self._bytes += size_bytes
        oldest_ns = now_ns - self._recent_ns
        while self._bytes > self._bytes_max or order[0][0] < oldest_ns:
            self._drop(order.popleft())

    def contradicted(self, id: MessageId, signed: bytes) -> bytes | None:
        """The message that we hold under an id, if this one says something else.

        None once an id is settled: the proof was found, and further bodies prove nothing more.
        """
        kept = self._chains.get((id.publisher, id.partition, id.chain))
        held = None if kept is None else kept.get((id.timestamp_ms, id.sequence))
        if held is None or held == signed:  # two copies in three end here
            return None
        # The same body may have several good signatures: it is the same message.
        if memoryview(held)[SIGNATURE_BYTES:] == memoryview(signed)[SIGNATURE_BYTES:]:
            return None
        settled = (chain_of(id), (id.timestamp_ms, id.sequence)) in self._settled
        return None if settled else held

    def settle(self, id: MessageId) -> None:
        """Two signed bodies were found under an id that we hold."""
        self._settled.add((chain_of(id), (id.timestamp_ms, id.sequence)))

    def between(self, chain: Chain, after: Number, upto: Number) -> list[bytes]:
        """Messages of a chain in (after, upto], in order, up to the size of one answer."""
        kept = self._chains.get(chain, {})
        found: list[bytes] = []
        size_bytes = 0
        for number in sorted(n for n in kept if after < n <= upto):
            size_bytes += len(kept[number])
            if found and size_bytes > self._config.fill_bytes_max:
                break
            found.append(kept[number])
        return found

    def heads(self, since_ns: int, before_ns: int) -> list[tuple[Chain, Number]]:
        """The newest message of each chain whose last one came in that time, latest first."""
        found: list[tuple[Chain, Number]] = []
        for chain, (number, kept_ns) in reversed(self._heads.items()):
            if kept_ns < since_ns or len(found) == HEADS_MAX:
                break
            if kept_ns < before_ns:
                found.append((chain, number))
        return found

    def clear(self) -> None:
        """Keep nothing."""
        while self._order:
            self._drop(self._order.popleft())

    def _drop(self, kept: Kept) -> None:
        _, size_bytes, name, number = kept
        chain = self._chains[name]
        self._known.pop(chain.pop(number), None)
        if self._settled:
            self._settled.discard((name, number))
        self._bytes -= size_bytes
        if not chain:
            del self._chains[name]
            del self._heads[name]
