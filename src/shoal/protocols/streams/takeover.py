"""A tracker learns the topology of a stream from the nodes that are in it.

Nodes of a stream that lost its tracker come with Joins that name their neighbours. Links that both
ends name are adopted; meanwhile no slot is filled and nobody is told anything, since whoever is
told too early would part with neighbours that are still on their way here. It ends when everybody
who was named has come, or when nobody has come for a while; then the policy fills what is free.

Names are claims: of a node that has not come nothing is adopted, and one that lies about its
neighbours only waits longer for its own. Nodes that come without neighbours need not wait: they go
between two nodes whose neighbours are all here, or to others like them.
"""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.topology import LinkChanges, TopologyPolicy

IN_VAIN_MAX = 2  # nodes without neighbours that are tried in vain, each time that somebody comes


class Takeover:
    """What is known so far."""

    def __init__(self, policy: TopologyPolicy, config: TrackerConfig, now_ns: int) -> None:
        policy.hold()
        self.unplaced: dict[NodeId, None] = {}
        """Came without neighbours, and have none yet."""
        self._policy = policy
        self._config = config
        self._begun_ns = self._newest_ns = now_ns
        self._claims: dict[NodeId, dict[NodeId, None]] = {}
        self._awaited: dict[NodeId, dict[NodeId, None]] = {}  # named, not here -> who named them

    @property
    def is_over(self) -> bool:
        """Everybody who was named is here."""
        return not self._awaited

    def wait_ns(self, now_ns: int) -> int:
        """How long the others are waited for, if nobody comes."""
        quiet_ns = self._newest_ns + self._config.settle_ns
        end_ns = min(quiet_ns, self._begun_ns + self._config.settle_max_ns)
        return max(0, end_ns - now_ns)

    def held_back(self, node: NodeId) -> bool:
        """Whether an instruction now would cost a member neighbours that it may keep."""
        return node in self.unplaced or self._awaits(node)

    def members(self) -> tuple[NodeId, ...]:
        """All who were not told anything when they came."""
        return (*self._claims, *self.unplaced)

    def came(self, node: NodeId, neighbours: tuple[NodeId, ...], now_ns: int) -> None:
        """A member, already in the policy, names its neighbours; perhaps again."""
        self.gone(node)
        self._awaited.pop(node, None)
        claimed = dict.fromkeys([n for n in neighbours if n != node])
        if not claimed:
            self.unplaced[node] = None
            return
        self._newest_ns = now_ns
        self._claims[node] = claimed
        for other in claimed:
            if other not in self._policy.nodes:
                self._awaited.setdefault(other, {})[node] = None
            elif node in self._claims.get(other, ()):
                self._policy.adopt(node, other)

    def gone(self, node: NodeId) -> None:
        """A member has left: what it said counts no more."""
        self.unplaced.pop(node, None)
        for other in self._claims.pop(node, ()):
            named_by = self._awaited.get(other)
            if named_by is not None:
                named_by.pop(node, None)
                if not named_by:
                    del self._awaited[other]

    def place(self) -> list[LinkChanges]:
        """Find neighbours for those without, among nodes that can be told: one after the other, as
        long as that works. Whoever was tried in vain goes to the end of the queue."""
        made: list[LinkChanges] = []
        in_vain = 0
        for node in list(self.unplaced):
            if node not in self.unplaced:
                continue  # it has become the neighbour of one before it
            changes = self._policy.place(node, lambda other: not self._awaits(other))
            if node in changes.touched():
                made.append(changes)
                for placed in changes.touched():
                    self.unplaced.pop(placed, None)
                continue
            del self.unplaced[node]
            self.unplaced[node] = None
            in_vain += 1
            if in_vain == IN_VAIN_MAX:
                break
        return made

    def _awaits(self, node: NodeId) -> bool:
        return any(node in self._awaited.get(n, ()) for n in self._claims.get(node, ()))
