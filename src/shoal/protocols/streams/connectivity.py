"""Finding the parts of a graph that fell apart, and joining them again.

Run by a policy's sweep, never on a join: it looks at every link once.
"""

from __future__ import annotations

from random import Random

from shoal.base.ids import NodeId
from shoal.protocols.streams.graph import Graph, Link


def reconnect(graph: Graph, rng: Random) -> int:
    """Join all components into one within the degree bound (3 or more); how many were merged.

    The largest component takes in the others, one by one, by the first that applies:

    - both have an open node: link the two;
    - the other has a link that closes a cycle: a 2-switch of that link and a random one of the
      largest component. The other stays in one piece without its link, so that both halves of
      the largest hang on it even if the link cut there was a bridge;
    - the other is a tree: a leaf of it has two free slots or more and goes into a random link of
      the largest.
    """
    forest = _Forest(graph)
    components: dict[NodeId, list[NodeId]] = {}
    for node in graph.nodes:
        components.setdefault(forest.root(node), []).append(node)
    if len(components) <= 1:
        return 0
    spare: dict[NodeId, list[Link]] = {}
    for link in forest.spare:
        spare.setdefault(forest.root(link[0]), []).append(link)
    main = max(components, key=lambda root: len(components[root]))
    main_open = _open_nodes(graph, components[main])
    for root, members in components.items():
        if root == main:
            continue
        members_open = _open_nodes(graph, members)
        if main_open and members_open:
            at = rng.randrange(len(main_open))
            graph.link(main_open[at], rng.choice(members_open))
            if not graph.free_slots(main_open[at]):
                main_open[at] = main_open[-1]
                main_open.pop()
        elif root in spare:
            a, b = rng.choice(spare[root])
            c, e = _random_link_within(graph, forest, main, rng)
            graph.cut(a, b)
            graph.cut(c, e)
            graph.link(a, c)
            graph.link(b, e)
        else:
            leaf = max(members_open, key=graph.free_slots)
            c, e = _random_link_within(graph, forest, main, rng)
            graph.cut(c, e)
            graph.link(leaf, c)
            graph.link(leaf, e)
        forest.unite(root, main)
        main_open += _open_nodes(graph, members_open)
    return len(components) - 1


def _open_nodes(graph: Graph, nodes: list[NodeId]) -> list[NodeId]:
    return [node for node in nodes if graph.free_slots(node)]


def _random_link_within(graph: Graph, forest: _Forest, member: NodeId, rng: Random) -> Link:
    # Rejection keeps the choice uniform. The largest of k components holds about 1/k of the links
    # or more, and grows with each merge: O(k log k) tries for all merges together.
    while True:
        a, b = graph.random_link(rng)
        if forest.root(a) == forest.root(member):
            return (a, b) if rng.getrandbits(1) else (b, a)


class _Forest:
    """Disjoint sets over a graph's nodes, and the links left over once the sets are joined.

    Every spare link closes a cycle with links before it, so that cutting one disconnects nothing.
    """

    def __init__(self, graph: Graph) -> None:
        self._parent: dict[NodeId, NodeId] = {node: node for node in graph.nodes}
        self._size: dict[NodeId, int] = dict.fromkeys(graph.nodes, 1)
        self.spare: list[Link] = [link for link in graph.links if not self.unite(*link)]

    def root(self, node: NodeId) -> NodeId:
        """The node that stands for the set."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def unite(self, a: NodeId, b: NodeId) -> bool:
        """Join two sets; False if they are one already."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return False
        if self._size[a] < self._size[b]:
            a, b = b, a
        self._parent[b] = a
        self._size[a] += self._size[b]
        return True
