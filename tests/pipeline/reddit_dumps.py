"""Small dumps of comments, packed as the public ones are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import zstandard

FIRST_UTC = 1_193_875_200


def pack_zst(content: bytes) -> bytes:
    """With the window that the dumps have, and of a length that is not told beforehand."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=31)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(content) + packer.flush()


def comment(number: int, **more: Any) -> dict[str, Any]:
    """Subreddits of 60, 30 and 10 in a hundred comments, by 20 people."""
    place = number % 100
    return {
        "id": f"c{number:05}",
        "author": f"user-{number * 7 % 20}",
        "subreddit": "politics" if place < 60 else "programming" if place < 90 else "science",
        # As text in some months, and as a number in others.
        "created_utc": str(FIRST_UTC + number) if number % 2 else FIRST_UTC + number,
        "body": "é" * (number % 5 + 1),
        "score": 1,
        **more,
    }


def as_lines(*records: Any) -> bytes:
    return b"".join(_lines(records))


def _lines(records: Any) -> Iterator[bytes]:
    for record in records:
        yield (record if isinstance(record, bytes) else msgspec.json.encode(record)) + b"\n"
