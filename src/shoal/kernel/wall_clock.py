"""The time of day, which may be set ahead and back, beside the monotonic time of `handle`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from shoal.base.units import S_NS

SLEWED_NS = S_NS  # smaller changes are a clock that is kept right
SETTLES_NS = 20 * S_NS  # a wrong reading is often set right by then
NEVER_NS = -(2**62)


class WallClock:
    """What the time of day is. A machine makes one, named `wall`, and hands it to its parts; the
    driver keeps it right. Without a driver that knows better, both times are the same."""

    __slots__ = ("_before_ns", "offset_ns", "stepped_ns")

    def __init__(self, offset_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        """By how much it is ahead of the monotonic time."""
        self.stepped_ns = NEVER_NS
        """When it was last set, by more than a second, in monotonic time."""
        self._before_ns = offset_ns  # of the last reading that lasted

    def read(self, now_ns: int) -> int:
        """Unix time at a monotonic time of now: for timestamps, and for what is compared with
        timestamps. It may go back, and jump ahead."""
        return now_ns + self.offset_ns

    def is_settled(self, now_ns: int, for_ns: int) -> bool:
        """Whether it was not set for so long: what follows from a wrong reading and cannot be
        undone has to wait for that."""
        return now_ns - self.stepped_ns >= for_ns

    def latest(self, now_ns: int) -> int:
        """The later one of the time of day and of what it would be if it had not just been set: for
        a while nobody knows which of them is right."""
        if self.is_settled(now_ns, SETTLES_NS):
            return now_ns + self.offset_ns
        return now_ns + max(self.offset_ns, self._before_ns)

    def earliest(self, now_ns: int) -> int:
        """The earlier one of them: for what must not be too late."""
        if self.is_settled(now_ns, SETTLES_NS):
            return now_ns + self.offset_ns
        return now_ns + min(self.offset_ns, self._before_ns)

    def set(self, offset_ns: int, now_ns: int) -> None:
        """From now on it is so far ahead: for drivers."""
        if abs(offset_ns - self.offset_ns) >= SLEWED_NS:
            if self.is_settled(now_ns, SETTLES_NS):
                self._before_ns = self.offset_ns
            self.stepped_ns = now_ns
        self.offset_ns = offset_ns


@runtime_checkable
class ReadsWall(Protocol):
    """A machine, or a disk, that asks for the time of day."""

    wall: WallClock
