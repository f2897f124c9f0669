"""Comparing two stores with a few numbers.

Each minute of message time at each place has a bucket: how many messages, and the sum of the
hashes of their ids. Two stores compare the sums of days, then of the minutes of days that differ,
then the ids of minutes that differ, then they send each other what is missing.

The sums are kept with each append, in its transaction: that costs a hash and an addition per
message (about half a microsecond), and one small write per minute touched. Computing them when
asked costs a scan of all keys: a second for each million messages compared, at every comparison.

Only ids count, not contents: two stores that hold different bodies for one id (equivocation) would
otherwise differ for ever. A publisher could construct ids whose hashes add up to nothing, and so
hide that messages of its own are missing; it cannot hide those of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from shoal.base.errors import UsageError
from shoal.protocols.streams.config import SIGNATURE_BYTES
from shoal.storage.config import StoreConfig
from shoal.storage.database import Database
from shoal.storage.layout import (
    BUCKET_MS,
    Place,
    Tables,
    Txn,
    bucket_key,
    bucket_of,
    bucket_value,
    end_of,
    read_bucket,
)
from shoal.storage.rows import BucketDigest

_SUM = 1 << 128
_BUCKETS_PER_READ = 16_384  # 10 ms of one read transaction; eleven days of minutes


def tail_hash(tail: bytes) -> int:
    """What a message adds to its bucket. The place is left out: its number is the store's own."""
    return int.from_bytes(blake2b(tail, digest_size=16).digest())


def body_digest(signed: bytes) -> bytes:
    """Tells two bodies apart. The signature is left out: one body may be signed twice."""
    return blake2b(memoryview(signed)[SIGNATURE_BYTES:], digest_size=16).digest()


class Changes:
    """What one transaction adds to and takes from the buckets of a place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._buckets: dict[int, tuple[int, int]] = {}

    def add(self, tail: bytes) -> None:
        """One message more."""
        bucket = int.from_bytes(tail[:8]) // BUCKET_MS
        count, total = self._buckets.get(bucket, (0, 0))
        self._buckets[bucket] = count + 1, total + tail_hash(tail)

    def remove(self, tail: bytes) -> None:
        """One message less."""
        bucket = int.from_bytes(tail[:8]) // BUCKET_MS
        count, total = self._buckets.get(bucket, (0, 0))
        self._buckets[bucket] = count - 1, total - tail_hash(tail)

    def write(self, txn: Txn, tables: Tables) -> None:
        """Into the tables; empty buckets leave nothing behind."""
        for bucket, (count, total) in self._buckets.items():
            key = bucket_key(self._place, bucket)
            held, held_total = read_bucket(txn.get(key, db=tables.buckets))
            if held + count:
                txn.put(key, bucket_value(held + count, held_total + total), db=tables.buckets)
            else:
                txn.delete(key, db=tables.buckets)


def read_digests(
    database: Database,
    config: StoreConfig,
    place: Place,
    begin_ms: int,
    end_ms: int,
    width_ms: int,
) -> list[BucketDigest]:
    """Digests of [begin, end) in steps of width, without the empty ones."""
    if width_ms < 1 or width_ms % BUCKET_MS or begin_ms % width_ms or end_ms % width_ms:
        raise UsageError(
            f"digests from {begin_ms} to {end_ms} ms by {width_ms}: the width is a multiple of"
            f" {BUCKET_MS}, begin and end are multiples of the width"
        )
    sums: dict[int, tuple[int, int]] = {}
    start = bucket_key(place, begin_ms // BUCKET_MS)
    end = min(bucket_key(place, end_ms // BUCKET_MS), end_of(place))
    while start < end:
        start = database.read(_sum_up, database.tables, start, end, width_ms, sums)
        if len(sums) > config.digests_max:
            raise UsageError(
                f"more than {config.digests_max} digests: take a wider width, or less time at once"
            )
    return [
        BucketDigest(begin, count, (total % _SUM).to_bytes(16))
        for begin, (count, total) in sums.items()
    ]


def _sum_up(
    txn: Txn,
    tables: Tables,
    start: bytes,
    end: bytes,
    width_ms: int,
    sums: dict[int, tuple[int, int]],
) -> bytes:
    """Add one transaction's worth of buckets; gives where to go on."""
    with txn.cursor(tables.buckets) as cursor:
        found = cursor.set_range(start)
        for _ in range(_BUCKETS_PER_READ):
            if not found or cursor.key() >= end:
                return end
            begin = bucket_of(cursor.key()) * BUCKET_MS // width_ms * width_ms
            count, total = sums.get(begin, (0, 0))
            held, held_total = read_bucket(cursor.value())
            sums[begin] = count + held, total + held_total
            found = cursor.next()
        return cursor.key() if found else end


def differing(mine: Iterable[BucketDigest], theirs: Iterable[BucketDigest]) -> list[int]:
    """Begins of the buckets in which two stores differ, in order; both asked for the same ones."""
    ours = {digest.begin_ms: digest for digest in mine}
    others = {digest.begin_ms: digest for digest in theirs}
    begins = sorted({*ours, *others})
    return [begin for begin in begins if ours.get(begin) != others.get(begin)]
