"""Units of time and size. Machines count time in integer nanoseconds, always."""

from __future__ import annotations

US_NS = 1_000
MS_NS = 1_000_000
S_NS = 1_000_000_000

KIB = 1024
MIB = 1024 * KIB


def seconds(ns: int) -> float:
    """Nanoseconds as seconds, for people."""
    return ns / S_NS


def ns_of_seconds(value: float) -> int:
    """Seconds, as people write them in a file, as nanoseconds."""
    return round(value * S_NS)


def ns_of_ms(value: float) -> int:
    """Milliseconds, as delay tables give them, as nanoseconds."""
    return round(value * MS_NS)
