"""A topology that knows where its members are, and gets better while it is used.

It begins as the random one: a newcomer gets random links at once, and failures are filled at
random. Behind that, members measure round trips, of their links and of a few others that they are
asked to probe; a `DelayMap` makes expectations of them for all pairs; and every round exchanges
those links that slow flooding down most (`improvement.py`), at most `SWAPS_PER_MINUTE` for each
member. No member says where it is, and none is asked.

One newcomer in `KEPT_ONE_IN` keeps one of its first links, whatever it costs. Those links are
random by construction, and no lie about delays moves them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from random import Random

import numpy as np

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.protocols.streams.topology.delay_map import DelayMap
from shoal.protocols.streams.topology.delay_reports import Slots
from shoal.protocols.streams.topology.graph import Link
from shoal.protocols.streams.topology.link_swaps import Swap, Worth, best_swaps
from shoal.protocols.streams.topology.policy import Improvement, LinkChanges, Probes
from shoal.protocols.streams.topology.random_policy import RandomPolicy

ROUND_NS = 2 * S_NS
ROUND_MAX_NS = 300 * S_NS  # between rounds that find nothing: a tracker has thousands of streams
SWAPS_PER_MINUTE = 1.0  # of each member's links, in the mean: a swap moves two links of four
SOURCES_MAX = 32
SOURCES_MIN = 4
SEARCHES = 40_000  # members in all trees of a round: a few dozen milliseconds
PROPOSALS_MIN = 2048
PROPOSALS_MAX = 8192  # and between the two, four for each member
NEAREST = 16  # members nearby, of which one is proposed
FAR_SHARE = 0.5  # of proposals that look anywhere
REFRESH_ROUNDS = 2  # what was learned is taken in every second round, if nobody came or left
WORTH_A_ROUND = 0.0003  # of the mean delay: rounds that gain less become rare
LARGE = 1000  # members: rounds take longer from here on, and become rarer
SMALL = 256  # members: up to here every link of a member is looked at, not only the two worst
OVERLAP = 4  # swaps looked at for each that is done: they must not touch each other
GAIN_MIN = 0.01  # a swap must gain this share of the mean delay, if all members had one like it
GAIN_MIN_MS = 0.05  # and this much: less is noise, on a machine or in one building
KEPT_ONE_IN = 4
KEPT_SPARE = 16  # that may be gone already, besides as many as there are links
FIRST_PROBES = 8  # members anywhere, for a newcomer's place
NEAR_PROBES = 4  # and twice so many nearby
NEAR_ROUNDS = 2
WORTH_A_LOOK = 24  # nearby members, of which some were measured before
SETTLE_ROUNDS = 8  # a newcomer's place is found anew so often, while its probes come in


class AwarePolicy(RandomPolicy):
    """Random, then better."""

    def __init__(self, degree: int, rng: Random) -> None:
        super().__init__(degree, rng)
        self._numbers = np.random.default_rng(rng.getrandbits(64))
        self._map = DelayMap(rng.getrandbits(64))
        self._slots: dict[NodeId, int] = {}
        self._free: list[int] = []
        self._left: list[int] = []  # of members that are gone, and still spoken of
        self._kept: dict[Link, None] = {}
        self._asked: dict[NodeId, int] = {}  # newcomers, and how often each was told to probe
        self._placed: dict[NodeId, int] = {}  # members with a place, and how often it was found
        self._now_ns = 0
        self._pause_ns = ROUND_NS
        self._swaps_due = 0.0
        self._rounds = 0

    @property
    def pause_ns(self) -> int | None:
        """None while everybody is linked to all others, or nearly."""
        return None if self._is_small() else self._pause_ns

    def join(self, node: NodeId) -> LinkChanges:
        changes = super().join(node)
        self._rest(busy=True)
        if self._rng.randrange(KEPT_ONE_IN) == 0 and self._graph.neighbours(node):
            other = self._rng.choice(self._graph.neighbours(node))
            self._kept[(node, other) if node < other else (other, node)] = None
            if len(self._kept) > KEPT_SPARE + len(self._graph.links):
                self._drop_kept()  # small streams have no rounds
        return changes

    def leave(self, node: NodeId) -> LinkChanges:
        slot = self._slots.pop(node, None)
        if slot is not None:
            self._map.leave(slot)
            self._left.append(slot)
        self._asked.pop(node, None)
        self._placed.pop(node, None)
        self._rest(busy=True)
        return super().leave(node)

    def delay_learned(self, a: NodeId, b: NodeId, rtt_ns: int) -> LinkChanges:
        """Take note: the next round makes use of it."""
        if self._is_small():
            return LinkChanges()  # there are many such streams, and nothing to choose in them
        slot_a, slot_b = self._slot(a), self._slot(b)
        self._map.round_trips.learn(slot_a, slot_b, rtt_ns / 2e6, self._now_ns)
        return LinkChanges()

    def improve(self, settled: Callable[[NodeId], bool], now_ns: int) -> Improvement:
        """One round: see who is where, exchange links, and ask for what is not known yet."""
        elapsed_ns = min(max(now_ns - self._now_ns, 0), ROUND_MAX_NS) if self._now_ns else 0
        self._now_ns = now_ns
        nodes = list(self._graph.nodes)
        if not nodes:
            return Improvement()
        self._free_slots()
        slots = np.array([self._slot(node) for node in nodes], np.int64)
        self._rounds += 1
        placed = self._settle(nodes)
        if placed or self._rounds % REFRESH_ROUNDS == 0 or not self._map.is_of(slots):
            self._map.refresh(slots, now_ns)
        probes = self._probes(nodes, slots)
        due = self._swaps_due + len(nodes) * SWAPS_PER_MINUTE * elapsed_ns / (60 * S_NS)
        self._swaps_due = min(due, len(nodes) * SWAPS_PER_MINUTE / 6)
        gained = self._swap(nodes, slots, settled)
        self._rest(busy=gained > WORTH_A_ROUND or bool(probes))
        return Improvement(self._graph.take_changes(), probes)

    def _is_small(self) -> bool:
        return len(self._graph.nodes) <= self.degree + 2

    def _rest(self, *, busy: bool) -> None:
        """Wait before the next round: longer in large overlays, where a round takes its time, and
        longer each time that nothing came of it. Slowly, for the next one looks elsewhere."""
        least_ns = round(ROUND_NS * max(1.0, sqrt(len(self._slots) / LARGE)))
        longer_ns = min(self._pause_ns * 5 // 4, max(least_ns, ROUND_MAX_NS))
        self._pause_ns = least_ns if busy else longer_ns

    def _settle(self, nodes: list[NodeId]) -> bool:
        """Place those who have told their first round trips, and again while they tell more;
        whether there were any."""
        count = max(1, min(FIRST_PROBES // 2, len(nodes) - 1))
        known = self._map.round_trips.known
        new = [
            node
            for node in nodes
            if self._placed.get(node, 0) < SETTLE_ROUNDS and len(known(self._slots[node])) >= count
        ]
        self._map.settle(np.array([self._slots[node] for node in new], np.int64))
        for node in new:
            self._placed[node] = self._placed.get(node, 0) + 1
        return bool(new)

    # Swaps

    def _swap(self, nodes: list[NodeId], slots: Slots, settled: Callable[[NodeId], bool]) -> float:
        """Exchange links; by what share the mean delay should fall."""
        size, most = len(nodes), int(self._swaps_due)
        if self._on_hold or self._is_small() or not most:
            return 0.0
        self._drop_kept()
        index = {node: at for at, node in enumerate(nodes)}
        links = self._graph.links
        a = np.fromiter((index[link[0]] for link in links), np.int64, len(links))
        b = np.fromiter((index[link[1]] for link in links), np.int64, len(links))
        keep = np.fromiter((link in self._kept for link in links), bool, len(links))
        trees = max(SOURCES_MIN, min(SOURCES_MAX, SEARCHES // size))
        sources = self._numbers.choice(size, min(trees, size), replace=False)
        worth = Worth(size, a, b, sources, lambda x, y: self._map.expect(slots[x], slots[y]), keep)
        mean_ms = float(worth.ms.mean())
        least_ms = max(GAIN_MIN * mean_ms, GAIN_MIN_MS) / size
        touched: dict[int, None] = {}
        gained_ms = 0.0
        ranks = self.degree if size <= SMALL else 2
        for swap in best_swaps(worth, *self._proposals(slots), ranks, OVERLAP * most):
            if self._swaps_due < 1 or swap.gain_ms < least_ms:
                break
            if self._apply(swap, nodes, touched, settled):
                self._swaps_due -= 1
                gained_ms += swap.gain_ms
        return gained_ms / mean_ms

    def _drop_kept(self) -> None:
        self._kept = {link: None for link in self._kept if self._graph.linked(*link)}

    def _proposals(self, slots: Slots) -> tuple[Slots, Slots]:
        """Pairs of members to be linked, by their place in slots: nearby ones, and any."""
        size = len(slots)
        count = min(max(4 * size, PROPOSALS_MIN), PROPOSALS_MAX)
        a = self._numbers.integers(size, size=count)
        c = self._numbers.integers(size, size=count)
        near = np.flatnonzero(self._numbers.random(count) >= FAR_SHARE)
        found = self._map.nearest(slots[a[near]], NEAREST)
        chosen = found[np.arange(len(near)), self._numbers.integers(found.shape[1], size=len(near))]
        place = np.zeros(int(slots.max()) + 1, np.int64)
        place[slots] = np.arange(size)
        c[near] = place[chosen]
        return a, c

    def _apply(
        self,
        swap: Swap,
        nodes: list[NodeId],
        touched: dict[int, None],
        settled: Callable[[NodeId], bool],
    ) -> bool:
        four = (swap.a, swap.b, swap.c, swap.e)
        if any(one in touched for one in four):
            return False
        a, b, c, e = (nodes[one] for one in four)
        graph = self._graph
        if graph.linked(a, c) or graph.linked(b, e):
            return False
        if not all(node in self._placed and settled(node) for node in (a, b, c, e)):
            return False
        graph.cut(a, b)
        graph.cut(c, e)
        graph.link(a, c)
        graph.link(b, e)
        touched.update(dict.fromkeys(four))
        return True

    # Probes

    def _probes(self, nodes: list[NodeId], slots: Slots) -> Probes:
        """Whom newcomers are to measure: first anybody, then those who seem to be near."""
        node_of = dict(zip(slots.tolist(), nodes, strict=True))
        strangers = [node for node in nodes if node not in self._asked]
        drawn = self._numbers.integers(len(nodes), size=(len(strangers), FIRST_PROBES))
        newcomers = [n for n in nodes if 1 <= self._asked.get(n, 0) <= NEAR_ROUNDS]
        newcomers = [node for node in newcomers if node in self._placed]  # the others are silent
        near = np.array([self._slots[node] for node in newcomers], np.int64)
        found = [*slots[drawn], *self._map.nearest(near, WORTH_A_LOOK)]
        probes = []
        for node, seen in zip([*strangers, *newcomers], found, strict=True):
            slot = self._slots[node]
            known = dict.fromkeys([slot, *self._map.round_trips.known(slot).tolist()])
            whom = [other for other in dict.fromkeys(seen.tolist()) if other not in known]
            times = self._asked.get(node, 0)
            self._asked[node] = times + 1
            if whom:
                most = NEAR_PROBES if times else FIRST_PROBES
                probes.append((node, tuple([node_of[other] for other in whom[:most]])))
        return tuple(probes)

    def _slot(self, node: NodeId) -> int:
        slot = self._slots.get(node)
        if slot is None:
            if not self._free and len(self._left) > len(self._slots):
                self._free_slots()
            new = len(self._slots) + len(self._left)
            slot = self._slots[node] = self._free.pop() if self._free else new
            self._map.reserve(slot)
        return slot

    def _free_slots(self) -> None:
        """Of all who have left since the last time: to look for each in what everybody said would
        make the death of many quadratic."""
        if self._left:
            self._map.forget(np.array(self._left, np.int64))
            self._free += self._left
            self._left = []
