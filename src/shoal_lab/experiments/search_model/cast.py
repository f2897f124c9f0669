"""BubbleCast for many bubbles at once, hop by hop.

A node that has a bubble for the first time keeps it and passes the rest on in two halves: what
`protocols/search/casting.py` does with one message, here for whole columns of them. A bubble that
comes again goes on, whole, by a spare edge. Messages that come to a node with the same hop count
are taken one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from shoal.protocols.search.bubbles.seen_bubbles import COLLISIONS_MAX
from shoal.protocols.search.config import SearchConfig
from shoal_lab.experiments.search_model.circle import Flags, Graph, Numbers

SPLIT = SearchConfig().split
SEEN_BYTES = 1 << 26  # a byte for each bubble and node: so many bubbles go at once
SEEN_MAX = 255

Rows = npt.NDArray[np.int64]


class Links(NamedTuple):
    """What bubbles travel on."""

    graph: Graph
    living: Flags | None = None
    """Edges to others lead to silence; None: everybody lives."""
    reroutes: bool = False
    """Whether a send that fails is noticed, and goes to a spare edge at once."""


class Bubbles(NamedTuple):
    """Where bubbles came to: an entry for each node that a bubble reached."""

    bubble: Numbers
    node: Numbers
    hops: Rows
    """Of each bubble, the longest way to a node that it reached."""
    messages: int
    collisions: int
    """Messages that came to a node that had the bubble already."""
    load: Rows
    """Messages received, by the degree of the receiver."""


class Wave(NamedTuple):
    """Messages that arrive with the same hop count."""

    bubble: Numbers
    node: Numbers
    came: Numbers
    """The slot here of the edge that each came on; -1 at the origin."""
    size: Rows

    def at(self, rows: Rows) -> Wave:
        """These of them."""
        return Wave(self.bubble[rows], self.node[rows], self.came[rows], self.size[rows])


def cast(links: Links, origins: Numbers, size: int, seed: int) -> Bubbles:
    """One bubble of this size from each origin."""
    nodes = links.graph.nodes
    at_once = min(len(origins), max(1, SEEN_BYTES // nodes))
    seen = np.zeros(at_once * nodes, np.uint8)
    parts = []
    for done in range(0, len(origins), at_once):
        some = origins[done : done + at_once]
        part = _cast_batch(links, some, size, seed + done, seen)
        seen[part.bubble.astype(np.int64) * nodes + part.node] = 0
        parts.append(part._replace(bubble=part.bubble + np.int32(done)))
    return Bubbles(
        np.concatenate([part.bubble for part in parts]),
        np.concatenate([part.node for part in parts]),
        np.concatenate([part.hops for part in parts]),
        sum(part.messages for part in parts),
        sum(part.collisions for part in parts),
        np.sum([part.load for part in parts], axis=0),
    )


def _cast_batch(
    links: Links, origins: Numbers, size: int, seed: int, seen: npt.NDArray[np.uint8]
) -> Bubbles:
    count, degree = len(origins), links.graph.degree
    numbers = np.uint64(seed) + np.arange(count, dtype=np.uint64)
    wave = Wave(
        np.arange(count, dtype=np.int32),
        origins,
        np.full(count, -1, np.int32),
        np.full(count, size, np.int64),
    )
    hops = np.zeros(count, np.int64)
    load = np.zeros(int(degree.max(initial=0)) + 1, np.int64)
    reached, received, hop = [], 0, 0
    while len(wave.node):
        before = _arrive(wave, links.graph.nodes, seen)
        new = before == 0
        reached.append((wave.bubble[new], wave.node[new]))
        hops[wave.bubble[new]] = hop
        received += len(before)
        load += np.bincount(degree[wave.node], minlength=len(load))
        parts = [
            halve(links, wave.at(np.flatnonzero(new & (wave.size > 1))), numbers),
            _pass_on(links, wave, before, numbers),
        ]
        wave = _joined(parts)
        hop += 1
    load -= np.bincount(degree[origins], minlength=len(load))  # nobody sent it to them
    bubble, node = (np.concatenate(columns) for columns in zip(*reached, strict=True))
    return Bubbles(bubble, node, hops, received - count, received - len(node), load)


def _arrive(wave: Wave, nodes: int, seen: npt.NDArray[np.uint8]) -> Rows:
    """How often each message's bubble was at its node before; it is there once more now."""
    place = wave.bubble.astype(np.int64) * nodes + wave.node
    order = np.argsort(place, kind="stable")
    place = place[order]
    first = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    rank = np.arange(len(place)) - np.repeat(first, np.diff(np.r_[first, len(place)]))
    before: Rows = seen[place] + rank
    seen[place] = np.minimum(before + 1, SEEN_MAX)  # of equal places the last one stays
    found = np.empty_like(before)
    found[order] = before
    return found


