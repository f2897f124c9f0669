"""Parts of the space whose nodes we know all of, since a lookup ended there a moment ago.

A lookup that found the k nearest nodes of a place has seen everybody in some subtree around it:
half of k to k nodes. If the subtrees beside it were seen as well, then the k nearest of any place
in there are known without asking. So a publisher of many values looks up every part of the space
once in a few minutes, not once for each value.

A part is forgotten after `survey_ns`, and as soon as we hear of a node in there that the lookup did
not see: where one came, others may have, too. Who does not answer is not counted on any more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import pairwise
from random import Random
from statistics import median

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, id_of_node, sibling
from shoal.protocols.dht.lookup import Lookup
from shoal.protocols.dht.routing_table import RoutingTable


class _Part(msgspec.Struct):
    """A subtree: `size` is a power of two, and `begin` a multiple of it."""

    begin: int
    size: int
    seen_ns: int
    nodes: dict[NodeId, Contact]


class Surveys:
    """What the last lookups saw."""

    def __init__(self, config: DhtConfig) -> None:
        self._config = config
        self._begins: list[int] = []  # parts do not overlap
        self._parts: dict[int, _Part] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def ended(self, lookup: Lookup, now_ns: int) -> None:
        """A lookup came to its end: remember whom it saw, if it saw everybody."""
        reach = lookup.surveyed
        if reach is None:
            return
        size = 1 << (reach + 1).bit_length() - 1
        begin = lookup.target & ~(size - 1)
        nodes = {
            one.node: one
            for one in lookup.closest(lookup.asked)
            if begin <= id_of_node(one.node) < begin + size
        }
        around = self._part(lookup.target)
        if around is not None and around.size > size:
            # Part of a larger one, which we know anew in here; the rest is as old as it was.
            outside = [n for n in around.nodes if not begin <= id_of_node(n) < begin + size]
            around.nodes = {node: around.nodes[node] for node in outside} | nodes
            return
        for inside in self._between(begin, begin + size):
            self._forget(inside)
        self._parts[begin] = _Part(begin, size, now_ns, nodes)
        self._begins.insert(bisect_left(self._begins, begin), begin)
        if len(self._parts) > self._config.surveys_max:
            self._forget(min(self._parts.values(), key=lambda part: part.seen_ns))

    def nearest(self, target: DhtId, now_ns: int) -> list[Contact] | None:
        """The nearest nodes of a place, nearest first: k and some that make up for who does not
        answer, or all there are; None if there may be others."""
        count = self._config.k * 5 // 4
        since_ns = now_ns - self._config.survey_ns
        part = self._part(target)
        if part is None or part.seen_ns < since_ns:
            return None
        begin, size, nodes = part.begin, part.size, list(part.nodes.values())
        while len(nodes) < count and size < SPACE:
            beside = begin ^ size
            parts = self._between(beside, beside + size)
            if sum([one.size for one in parts]) < size:
                return None
            if any(one.seen_ns < since_ns for one in parts):
                return None
            nodes += [contact for one in parts for contact in one.nodes.values()]
            begin, size = min(begin, beside), 2 * size
        if not nodes:
            return None  # all of them were lost since: it may be us who were cut off
        return sorted(nodes, key=lambda one: id_of_node(one.node) ^ target)

    def heard(self, contact: Contact) -> None:
        """A node lives."""
        part = self._part(id_of_node(contact.node))
        if part is not None and contact.addresses and contact.node not in part.nodes:
            self._forget(part)

    def lost(self, node: NodeId) -> None:
        """A node did not answer."""
        part = self._part(id_of_node(node))
        if part is not None:
            part.nodes.pop(node, None)

    def _part(self, place: DhtId) -> _Part | None:
        index = bisect_right(self._begins, place) - 1
        if index < 0:
            return None
        part = self._parts[self._begins[index]]
        return part if place < part.begin + part.size else None

    def _between(self, begin: int, end: int) -> list[_Part]:
        first, last = bisect_left(self._begins, begin), bisect_left(self._begins, end)
        return [self._parts[one] for one in self._begins[first:last]]

    def _forget(self, part: _Part) -> None:
        del self._parts[part.begin]
        del self._begins[bisect_left(self._begins, part.begin)]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if parts overlap, or a node is in the wrong one."""
        if self._begins != sorted(self._parts) or len(self) > self._config.surveys_max:
            raise InvariantViolated(f"{len(self._parts)} parts, {len(self._begins)} in order")
        for one, other in pairwise(self._between(0, SPACE)):
            if one.begin + one.size > other.begin:
                raise InvariantViolated(f"parts at {one.begin} and {other.begin} overlap")
        for part in self._parts.values():
            if part.begin % part.size or any(
                not part.begin <= id_of_node(node) < part.begin + part.size for node in part.nodes
            ):
                raise InvariantViolated(f"the part at {part.begin} holds what is not in it")


# How many nodes there are, and whether too many of them lie around one place.
#
# Places are hashes, so the k nearest nodes of any place need about the same room. Lookups of random
# places measure it. Where they need much less, somebody has tried many keys to get near: then
# values go, and are looked for, beside that place as well, where the attacker is not.


GROWN = 2.0  # chance does that to one of a few hundred nodes


class Density:
    """The size of the network, as the last lookups of random places saw it."""

    def __init__(self, table: RoutingTable, config: DhtConfig) -> None:
        self._table = table
        self._config = config
        self._samples: deque[float] = deque(maxlen=config.density_samples)

    @property
    def nodes(self) -> float | None:
        """About how many nodes there are; None as long as we know fewer than k. The median: nobody
        can crowd half of a few random places."""
        return median(self._samples) if self._samples else self._around_us()

    @property
    def outgrown(self) -> bool:
        """Whether our own neighbours, whom we know at any time, are much nearer than what was
        measured has it: the network has grown since, or somebody crowds us."""
        around = self._around_us()
        return around is not None and (not self._samples or around > GROWN * median(self._samples))

    def forget(self) -> None:
        """What was measured is out of date."""
        self._samples.clear()

    def measured(self, distances: list[int]) -> None:
        """How far the nearest nodes of a random place are, nearest first."""
        nodes = self._estimate(distances)
        if nodes is not None:
            self._samples.append(nodes)

    def crowded(self, distances: list[int]) -> bool:
        """Whether the nearest nodes of a place are nearer than chance would have them."""
        nodes, k = self.nodes, self._config.k
        if nodes is None or len(distances) < k:
            return False
        return nodes * distances[k - 1] / SPACE < self._config.crowded_part * k

    def beside(self, target: DhtId, rng: Random) -> list[DhtId]:
        """Places in the two neighbouring parts of the space: the inner one has half to all of k
        nodes, the outer one twice as many. Drawn anew each time, so that nobody waits there."""
        nodes, k = self.nodes or 1.0, self._config.k
        depth = max(1, int(nodes / k).bit_length() - 1)
        return [sibling(target, depth, rng), sibling(target, depth - 1, rng)]

    def _around_us(self) -> float | None:
        near = self._table.closest(self._table.id, self._config.k)
        return self._estimate([id_of_node(one.node) ^ self._table.id for one in near])

    def _estimate(self, distances: list[int]) -> float | None:
        k = self._config.k
        if len(distances) < k or not distances[k - 1]:
            return None
        return (k - 1) * SPACE / distances[k - 1]  # without bias
