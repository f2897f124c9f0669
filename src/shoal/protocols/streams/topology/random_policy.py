"""The paper's topology: a random regular graph, kept up one change at a time (section IV-B)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from shoal.base.errors import UsageError
from shoal.base.ids import NodeId
from shoal.protocols.streams.topology.graph import Graph, Link, reconnect
from shoal.protocols.streams.topology.policy import Improvement, LinkChanges

DEGREE_MIN = 3

# Random links tried before all of them are listed. A link is unsuitable for a node only if it
# touches the node or its neighbours, which at most d * d links do: with 2 * d * d links or more
# all tries fail once in 2 ** 64 runs, so that only graphs smaller than that are ever listed.
LINK_TRIES = 64


class RandomPolicy:
    """Keeps every slot filled, choosing uniformly, at a cost that does not depend on the size.

    Each run has the tracker algorithm's steps over the open nodes (those with a free slot):

    1. Pair up: link random suitable pairs until none is left. Suitable means distinct, not
       linked, and not the pair whose link just failed. The open nodes are then a clique.
    2. and 3. Interpose: a node with two free slots goes into a random link whose ends suit it.
    4. Switch (not in the paper): two open nodes with one free slot each take the two ends of a
       random link between them, one each.

    With d + 1 nodes or fewer step 1 alone gives the full mesh. Above that, count the neighbours:
    an open node has n - d >= 2 nodes or more that it is not linked to, these are full, and too few
    of their d links can lead into the neighbourhood to leave no link for steps 3 and 4. So every
    run ends with all slots filled, but for one if n * d is odd, even when one pair is barred.

    With d = 4 a graph that only grew links every pair with the same chance, d / (n - 1): a join
    cuts two disjoint links, and each link is disjoint from equally many. An odd d links every
    second newcomer to the one before it, which waits with a free slot. Joins never disconnect the
    graph; leaves and switches may, and `sweep` repairs that.
    """

    def __init__(self, degree: int, rng: Random) -> None:
        if degree < DEGREE_MIN:
            raise UsageError(
                f"a random overlay needs a degree of at least {DEGREE_MIN}, not {degree}: with 2, "
                "bursts of crashes left it disconnected 26 to 62 times in 100, with 3 at most 0.12"
            )
        self._graph = Graph(degree)
        self._rng = rng
        self._swept_version = self._graph.version
        self._on_hold = False

    @property
    def degree(self) -> int:
        """The number of links that every node gets if there are nodes enough."""
        return self._graph.degree

    @property
    def nodes(self) -> Collection[NodeId]:
        """A live view of the members in order of arrival."""
        return self._graph.nodes

    def neighbours(self, node: NodeId) -> tuple[NodeId, ...]:
        """The nodes linked to a member, oldest link first."""
        return self._graph.neighbours(node)

    def join(self, node: NodeId) -> LinkChanges:
        """Take in a node and fill its slots."""
        self._graph.add_node(node)
        self._fill()
        return self._graph.take_changes()

    def leave(self, node: NodeId) -> LinkChanges:
        """Drop a member with its links and fill the slots they held at its neighbours."""
        self._graph.remove_node(node)
        self._fill()
        return self._graph.take_changes()

    def link_failed(self, a: NodeId, b: NodeId) -> LinkChanges:
        """Cut a link and fill its two slots otherwise; they stay free if there is no other way."""
        if self._graph.linked(a, b):
            self._graph.cut(a, b)
            self._fill(barred=(a, b))
        return self._graph.take_changes()

    def delay_learned(self, a: NodeId, b: NodeId, rtt_ns: int) -> LinkChanges:
        """Change nothing: this policy is blind to delay."""
        return LinkChanges()

    def sweep(self) -> LinkChanges:
        """Fill what was left free and reconnect; free of cost if nothing changed since the last."""
        self._on_hold = False
        if self._graph.version != self._swept_version:
            self._fill()
            reconnect(self._graph, self._rng)
            self._swept_version = self._graph.version
        return self._graph.take_changes()

    @property
    def pause_ns(self) -> int | None:
        """There is nothing to improve."""
        return None

    def improve(self, settled: Callable[[NodeId], bool], now_ns: int) -> Improvement:
        """Change nothing."""
        return Improvement()

    def hold(self) -> None:
        """Fill nothing until the next sweep."""
        self._on_hold = True

    def place(self, node: NodeId, suits: Callable[[NodeId], bool]) -> LinkChanges:
        """Put a node into random links whose ends suit, or link it to open nodes that do. Only
        so many are tried: whoever finds none here waits for the sweep."""
        graph, rng = self._graph, self._rng
        for _ in range(LINK_TRIES):
            if graph.free_slots(node) < 2 or not graph.links:
                break
            a, b = graph.random_link(rng)
            if all(suits(end) and self._suitable(node, end, None) for end in (a, b)):
                graph.cut(a, b)
                graph.link(node, a)
                graph.link(node, b)
        for _ in range(LINK_TRIES):
            if not graph.free_slots(node):
                break
            other = graph.random_open_node(rng)
            if suits(other) and self._suitable(node, other, None):
                graph.link(node, other)
        return graph.take_changes()

    def adopt(self, a: NodeId, b: NodeId) -> bool:
        """Take over an existing link and its ends; False if an end has no free slot for it."""
        if a == b:
            raise UsageError(f"a node cannot be linked to itself: {a.hex()}")
        graph = self._graph
        for node in (a, b):
            if node not in graph.nodes:
                graph.add_node(node)
        if graph.linked(a, b):
            return True
        if not (graph.free_slots(a) and graph.free_slots(b)):
            return False
        graph.link(a, b)
        graph.take_changes()
        return True

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the graph or its indexes hold what must not exist."""
        self._graph.check_invariants()

    def _fill(self, barred: Link | None = None) -> None:
        if self._on_hold:
            return
        self._pair_up(barred)
        # In a full mesh there is nobody left to link to, and steps 3 and 4 would search in vain.
        if len(self._graph.nodes) > self.degree + 1:
            self._interpose(barred)
            self._switch(barred)

    def _pair_up(self, barred: Link | None) -> None:
        graph, rng = self._graph, self._rng
        open_nodes = graph.open_nodes
        # An open node has at most d - 1 neighbours and one barred partner: among d + 2 open nodes
        # there is always a suitable pair, and drawing until one comes up is uniform among them.
        while len(open_nodes) > self.degree + 1:
            a, b = graph.random_open_node(rng), graph.random_open_node(rng)
            if self._suitable(a, b, barred):
                graph.link(a, b)
        # Links made here only ever take suitable pairs away. Going through all of them in random
        # order is therefore the same as drawing each from those that are left.
        pairs = [
            (a, b)
            for at, a in enumerate(open_nodes)
            for b in open_nodes[:at]
            if self._suitable(a, b, barred)
        ]
        rng.shuffle(pairs)
        for a, b in pairs:
            if graph.free_slots(a) and graph.free_slots(b):
                graph.link(a, b)

    def _interpose(self, barred: Link | None) -> None:
        graph = self._graph
        for v in [node for node in graph.open_nodes if graph.free_slots(node) >= 2]:

            def suits(a: NodeId, b: NodeId, v: NodeId = v) -> bool:
                return self._suitable(v, a, barred) and self._suitable(v, b, barred)

            while graph.free_slots(v) >= 2:
                found = self._random_link(suits)
                if found is None:
                    break
                a, b = found
                graph.cut(a, b)
                graph.link(v, a)
                graph.link(v, b)

    def _switch(self, barred: Link | None) -> None:
        graph = self._graph
        while len(graph.open_nodes) >= 2:
            a, b = self._rng.sample(graph.open_nodes, 2)

            def suits(c: NodeId, e: NodeId, a: NodeId = a, b: NodeId = b) -> bool:
                return self._suitable(a, c, barred) and self._suitable(b, e, barred)

            found = self._random_link(suits)
            if found is None:
                break
            c, e = found
            graph.cut(c, e)
            graph.link(a, c)
            graph.link(b, e)

    def _suitable(self, a: NodeId, b: NodeId, barred: Link | None) -> bool:
        if a == b or self._graph.linked(a, b):
            return False
        return barred is None or (a not in barred or b not in barred)

    def _random_link(self, suits: Callable[[NodeId, NodeId], bool]) -> Link | None:
        """A link, in one of its two directions, uniformly among those that suit; None if none."""
        graph, rng = self._graph, self._rng
        for _ in range(LINK_TRIES if graph.links else 0):
            a, b = graph.random_link(rng)
            if rng.getrandbits(1):
                a, b = b, a
            if suits(a, b):
                return a, b
        fitting = [(a, b) for link in graph.links for a, b in (link, link[::-1]) if suits(a, b)]
        return rng.choice(fitting) if fitting else None