def halve(links: Links, wave: Wave, numbers: npt.NDArray[np.uint64]) -> Wave:
    """What nodes send that got a bubble for the first time."""
    graph = links.graph
    candidates = permuted(graph, numbers[wave.bubble], wave.node, wave.came)
    chosen = np.arange(SPLIT) < candidates.there[:, None]
    peers = graph.peer[candidates.slots[:, :SPLIT]]
    out = chosen & (peers != wave.node[:, None])
    for at in range(1, SPLIT):  # of edges to the same node, one
        out[:, at] &= ~(out[:, :at] & (peers[:, :at] == peers[:, at : at + 1])).any(axis=1)
    ways = out.sum(axis=1)
    # The node itself, and what would only have come back to it.
    local = 1 + chosen.sum(axis=1) - ways
    sent = [_detour(links, wave.at(shut := np.flatnonzero(ways == 0)), candidates.at(shut))]
    each, more = np.divmod(np.maximum(wave.size - local, 0), np.maximum(ways, 1))
    tried = np.full(len(ways), SPLIT)
    for at in range(SPLIT):
        size = each + (out[:, :at].sum(axis=1) < more)
        rows = np.flatnonzero(out[:, at] & (size > 0))
        slots = _living_slots(links, wave, candidates, rows, np.full(len(rows), at), tried)
        sent.append(_sent(graph, wave.at(rows)._replace(size=size[rows]), slots))
    return _joined(sent)


def _detour(links: Links, wave: Wave, candidates: Candidates) -> Wave:
    """Where all chosen edges lead back to the node: by the next that does not, if there is one."""
    graph = links.graph
    columns = np.arange(candidates.slots.shape[1])
    away = graph.peer[candidates.slots] != wave.node[:, None]
    away &= columns < candidates.there[:, None]
    column = away.argmax(axis=1)
    rows = np.flatnonzero(away.any(axis=1) & (wave.size > 1 + column))
    slots = _living_slots(links, wave, candidates, rows, column[rows], column + 1)
    return _sent(graph, wave._replace(size=wave.size - 1 - column).at(rows), slots)


def _pass_on(links: Links, wave: Wave, before: Rows, numbers: npt.NDArray[np.uint64]) -> Wave:
    """Collisions: each goes on by the next spare edge, as long as the bound allows."""
    again = wave.at(rows := np.flatnonzero((before > 0) & (before <= COLLISIONS_MAX)))
    candidates = permuted(links.graph, numbers[again.bubble], again.node, again.came)
    there, turn = candidates.there, before[rows] - 1
    spares = np.maximum(there - SPLIT, 0)
    column = np.where(spares > 0, SPLIT + turn % np.maximum(spares, 1), turn % np.maximum(there, 1))
    able = np.flatnonzero(there > 0)
    # Never back: who sent it would only see it as one more collision.
    onward = again._replace(came=np.full_like(again.came, -1))
    slots = _living_slots(links, onward, candidates, able, column[able], column + 1)
    return _sent(links.graph, again.at(able), slots)


