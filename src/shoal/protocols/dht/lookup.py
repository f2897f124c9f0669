"""One search for the nodes nearest to a place, over paths that share no node.

Each path asks the nearest nodes it knows for nearer ones. A node belongs to the path that heard of
it first and is asked by no other, so whoever lies misleads one path. A path ends when the k nearest
nodes that answered are nearer than all that it has left to ask. Only who answered counts: names are
free, and an answer full of nodes that do not exist discredits whoever gave it.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.ids import SPACE, DhtId, id_of_node

NEW, ASKED, SLOW, ANSWERED, FAILED = range(5)
DEAD_NAMES_MAX = 5  # more than that, and more than live ones: honest tables are not that stale


class _Known(msgspec.Struct):
    contact: Contact
    distance: int
    hops: int
    path: int
    source: NodeId | None
    """Who named it; nobody, if we knew it ourselves."""
    state: int = NEW


class Lookup:
    """What one search knows. Asks nobody by itself: see lookups.py."""

    def __init__(
        self,
        target: DhtId,
        me: NodeId,
        seeds: Sequence[Contact],
        config: DhtConfig,
        key: bytes | None = None,
        far: Sequence[Contact] = (),
    ) -> None:
        """The last path begins at nodes that are not near: if those are all liars, it is not
        misled."""
        self.target = target
        self.key = key
        self.asked = 0
        self.failures = 0
        self.stopped = False
        self.empty: list[Contact] = []
        """Nodes that answered without a value."""
        self.value_hops = 0
        """How far away the first value was."""
        self._config = config
        self._known: dict[NodeId, _Known] = {}
        self._me = me
        self._paths: list[list[tuple[int, NodeId]]] = [[] for _ in range(config.paths)]
        self._under_way = [0] * config.paths
        self._answered: list[tuple[int, NodeId]] = []
        self._named: Counter[NodeId] = Counter()  # dead names less live ones, by who gave them
        near_paths = config.paths - 1 if far and config.paths > 1 else config.paths
        for number, contact in enumerate(seeds):
            self._learn(contact, number % near_paths, 1, None)
        for contact in far:
            self._learn(contact, config.paths - 1, 1, None)

    def next(self) -> list[Contact]:
        """Whom to ask now."""
        if self.stopped:
            return []
        chosen = []
        bound = self._bound()
        for path, candidates in enumerate(self._paths):
            for distance, node in candidates:
                if self._under_way[path] >= self._config.alpha or distance >= bound:
                    break
                known = self._known[node]
                if known.state == NEW and self.asked < self._config.asked_max:
                    known.state = ASKED
                    self.asked += 1
                    self._under_way[path] += 1
                    chosen.append(known.contact)
        return chosen

    def answered(self, node: NodeId, contacts: Iterable[Contact]) -> None:
        """A node answered, and named others."""
        known = self._done(node, ANSWERED)
        insort(self._answered, (known.distance, node))
        if known.source is not None:
            self._named[known.source] -= 1
        if known.hops < self._config.hops_max:
            for contact in contacts:
                self._learn(contact, known.path, known.hops + 1, node)

    def slow(self, node: NodeId) -> None:
        """A node has not answered yet: its path goes on, and its answer counts when it comes."""
        known = self._known[node]
        if known.state == ASKED:
            known.state = SLOW
            self._under_way[known.path] -= 1

    def failed(self, node: NodeId) -> None:
        """A node did not answer."""
        known = self._done(node, FAILED)
        self.failures += 1
        if known.source is not None:
            self._named[known.source] += 1
            if self._named[known.source] > DEAD_NAMES_MAX:
                self._disbelieve(known.source)

    def finished(self, *, patient: bool = False) -> bool:
        """Whether no answer that is still to come can change the result; ask after `next`. Slow
        nodes are waited for as long as nobody else has answered, and by who is patient: that nobody
        has a value is true only if all were heard."""
        if self.stopped:
            return True
        patient = patient or not self._answered
        bound, awaited = self._bound(), (ASKED, SLOW) if patient else (ASKED,)
        return not any(
            known.state in awaited and known.distance < bound for known in self._known.values()
        )

    @property
    def surveyed(self) -> int | None:
        """Up to which distance from the target everybody was asked whom anybody named; None if the
        search was cut short, or it may be us who are cut off: as many were silent as answered."""
        bound, left = self._bound(), (NEW, ASKED)
        silent = self.failures + sum(known.state == SLOW for known in self._known.values())
        if self.stopped or (bound == SPACE and silent >= len(self._answered)):
            return None
        if any(k.state in left and k.distance < bound for k in self._known.values()):
            return None
        return min(bound, SPACE - 1)

    def closest(self, count: int) -> list[Contact]:
        """The nearest nodes that answered, nearest first."""
        return [self._known[node].contact for _, node in self._answered[:count]]

    def distances(self) -> list[int]:
        """How far the nodes that answered are, nearest first."""
        return [distance for distance, _ in self._answered]

    def hops(self, node: NodeId) -> int:
        """Over how many nodes, itself included, a node was found."""
        return self._known[node].hops

    @property
    def reach(self) -> int:
        """Hops to the value, or else to the nearest node."""
        return self.value_hops or (self.hops(self._answered[0][1]) if self._answered else 0)

    def _bound(self) -> int:
        """Nodes that are farther away are of no use."""
        k = self._config.k
        return SPACE if len(self._answered) < k else self._answered[k - 1][0]

    def _learn(self, contact: Contact, path: int, hops: int, source: NodeId | None) -> None:
        node = contact.node
        if node == self._me or node in self._known or not contact.addresses:
            return
        distance = id_of_node(node) ^ self.target
        if distance >= self._bound():
            return
        self._known[node] = _Known(contact, distance, hops, path, source)
        insort(self._paths[path], (distance, node))

    def _done(self, node: NodeId, state: int) -> _Known:
        known = self._known[node]
        self._under_way[known.path] -= known.state == ASKED
        known.state = state
        return known

    def _disbelieve(self, source: NodeId) -> None:
        for known in self._known.values():
            if known.source == source and known.state == NEW:
                known.state = FAILED

    def check_invariants(self) -> None:
        """Raise InvariantViolated if a path asks too many, or counts wrongly."""
        for path, under_way in enumerate(self._under_way):
            asked = [k for k in self._known.values() if k.path == path and k.state == ASKED]
            if len(asked) != under_way or under_way > self._config.alpha:
                raise InvariantViolated(f"path {path} asks {len(asked)} nodes, counts {under_way}")
        if self._answered != sorted(self._answered) or self.asked > self._config.asked_max:
            raise InvariantViolated(f"{self.asked} were asked, {len(self._answered)} answered")
        names = [node for path in self._paths for _, node in path]
        if len(names) != len(set(names)):
            raise InvariantViolated("two paths share a node")
