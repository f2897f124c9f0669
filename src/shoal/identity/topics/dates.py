"""Moments as JavaScript writes them: ISO 8601 in UTC with milliseconds, 2020-01-02T03:04:05.678Z.

Descriptors hold milliseconds since 1970. Text and number must stand for each other one to one, or
a descriptor would not come back as the bytes it was: so there is no other way to write a moment.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache

from shoal.base.errors import UsageError

_EPOCH = datetime(1970, 1, 1)
_MS = timedelta(milliseconds=1)
_TEXT_CHARS = 24
MOMENTS_MAX = 4096  # an event's is written four times while it passes through

CREATED_MS_MIN = (datetime.min - _EPOCH) // _MS
CREATED_MS_MAX = (datetime.max - _EPOCH) // _MS


@lru_cache(maxsize=MOMENTS_MAX)
def show_moment(created_ms: int) -> str:
    """The moment as descriptors write it, within CREATED_MS_MIN and CREATED_MS_MAX."""
    return (_EPOCH + created_ms * _MS).isoformat(timespec="milliseconds") + "Z"


@lru_cache(maxsize=MOMENTS_MAX)
def parse_moment(text: str) -> int:
    """Milliseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text[:-1]) if len(text) == _TEXT_CHARS else None
        if moment is not None and moment.isoformat(timespec="milliseconds") + "Z" == text:
            return (moment - _EPOCH) // _MS
    except ValueError:
        pass
    raise UsageError(f"{text[:_TEXT_CHARS]!r} is no moment: write 2020-01-02T03:04:05.678Z")
