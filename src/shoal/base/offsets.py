"""The offset that a reader of logs keeps: how far it has come in each partition.

    {"v":1,"p":{"0":{"log":"6f0c…","seq":123}}}

The reader has the rows of that log up to and including `seq`; 0 is before the first. When a log is
gone for good, the reader continues on another one, and leaves out what it has already:

    {"log":"B","seq":7,"minus":{"A":123}}

that is: B's rows after 7, without those that are in A up to 123. So an offset says, per partition,
how far it has come in every log it has read from; one offset is after another if it has come as far
or farther in all of them.

Text is written in one way only (partitions by number, minus by id, no spaces): whoever compares two
offsets as text, as Spark does, finds equal ones equal. It is read in any order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX, PARTITIONS_MAX, Count

OFFSET_VERSION = 1
MINUS_MAX = 16  # logs that one reader has outlived
_TEXT_CHARS_MAX = 128 * 1024  # 100 partitions with 16 logs each
_SHOWN_CHARS = 60


class PartitionOffset(msgspec.Struct, frozen=True):
    """After `seq` in `log`, without what is in the logs of `minus` up to their seqs."""

    log: UUID
    seq: int
    minus: Mapping[UUID, int] = {}

    def __post_init__(self) -> None:
        """UsageError if there can be no such place."""
        if not 0 <= self.seq <= INT63_MAX:
            raise UsageError(f"seq {self.seq}: it is 0 or more")
        if len(self.minus) > MINUS_MAX:
            raise UsageError(f"minus names {len(self.minus)} logs: at most {MINUS_MAX}")
        if self.log in self.minus:
            raise UsageError(f"minus names log {self.log}, which is the one that is read")
        for log, seq in self.minus.items():
            if not 1 <= seq <= INT63_MAX:
                raise UsageError(f"minus leaves out {seq} rows of log {log}: 1 or more, or none")

    def reached(self) -> dict[UUID, int]:
        """How far it has come, in every log it has read from."""
        return {log: seq for log, seq in [(self.log, self.seq), *self.minus.items()] if seq}


class Offset(msgspec.Struct, frozen=True):
    """How far a reader has come. A partition that is not named has not been begun."""

    partitions: Mapping[int, PartitionOffset] = {}

    def __post_init__(self) -> None:
        """UsageError for partitions that cannot be."""
        for partition in self.partitions:
            if not 0 <= partition < PARTITIONS_MAX:
                raise UsageError(f"partition {partition}: it is one of 0..{PARTITIONS_MAX - 1}")


class Order(Enum):
    """How one offset stands to another."""

    BEFORE = "before"
    SAME = "same"
    AFTER = "after"
    BESIDE = "beside"
    """Each has come farther than the other somewhere."""


def compare(one: Offset, other: Offset) -> Order:
    """Whether one is before or after the other."""
    behind = _is_reached(one, other)
    ahead = _is_reached(other, one)
    if behind and ahead:
        return Order.SAME
    if behind:
        return Order.BEFORE
    return Order.AFTER if ahead else Order.BESIDE


def _is_reached(one: Offset, other: Offset) -> bool:
    """Whether the other has come everywhere as far as this one."""
    for partition, offset in one.partitions.items():
        there = other.partitions.get(partition)
        reached = there.reached() if there is not None else {}
        if any(seq > reached.get(log, 0) for log, seq in offset.reached().items()):
            return False
    return True


# Text


class _WirePartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    log: UUID
    seq: Count
    minus: dict[UUID, Count] = {}


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: Annotated[int, Meta(ge=1)]
    p: dict[str, _WirePartition]


def format_offset(offset: Offset) -> str:
    """The one text of an offset."""
    partitions = {
        str(number): _WirePartition(at.log, at.seq, dict(sorted(at.minus.items())))
        for number, at in sorted(offset.partitions.items())
    }
    return msgspec.json.encode(_Wire(OFFSET_VERSION, partitions)).decode()


def parse_offset(text: str) -> Offset:
    """The offset that a text says; UsageError tells what is wrong with it."""
    if len(text) > _TEXT_CHARS_MAX:
        raise UsageError(f"an offset of {len(text)} characters: at most {_TEXT_CHARS_MAX}")
    try:
        raw = json.loads(text, object_pairs_hook=_no_key_twice)
        # The version first: a newer offset may differ in everything else.
        version = raw.get("v") if isinstance(raw, dict) else None
        if isinstance(version, int) and version > OFFSET_VERSION:
            raise UsageError(
                f"it has version {version}, this Shoal reads up to {OFFSET_VERSION}: upgrade Shoal"
            )
        if isinstance(raw, dict) and "m" in raw:
            raise UsageError("it names messages, as a subscription's does: logs are read here")
        wire = msgspec.convert(raw, _Wire)
        return Offset(
            {
                _partition(number): PartitionOffset(at.log, at.seq, at.minus)
                for number, at in wire.p.items()
            }
        )
    except (ValueError, RecursionError) as error:  # UsageError and msgspec's are ValueErrors
        shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
        raise UsageError(f"{shown!r} is no offset: {error}") from None


def _partition(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if str(number) != text:
        raise UsageError(f"{text!r} is no partition: write a number without sign or zeros in front")
    return number


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise UsageError(f"a key is there twice, one of {', '.join(keys)}")
    return keys
