"""A token bucket for each of many keys, in bounded memory."""

from __future__ import annotations

from collections.abc import Hashable


class RateLimit:
    """`burst` at once, then one per `refill_ns`; the longest unused key is forgotten first."""

    def __init__(self, burst: int, refill_ns: int, keys_max: int) -> None:
        self._burst_ns = burst * refill_ns
        self._refill_ns = refill_ns
        self._keys_max = keys_max
        self._spent_until: dict[Hashable, int] = {}  # key -> when its bucket is full again

    def allow(self, key: Hashable, now_ns: int, tokens: int = 1) -> bool:
        """Take one token, or so many, if they are there."""
        spent_ns = max(self._spent_until.pop(key, now_ns), now_ns)
        full_ns = spent_ns + tokens * self._refill_ns
        allowed = full_ns - now_ns <= self._burst_ns
        self._spent_until[key] = full_ns if allowed else spent_ns
        if len(self._spent_until) > self._keys_max:
            del self._spent_until[next(iter(self._spent_until))]
        return allowed
