"""Which partition of a stream a message goes to.

A stream has as many partitions as its settings say, one unless told otherwise. Order is kept per
chain, and a chain is one publisher process in one partition: whatever must stay in order needs the
same partition, and so the same key.

The partition of a key is SHA-256 over the key, its first 8 bytes as a big-endian number, modulo
the stream's partitions. Text counts as its UTF-8 bytes, a whole number as its decimal digits, so
12 and "12" are the same key. It is the same in every process and every version: a test pins it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId

Key = str | bytes | int


def partition_of(key: Key, partitions: int) -> int:
    """The partition that a key always goes to, while the stream has so many."""
    digest = hashlib.sha256(_key_bytes(key)).digest()
    return int.from_bytes(digest[:8], "big") % partitions


class Partitions:
    """The partitions of a node's streams, and whose turn it is in each."""

    def __init__(self, count: Callable[[StreamId], int]) -> None:
        """Count says how many a stream has."""
        self.count = count
        self._turns: dict[StreamId, int] = {}

    def choose(self, stream: StreamId, key: Key | None, partition: int | None) -> int:
        """The one that was asked for, else that of the key, else the next in turn."""
        count = self.count(stream)
        if partition is not None:
            if key is not None:
                raise UsageError("both a key and a partition: give one, the key chooses for itself")
            return self._checked(stream, partition)
        if key is not None:
            return partition_of(key, count)
        if count == 1:
            return 0
        turn = self._turns.get(stream, 0)
        self._turns[stream] = (turn + 1) % count
        return turn

    def chosen(
        self, stream: StreamId, partitions: Iterable[int] | int | None
    ) -> frozenset[int] | None:
        """Those that a subscriber wants; None for all."""
        if partitions is None:
            return None
        if isinstance(partitions, int):
            partitions = (partitions,)
        wanted = frozenset([self._checked(stream, partition) for partition in partitions])
        if not wanted:
            raise UsageError("no partitions: name at least one, or leave it out for all")
        return wanted

    def _checked(self, stream: StreamId, partition: int) -> int:
        count = self.count(stream)
        if type(partition) is not int or not 0 <= partition < count:
            has = "one partition, 0" if count == 1 else f"partitions 0..{count - 1}"
            raise UsageError(
                f"partition {partition!r}: {stream} has {has}; "
                "more are set by its owner: `shoal stream edit`, or [[streams]] of the network file"
            )
        return partition


def _key_bytes(key: Key) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return b"%d" % key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"key {key!r} is no text ({error.reason}): give bytes") from error
    raise UsageError(f"key {key!r}: give a str, bytes or a whole number")
