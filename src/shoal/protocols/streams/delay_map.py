"""The delays that a tracker expects between any two members of a stream: what they measured, and
where nobody measured, what their places tell."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from shoal.protocols.streams.places import Places
from shoal.protocols.streams.round_trips import Flags, Floats, RoundTrips, Slots, Words
from shoal.protocols.streams.trust import judge

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
