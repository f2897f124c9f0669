"""What one task reads: rows of a log after one seq, up to another."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from shoal.base.errors import OffsetExpired, UsageError
from shoal.base.ids import StreamId
from shoal.base.offsets import Offset, PartitionOffset, format_offset, parse_offset

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


# Offsets as Spark keeps them in a checkpoint: those of base/offsets.py, and whose they are.
#
#     {"v":1,"stream":"0x…/city","p":{"0":{"log":"6f0c…","seq":123}}}
#
# The stream is named, since a storage node's log has the same id in all its streams: an old
# checkpoint under another stream would pass for the place in this one.
#
# The end of a query's first batch also says where that batch began, as `begin`. Spark keeps only
# the end, and asks for the beginning again if that batch has to run a second time; "latest" would
# be somewhere else by then.
#
# Spark compares offsets as text, so keys always come in one order.


STREAM, BEGIN = "stream", "begin"


class Checkpoint(msgspec.Struct, frozen=True):
    """How far a query has come."""

    offset: Offset
    begin: Offset | None = None
    """Where its first batch began, at the end of that."""


def to_spark(stream: StreamId, checkpoint: Checkpoint) -> dict[str, Any]:
    """What Spark keeps."""
    plain = json.loads(format_offset(checkpoint.offset))
    kept = {"v": plain["v"], STREAM: stream, "p": plain["p"]}
    if checkpoint.begin is not None:
        kept[BEGIN] = json.loads(format_offset(checkpoint.begin))["p"]
    return kept


def from_spark(stream: StreamId, kept: dict[str, Any]) -> Checkpoint:
    """What Spark gives back; UsageError if it is of another stream, or of a newer Shoal."""
    of = kept.get(STREAM)
    if of != stream:
        raise UsageError(
            f"the checkpoint is of stream {of!r}, and the query reads {stream!r}: give the query"
            " a checkpointLocation of its own"
        )
    version, begin = kept.get("v"), kept.get(BEGIN)
    rest = {name: value for name, value in kept.items() if name not in (STREAM, BEGIN)}
    return Checkpoint(
        parse_offset(json.dumps(rest)),
        None if begin is None else parse_offset(json.dumps({"v": version, "p": begin})),
    )


def parse_given_offset(name: str, text: str, stream: StreamId) -> Offset:
    """An offset that a user gives: as Shoal writes it, or as he finds it in a checkpoint."""
    try:
        kept = json.loads(text)
    except ValueError:
        kept = None
    if isinstance(kept, dict) and STREAM in kept:
        return from_spark(stream, kept).offset
    try:
        return parse_offset(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
