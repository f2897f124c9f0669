"""The time of day, which may be set ahead and back, beside the monotonic time of `handle`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class WallClock:
    """What the time of day is. A machine makes one, named `wall`, and hands it to its parts; the
    driver keeps it right. Without a driver that knows better, both times are the same."""

    __slots__ = ("offset_ns",)

    def __init__(self, offset_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        """By how much it is ahead of the monotonic time; only drivers and tests set it."""

    def read(self, now_ns: int) -> int:
        """Unix time at a monotonic time of now: for timestamps, and for what is compared with
        timestamps. It may go back, and jump ahead."""
        return now_ns + self.offset_ns


@runtime_checkable
class ReadsWall(Protocol):
    """A machine, or a disk, that asks for the time of day."""

    wall: WallClock
