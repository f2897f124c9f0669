"""Units of time and size. Machines count time in integer nanoseconds, always."""

from __future__ import annotations

from datetime import UTC, datetime

from shoal.base.errors import UsageError

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


# Moments as people write them.


def parse_time(name: str, text: str) -> datetime:
    """Milliseconds since 1970, or a date and time with its zone."""
    remedy = f"{name} {text!r}: write milliseconds since 1970, or 2026-01-31T12:00:00Z"
    try:
        if text.isascii() and text.isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        when = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise UsageError(remedy) from None
    if when.tzinfo is None:
        raise UsageError(remedy)
    return when


def show_time(when: datetime) -> str:
    """As parse_time takes it, to the millisecond."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check_order(
    begin_name: str, begin: datetime | None, end_name: str, end: datetime | None
) -> None:
    """UsageError if something would end before it begins."""
    if begin is not None and end is not None and begin > end:
        raise UsageError(
            f"{begin_name} {show_time(begin)} is after {end_name} {show_time(end)}: "
            "give the earlier one first"
        )
