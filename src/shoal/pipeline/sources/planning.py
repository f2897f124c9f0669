"""How far a read may go, from what servers say they have. No question is asked here.

Newest is, of each log, the highest seq that a minimum of servers has. A partition is read along one
log: the own log of a server that answers, for only that grows. Which one is chosen when the
partition is begun; it stays so for as long as its owner answers. A log whose owner is gone is read
as far as the other servers have it, and then the partition is stranded: to go on, it has to be
moved to another log (following.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from shoal.base.errors import UsageError
from shoal.base.log_pages import HeldLog, StreamHeads
from shoal.base.offsets import Offset, PartitionOffset

Target: TypeAlias = Callable[[int, UUID], int]
"""Of a partition and a log, the last seq that is wanted: whatever log a read goes along."""


class Heads:
    """What all servers that answered have of a stream."""

    def __init__(self, answers: Sequence[StreamHeads], min_replicas: int) -> None:
        self._answers = answers
        self._min_replicas = min_replicas

    @property
    def partitions(self) -> list[int]:
        """Those that have rows anywhere."""
        return sorted({partition for answer in self._answers for partition in answer.partitions})

    def newest(self, partition: int, log: UUID) -> int:
        """The highest seq that enough servers have; 0 if there is none."""
        lasts = sorted((held.last for held in self._held(partition, log)), reverse=True)
        enough = len(lasts) >= self._min_replicas
        return lasts[self._min_replicas - 1] if enough else 0

    def first(self, partition: int, log: UUID) -> int | None:
        """The lowest seq that any server has; None if no server knows the log."""
        return min((held.first for held in self._held(partition, log)), default=None)

    def owned(self, partition: int, log: UUID) -> HeldLog | None:
        """What the owner of a log has of it, if that answered."""
        return next((held for held in self._own_logs(partition) if held.log == log), None)

    def is_owner_here(self, log: UUID) -> bool:
        """Whether the owner of a log answered."""
        return any(answer.own == log for answer in self._answers)

    def best(self, partition: int) -> UUID | None:
        """The log to begin a partition with: the longest of which enough servers have something."""
        logs = self.growing(partition)
        return logs[0] if logs else None

    def growing(self, partition: int) -> list[UUID]:
        """The own logs of servers that answered, the longest first."""

        def rank(held: HeldLog) -> tuple[int, UUID]:
            return held.first - 1 - self.newest(partition, held.log), held.log

        found = [h for h in self._own_logs(partition) if self.newest(partition, h.log) >= h.first]
        return [held.log for held in sorted(found, key=rank)]

    def longest(self, partition: int) -> HeldLog | None:
        """The own log of a server that answered with the most rows, whoever else has them."""
        return max(self._own_logs(partition), key=lambda h: (h.last - h.first, h.log), default=None)

    def at_owner(self, partition: int, log: UUID) -> dict[UUID, int]:
        """How far the owner of a log has each log, its own and copies of others."""
        for answer in self._answers:
            if answer.own == log:
                return {held.log: held.last for held in answer.partitions.get(partition, [])}
        return {}

    def _held(self, partition: int, log: UUID) -> list[HeldLog]:
        return [
            held
            for answer in self._answers
            for held in answer.partitions.get(partition, [])
            if held.log == log
        ]

    def _own_logs(self, partition: int) -> list[HeldLog]:
        return [
            held
            for answer in self._answers
            for held in answer.partitions.get(partition, [])
            if held.log == answer.own
        ]


class Lost(NamedTuple):
    """Rows that no server has any more."""

    partition: int
    log: UUID
    after: int
    first: int


class Step(NamedTuple):
    """What a read may do next."""

    offset: Offset
    """As far as it may go now."""
    newest: Offset
    """As far as it could go without a limit."""
    stranded: tuple[int, ...]
    """Partitions that have to be moved to another log."""
    lost: tuple[Lost, ...]


class _Way(NamedTuple):
    """What lies ahead in one partition."""

    here: PartitionOffset
    begin: int
    """Its rows come after this seq: where it is, or higher where rows are lost."""
    upto: int
    newest: int


def step(at: Offset, heads: Heads, limit: int | None = None, target: Target | None = None) -> Step:
    """The next step from an offset: so many rows at most, and not beyond the target."""
    ways: dict[int, _Way] = {}
    stranded, lost = [], []
    for partition in sorted({*heads.partitions, *at.partitions}):
        here = at.partitions.get(partition) or _begun(partition, heads)
        if here is None:
            continue
        first = heads.first(partition, here.log) or 1
        if first > here.seq + 1:
            lost.append(Lost(partition, here.log, here.seq, first))
        newest = max(here.seq, heads.newest(partition, here.log))
        wanted = newest if target is None else max(here.seq, target(partition, here.log))
        if newest == here.seq and not heads.is_owner_here(here.log):
            stranded.append(partition)
        _check_not_back(partition, here, heads)
        begin = max(here.seq, first - 1)
        ways[partition] = _Way(here, begin, max(begin, min(newest, wanted)), newest)
    shares = shared({partition: way.upto - way.begin for partition, way in ways.items()}, limit)
    ends, newests = {}, {}
    for partition, way in ways.items():
        log, minus = way.here.log, way.here.minus
        newests[partition] = PartitionOffset(log, way.newest, minus)
        if shares[partition]:
            ends[partition] = PartitionOffset(log, way.begin + shares[partition], minus)
        elif partition in at.partitions:
            ends[partition] = way.here
    return Step(Offset(ends), Offset(newests), tuple(stranded), tuple(lost))


def _begun(partition: int, heads: Heads) -> PartitionOffset | None:
    """Before the first row of a partition that is new to the reader."""
    log = heads.best(partition)
    if log is None:
        return None
    return PartitionOffset(log, (heads.first(partition, log) or 1) - 1)


def _check_not_back(partition: int, here: PartitionOffset, heads: Heads) -> None:
    owned = heads.owned(partition, here.log)
    if heads.is_owner_here(here.log) and (0 if owned is None else owned.last) < here.seq:
        raise UsageError(
            f"log {here.log}, partition {partition}, was read up to {here.seq}, and its own node"
            f" has it up to {0 if owned is None else owned.last}: it was restored from an old copy."
            " Run `shoal storage new-log` there, or leave it out of `servers`"
        )


def shared(lags: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Rows of each partition, in proportion to how far each lags, so many in all at most."""
    total = sum(lags.values())
    if limit is None or total <= limit:
        return dict(lags)
    shares = {partition: limit * lag // total for partition, lag in lags.items()}
    left = limit - sum(shares.values())
    for partition in sorted(lags, key=lambda p: (shares[p] - lags[p], p)):
        if left and shares[partition] < lags[partition]:
            shares[partition] += 1
            left -= 1
    return shares
