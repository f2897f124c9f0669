"""What the members of a stream have told of their round trips: a bounded number for each.

A row for each member, with its newest words; a word is half a round trip, in milliseconds. Both
ends of a link measure the same, so that one pair may have two words. The larger one counts: an
answer can be held back but not given early, so whoever looks nearer than it is has lied.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.base.units import S_NS

WORDS_MAX = 24  # of each member: its links, and as many probes as tell where it is
NOBODY = -1
HALF_LIFE_NS = 600 * S_NS  # a word of this age counts half: routes change

Floats = NDArray[np.float64]
Slots = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Words(msgspec.Struct, frozen=True):
    """All words, in order of who said them on whom."""

    slot: Slots
    peer: Slots
    ms: Floats
    answer_ms: Floats
    """What the other said on the same pair; not a number if nothing."""
    weight: Floats
    """1 for a new word, less for an older one."""


class Pairs(msgspec.Struct, frozen=True):
    """Measured pairs of members, the smaller slot first, in order of their key."""

    a: Slots
    b: Slots
    ms: Floats
    weight: Floats
    key: Slots


class RoundTrips:
    """Words by slot: a small number that stands for a member while it is one."""

    def __init__(self) -> None:
        self._peers: Slots = np.full((0, WORDS_MAX), NOBODY)
        self._ms: Floats = np.zeros((0, WORDS_MAX))
        self._told_ns: Slots = np.zeros((0, WORDS_MAX), np.int64)

    @property
    def capacity(self) -> int:
        """How many slots there are."""
        return len(self._peers)

    def grow(self, capacity: int) -> None:
        """Make room for more members."""
        more = capacity - self.capacity
        self._peers = np.concatenate((self._peers, np.full((more, WORDS_MAX), NOBODY)))
        self._ms = np.concatenate((self._ms, np.zeros((more, WORDS_MAX))))
        self._told_ns = np.concatenate((self._told_ns, np.zeros((more, WORDS_MAX), np.int64)))

    def learn(self, slot: int, peer: int, ms: float, now_ns: int) -> None:
        """A member's newest word on another, in place of its last on the same, or its oldest."""
        peers = self._peers[slot]
        known = np.flatnonzero(peers == peer)
        if known.size:
            at = int(known[0])
        else:
            free = np.flatnonzero(peers == NOBODY)
            at = int(free[0]) if free.size else int(self._told_ns[slot].argmin())
        peers[at] = peer
        self._ms[slot, at] = ms
        self._told_ns[slot, at] = now_ns

    def leave(self, slot: int) -> None:
        """A member is gone, and with it what it said."""
        self._peers[slot] = NOBODY

    def forget(self, slots: Slots) -> None:
        """What was said of these, who are gone."""
        gone = np.zeros(self.capacity + 1, bool)  # the last one is nobody, who is -1
        gone[slots] = True
        self._peers[gone[self._peers]] = NOBODY

    def known(self, slot: int) -> Slots:
        """Whom a member has measured."""
        peers = self._peers[slot]
        known: Slots = peers[peers != NOBODY]
        return known

    def rows(self, slots: Slots) -> tuple[Slots, Floats]:
        """Whom some members have measured, and what; NOBODY where a row ends early."""
        return self._peers[slots], self._ms[slots]

    def words(self, now_ns: int) -> Words:
        """All that was said, each with what the other said on it."""
        slot, at = np.nonzero(self._peers != NOBODY)
        key = slot * self.capacity + self._peers[slot, at]
        order = np.argsort(key)
        key, slot, at = key[order], slot[order], at[order]
        peer, ms = self._peers[slot, at], self._ms[slot, at]
        back = peer * self.capacity + slot
        found = np.minimum(np.searchsorted(key, back), max(len(key) - 1, 0))
        answer_ms = np.where(key[found] == back, ms[found], np.nan) if key.size else ms
        age_ns = np.maximum(now_ns - self._told_ns[slot, at], 0)
        return Words(slot, peer, ms, answer_ms, HALF_LIFE_NS / (HALF_LIFE_NS + age_ns))

    def pairs(self, words: Words, trusted: Flags) -> Pairs:
        """Every pair that somebody measured who is trusted, once."""
        answered = trusted[words.peer] & ~np.isnan(words.answer_ms)
        # Of two words, the larger one, which the smaller slot brings along.
        chosen = trusted[words.slot] & ((words.slot < words.peer) | ~answered)
        ms = np.where(answered, np.fmax(words.ms, words.answer_ms), words.ms)[chosen]
        slot, peer = words.slot[chosen], words.peer[chosen]
        a, b = np.minimum(slot, peer), np.maximum(slot, peer)
        key = a * self.capacity + b
        order = np.argsort(key)
        return Pairs(a[order], b[order], ms[order], words.weight[chosen][order], key[order])


# Whose word on round trips counts.
#
# Both ends of a link measure it, and a probe is measured against the places that all words together
# make. Whoever lies contradicts most of those that it measured; whoever is honest contradicts only
# the liars among them. A member most of whose words are contradicted is not heard any more: where
# it is follows from what others say of it, and so it has the place that it would have had.


WORDS_MIN = 4  # fewer say nothing
ODD_SHARE = 0.5
APART_SHARE = 0.25  # two ends of a link may differ by this share of the delay,
APART_MS = 1.0  # and this much
OFF_SHARE = 0.6  # and a delay from what places tell by this,
OFF_MS = 5.0  # and this


def judge(words: Words, expect: Callable[[Slots, Slots], Floats], capacity: int) -> Flags:
    """Which members, by slot, are trusted."""
    expected = expect(words.slot, words.peer)
    answered = ~np.isnan(words.answer_ms)
    other_ms = np.where(answered, words.answer_ms, expected)
    share = np.where(answered, APART_SHARE, OFF_SHARE)
    least = np.where(answered, APART_MS, OFF_MS)
    odd = np.abs(words.ms - other_ms) > share * np.maximum(words.ms, other_ms) + least
    said = np.bincount(words.slot, minlength=capacity)
    contradicted = np.bincount(words.slot, odd, minlength=capacity)
    trusted: Flags = (said < WORDS_MIN) | (contradicted <= ODD_SHARE * said)
    return trusted
