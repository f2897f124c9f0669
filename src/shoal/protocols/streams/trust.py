"""Whose word on round trips counts.

Both ends of a link measure it, and a probe is measured against the places that all words together
make. Whoever lies contradicts most of those that it measured; whoever is honest contradicts only
the liars among them. A member most of whose words are contradicted is not heard any more: where it
is follows from what others say of it, and so it has the place that it would have had.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.protocols.streams.round_trips import Flags, Floats, Slots, Words

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
