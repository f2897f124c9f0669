"""The delays that a tracker expects between any two members of a stream: what they measured, and
where nobody measured, what their places tell."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from shoal.protocols.streams.topology.delay_reports import (
    NOBODY,
    Flags,
    Floats,
    Pairs,
    RoundTrips,
    Slots,
    Words,
    judge,
)

FIT_STEPS = 2  # a refresh: words come in slowly, and places follow
CAPACITY_MIN = 64
DOUBT = 1.05  # what nobody measured: of many guesses, those that are too low would be tried first
NEARER_MAX = 0.5  # two that say to be nearer than this share of what all others make of it,
NEARER_MS = 2.0  # less this, are not believed: they may have agreed on it


class DelayMap:
    """Members are slots; memory grows with their number."""

    def __init__(self, seed: int) -> None:
        self.round_trips = RoundTrips()
        self._places = Places(seed)
        self._pairs = self.round_trips.pairs(self.round_trips.words(0), np.zeros(0, bool))
        self._members: Slots = np.zeros(0, np.int64)
        self._trusted: Flags = np.zeros(0, bool)
        self._tree: cKDTree | None = None

    def is_of(self, members: Slots) -> bool:
        """Whether the last refresh was for just these members."""
        return np.array_equal(self._members, members)

    def reserve(self, slot: int) -> None:
        """Make room for a slot."""
        if slot >= self.round_trips.capacity:
            capacity = max(CAPACITY_MIN, 2 * slot)
            more = capacity - self.round_trips.capacity
            self._trusted = np.concatenate((self._trusted, np.ones(more, bool)))
            self.round_trips.grow(capacity)
            self._places.grow(capacity)

    def leave(self, slot: int) -> None:
        """A member is gone, and with it what it said."""
        self.round_trips.leave(slot)
        self._trusted[slot] = True

    def forget(self, slots: Slots) -> None:
        """What was said of members that are gone: others may get their slots."""
        self.round_trips.forget(slots)

    def settle(self, slots: Slots) -> None:
        """Members have told their first round trips: see where they are."""
        slots = slots[self._trusted[slots]]
        if slots.size:
            self._places.settle(slots, *self.round_trips.rows(slots))

    def refresh(self, members: Slots, now_ns: int) -> None:
        """Take in what was learned since the last time; who is there now."""
        self._members = members
        words = self.round_trips.words(now_ns)
        before, self._trusted = self._trusted, self._judge(words)
        self._pairs = self.round_trips.pairs(words, self._trusted)
        self._move_away(np.flatnonzero(before & ~self._trusted))
        self._places.fit(self._pairs, FIT_STEPS)
        self._places.correct(self._pairs, members, members[self._trusted[members]])
        self._tree = cKDTree(self._places.positions(members)) if members.size else None

    def expect(self, a: Slots, b: Slots) -> Floats:
        """One-way delays of pairs, in milliseconds."""
        expected = self._places.expect(a, b) * DOUBT
        key = np.minimum(a, b) * self.round_trips.capacity + np.maximum(a, b)
        at = np.searchsorted(self._pairs.key, key)
        at[at == len(self._pairs.key)] = 0
        if self._pairs.key.size:
            measured = self._pairs.key[at] == key
            least = expected[measured] * (NEARER_MAX / DOUBT) - NEARER_MS
            expected[measured] = np.maximum(self._pairs.ms[at[measured]], least)
        return expected

    def _move_away(self, liars: Slots) -> None:
        """Whoever was found out goes from where it said to be to where others say that it is."""
        for liar in liars:
            one, other = self._pairs.a == liar, self._pairs.b == liar
            peers = np.concatenate((self._pairs.b[one], self._pairs.a[other]))
            ms = np.concatenate((self._pairs.ms[one], self._pairs.ms[other]))
            if peers.size:
                self._places.settle(np.array([liar]), peers[None, :], ms[None, :])

    def _judge(self, words: Words) -> Flags:
        return judge(words, self._places.expect, self.round_trips.capacity)

    def nearest(self, slots: Slots, count: int) -> Slots:
        """For each of some members, others whose places are nearest; itself may be among them."""
        if self._tree is None or not slots.size:
            return slots[:, None]
        _, found = self._tree.query(self._places.positions(slots), min(count, len(self._members)))
        nearest: Slots = self._members[np.asarray(found).reshape(len(slots), -1)]
        return nearest


# Where members are, as far as their round trips tell: network coordinates.
#
# Each member has a position in a space of a few dimensions and a height above it, so that the delay
# between two is about the distance of their positions plus both heights (Vivaldi, with all words at
# hand rather than one at a time). Positions stand for the way across the world, heights for the way
# to it: whoever sits behind a slow access line is far from everybody, its neighbours too.
#
# Real delays do not fit into any such space: routes make detours, and some direct ways are slower
# than ways around them. Members that are close together share most of that. So the space is cut
# into cells, and what delays between two cells differ from distances by, in the median, is added. A
# median, since some words may be lies.


DIMENSIONS = 4  # a sphere needs three; more bring less than they take to learn
CELLS_MAX = 32
CELL_STEPS = 3  # of moving cells to the middle of their members
GRAIN_MS = 2.0  # errors count relative to the delay, but not below this
ERROR_MAX = 0.5  # and no more than this: what fits nowhere must not pull at everything
STEP = 0.5  # of the way to where words pull a member
HEIGHT_STEP = 0.15
LEAST_MS = 0.02  # no two members are nearer than this
SETTLE_STEPS = 24
SHRINKAGE = 2.0  # words that a correction between two cells needs to count half


class Places:
    """Positions and heights by slot."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._positions: Floats = np.zeros((0, DIMENSIONS))
        self._heights: Floats = np.zeros(0)
        self._cells: Slots = np.zeros(0, np.int64)
        self._corrections: Floats = np.zeros((1, 1))

    def grow(self, capacity: int) -> None:
        """Make room for more members, each somewhere near the middle."""
        more = capacity - len(self._heights)
        drawn = self._rng.normal(size=(more, DIMENSIONS))
        self._positions = np.concatenate((self._positions, drawn))
        self._heights = np.concatenate((self._heights, np.full(more, 0.5)))
        self._cells = np.concatenate((self._cells, np.zeros(more, np.int64)))

    def settle(self, slots: Slots, peers: Slots, ms: Floats) -> None:
        """Find places for members, each from a row of words on others that have one. Words that
        are not there are of NOBODY, and each row has some."""
        there = peers != NOBODY
        nearest = peers[np.arange(len(slots)), np.where(there, ms, np.inf).argmin(axis=1)]
        drawn = self._rng.normal(size=(len(slots), DIMENSIONS))
        position = self._positions[nearest] + drawn
        height = self._heights[nearest]
        places, heights = self._positions[peers], self._heights[peers]
        weight = there / (ms + GRAIN_MS)
        weight /= weight.sum(axis=1, keepdims=True)
        for _ in range(SETTLE_STEPS):
            apart = position[:, None, :] - places
            length = np.sqrt((apart * apart).sum(axis=2)) + 1e-9
            pull = _bounded(ms - (length + heights + height[:, None]), ms) * weight
            position += STEP * ((pull / length)[:, :, None] * apart).sum(axis=1)
            height = np.maximum(LEAST_MS, height + HEIGHT_STEP * pull.sum(axis=1))
        self._positions[slots], self._heights[slots] = position, height

    def fit(self, pairs: Pairs, steps: int) -> None:
        """Move everybody to where all words pull it."""
        one = np.concatenate((pairs.a, pairs.b))
        other = np.concatenate((pairs.b, pairs.a))
        ms = np.concatenate((pairs.ms, pairs.ms))
        weight = np.concatenate((pairs.weight, pairs.weight)) / (ms + GRAIN_MS)
        size = len(self._heights)
        total = np.bincount(one, weight, size) + 1e-9
        for _ in range(steps):
            apart = self._positions[one] - self._positions[other]
            length = np.sqrt((apart * apart).sum(axis=1)) + 1e-9
            expected = length + self._heights[one] + self._heights[other]
            pull = _bounded(ms - expected, ms) * weight
            for axis in range(DIMENSIONS):
                moved = np.bincount(one, pull * apart[:, axis] / length, size)
                self._positions[:, axis] += STEP * moved / total
            risen = self._heights + HEIGHT_STEP * np.bincount(one, pull, size) / total
            self._heights = np.maximum(LEAST_MS, risen)

    def correct(self, pairs: Pairs, members: Slots, trusted: Slots) -> None:
        """Cut the space into cells, by those of the members that are trusted, and learn what delays
        between cells differ by."""
        self._cut(members, trusted if trusted.size else members)
        count = int(self._cells.max(initial=0)) + 1
        self._corrections = np.zeros((count, count))
        if not pairs.a.size:
            return
        left = pairs.ms - self._distance(pairs.a, pairs.b)
        one, other = self._cells[pairs.a], self._cells[pairs.b]
        key = np.minimum(one, other) * count + np.maximum(one, other)
        order = np.lexsort((left, key))
        key = key[order]
        starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
        counts = np.diff(np.concatenate((starts, [len(key)])))
        median = left[order][starts + counts // 2] * counts / (counts + SHRINKAGE)
        one, other = key[starts] // count, key[starts] % count
        self._corrections[one, other] = self._corrections[other, one] = median

    def expect(self, a: Slots, b: Slots) -> Floats:
        """The delays that places tell, in milliseconds."""
        corrected = self._distance(a, b) + self._corrections[self._cells[a], self._cells[b]]
        return np.maximum(corrected, LEAST_MS)

    def positions(self, members: Slots) -> Floats:
        """Where members are; heights left aside."""
        return self._positions[members]

    def _distance(self, a: Slots, b: Slots) -> Floats:
        apart = self._positions[a] - self._positions[b]
        distance: Floats = np.sqrt((apart * apart).sum(axis=1)) + self._heights[a]
        return distance + self._heights[b]

    def _cut(self, members: Slots, trusted: Slots) -> None:
        positions = self._positions[trusted]
        chosen = [0]
        nearest = _squares(positions, positions[:1])[:, 0]
        while len(chosen) < min(CELLS_MAX, len(trusted)):
            farthest = int(nearest.argmax())  # from all centres so far
            chosen.append(farthest)
            nearest = np.minimum(nearest, _squares(positions, positions[[farthest]])[:, 0])
        centres = positions[chosen]
        for _ in range(CELL_STEPS):
            cells = _squares(positions, centres).argmin(axis=1)
            counts = np.bincount(cells, minlength=len(centres))
            sums = [np.bincount(cells, positions[:, k], len(centres)) for k in range(DIMENSIONS)]
            means = np.stack(sums, axis=1) / np.maximum(counts, 1)[:, None]
            centres = np.where(counts[:, None] > 0, means, centres)
        self._cells[members] = _squares(self._positions[members], centres).argmin(axis=1)


def _bounded(error: Floats, ms: Floats) -> Floats:
    limit = ERROR_MAX * (ms + GRAIN_MS)
    bounded: Floats = np.clip(error, -limit, limit)
    return bounded


def _squares(positions: Floats, centres: Floats) -> Floats:
    """Squared distances of all to all."""
    across = positions @ centres.T
    squares: Floats = (positions**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * across
    squares = np.maximum(squares, 0.0)
    return squares
