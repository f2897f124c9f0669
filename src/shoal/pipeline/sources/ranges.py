"""What one task reads: rows of a log after one seq, up to another."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from shoal.base.errors import OffsetExpired
from shoal.base.offsets import Offset, PartitionOffset

log = logging.getLogger("shoal.pipeline")


class LogRange(msgspec.Struct, frozen=True, kw_only=True):
    """Rows after `after`, up to and with `upto`, without those in `minus` up to their seqs."""

    partition: int
    log: UUID
    after: int
    upto: int
    minus: Mapping[UUID, int] = {}
    fresh: bool = False
    """Nothing of this log was read before: it begins where it begins, and nothing is lost."""


class RowFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are wanted: by message time, both ends included, and by publisher."""

    from_ms: int | None = None
    to_ms: int | None = None
    publisher: str | None = None

    def query(self) -> dict[str, Any]:
        """The same for a server; empty if all are wanted."""
        named = {"from": self.from_ms, "to": self.to_ms, "publisher": self.publisher}
        return {name: value for name, value in named.items() if value is not None}


EVERYTHING = RowFilter()


def ranges_between(start: Offset, end: Offset) -> list[LogRange]:
    """What is after start, up to end, as the driver has planned it. Where the log is another one,
    the read was moved to it (following.py), and there are no rows between."""
    found = []
    for partition, until in sorted(end.partitions.items()):
        at = start.partitions.get(partition)
        if at is None or at.log == until.log:
            found.append(_along(partition, at, until))
    return [part for part in found if part.upto > part.after]


def ranges_to(start: Offset, end: Offset) -> list[LogRange]:
    """The same for an end that a user gives, whatever logs it names. A partition that it does not
    name is not read."""
    found = []
    for partition, until in sorted(end.partitions.items()):
        at = start.partitions.get(partition)
        if at is not None and at.log != until.log:
            reached = at.reached()
            begun = reached.pop(until.log, 0)
            at = PartitionOffset(until.log, begun, reached)
            found.append(_along(partition, at, until, fresh=not begun))
        else:
            found.append(_along(partition, at, until))
    return [part for part in found if part.upto > part.after]


def skipped(error: OffsetExpired, part: LogRange, after: int, *, fail: bool) -> int:
    """Where to go on behind rows that are gone; raises the error unless nothing is lost by that, or
    the options do not mind."""
    if (fail and not part.fresh) or error.first_seq <= after + 1:
        raise error
    if not part.fresh:
        log.warning("%s; it is skipped", error)
    return error.first_seq - 1


def _along(
    partition: int, at: PartitionOffset | None, until: PartitionOffset, *, fresh: bool = False
) -> LogRange:
    return LogRange(
        partition=partition,
        log=until.log,
        after=0 if at is None else at.seq,
        upto=until.seq,
        minus={} if at is None else at.minus,
        fresh=fresh or at is None,
    )


def split(part: LogRange, rows: int) -> list[LogRange]:
    """The same range in parts of so many seqs at most."""
    return [
        msgspec.structs.replace(part, after=begin, upto=min(begin + rows, part.upto))
        for begin in range(part.after, part.upto, rows)
    ]