def _living_slots(
    links: Links, wave: Wave, candidates: Candidates, rows: Rows, column: Rows, tried: Rows
) -> Rows:
    """The slots by which messages of these rows go, -1 where they are lost.

    Each takes its column. If that leads back to the node itself, or to a peer that is known to be
    gone, it takes its row's next ones, from `tried` on and round; and in the end the way it came.
    """
    slots = candidates.slots[rows, column]
    end = tried + candidates.there
    pending = np.arange(len(rows))
    while len(pending := pending[_useless(links, slots[pending], wave.node[rows[pending]])]):
        of = rows[pending]
        turn = tried[of]
        tried[of] += 1
        slots[pending] = np.where(
            turn < end[of],
            candidates.slots[of, turn % candidates.there[of]],
            np.where(turn == end[of], wave.came[of], -1),
        )
    if links.living is not None:
        slots[~links.living[links.graph.peer[slots]]] = -1  # where it was -1, it stays so
    return slots


def _useless(links: Links, slots: Rows, node: Numbers) -> Flags:
    peer = links.graph.peer[slots]
    useless: Flags = peer == node
    if links.living is not None and links.reroutes:
        useless |= ~links.living[peer]
    return useless & (slots >= 0)


def _sent(graph: Graph, wave: Wave, slots: Rows) -> Wave:
    """These messages at the other ends of these slots."""
    kept = np.flatnonzero(slots >= 0)
    slots = slots[kept]
    return Wave(wave.bubble[kept], graph.peer[slots], graph.back[slots], wave.size[kept])


def _joined(waves: list[Wave]) -> Wave:
    return Wave(*(np.concatenate(columns) for columns in zip(*waves, strict=True)))


# In which order nodes consider their edges: another one for each bubble, the same each time.


DEGREE_MAX = 255

_GOLDEN, _MIX, _MIX_2 = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_INDEX = np.uint32(DEGREE_MAX)
_LAST = np.uint32(0xFFFFFFFF)


class Candidates(NamedTuple):
    """The edges that each of some messages may go on by."""

    slots: npt.NDArray[np.int64]
    """A row for each message, in its order; beyond its candidates there is nothing of meaning."""
    there: npt.NDArray[np.int64]
    """How many there are."""

    def at(self, rows: npt.NDArray[np.int64]) -> Candidates:
        """Of these messages alone."""
        return Candidates(self.slots[rows], self.there[rows])


def permuted(
    graph: Graph, number: npt.NDArray[np.uint64], node: Numbers, came: Numbers
) -> Candidates:
    """All edges but the one that the message came on (a slot, or -1), by bubble number and node."""
    first = graph.first[node]
    degree = graph.first[node + 1] - first
    columns = np.arange(max(2, int(degree.max(initial=0))), dtype=np.uint64)
    base = _mixed(_mixed(number) + node.astype(np.uint64))
    hashed = base[:, None] + columns * _GOLDEN
    hashed ^= hashed >> np.uint64(32)
    hashed *= _MIX
    # Sorted keys that end in the number of their edge: several times faster than an argsort.
    keys = (hashed >> np.uint64(32)).astype(np.uint32) & ~_INDEX | columns.astype(np.uint32)
    keys[columns >= degree.astype(np.uint64)[:, None]] = _LAST
    rows = np.flatnonzero(came >= 0)
    keys[rows, came[rows] - first[rows]] = _LAST
    keys.sort(axis=1)
    slots = first[:, None] + (keys & _INDEX)
    return Candidates(np.minimum(slots, len(graph.peer) - 1), degree - (came >= 0))


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Splitmix64: every bit of the result depends on every bit."""
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


# Which bubbles met: every query with every piece of data.


class Matched(NamedTuple):
    """How many pairs of bubbles have a living node in common."""

    pairs: int
    part: float
    error: float
    """Standard error of that part: pairs that share a bubble are not independent."""


def match(data: Bubbles, queries: Bubbles, living: Flags) -> Matched:
    """All pairs of a data and a query bubble."""
    # A product of counts: at how many nodes each pair met.
    met = ((_incidence(data, living) @ _incidence(queries, living).T) > 0).toarray()
    spread = sum(met.mean(axis=axis).var() / met.shape[1 - axis] for axis in (0, 1))
    return Matched(met.size, float(met.mean()), float(np.sqrt(spread)))


def _incidence(bubbles: Bubbles, living: Flags) -> csr_array:
    there = living[bubbles.node]
    at = bubbles.bubble[there], bubbles.node[there]
    shape = len(bubbles.hops), len(living)
    return csr_array((np.ones(len(at[0]), np.int32), at), shape=shape)
