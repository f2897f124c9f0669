"""The driver's side of a read: where it begins, how far it may go, and which log it goes along.

When the owner of a log is gone, the read goes on along another server's own log, from the first row
on that it does not have yet: `{"log":B,"seq":m,"minus":{A:n}}`. That server must know what A was up
to n; otherwise rows would come twice, and only a user can say that he wants that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from shoal.base.errors import HistoryIncomplete, HistoryUnavailable, OffsetExpired, UsageError
from shoal.base.gateway_messages import HeldLog, StreamHeads, UnheardNode
from shoal.base.offsets import Offset, PartitionOffset
from shoal.base.units import show_time
from shoal_spark.source.log_client import PAUSE_S, LogServers
from shoal_spark.source.offsets import EVERYTHING, LogRange, ranges_between, ranges_to, skipped
from shoal_spark.source.options import Point, SourceOptions

# How far a read may go, from what servers say they have. No question is asked here.
#
# Newest is, of each log, the highest seq that a minimum of servers has. A partition is read along
# one log: the own log of a server that answers, for only that grows. Which one is chosen when the
# partition is begun; it stays so for as long as its owner answers. A log whose owner is gone is
# read as far as the other servers have it, and then the partition is stranded: to go on, it has to
# be moved to another log (following.py).


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


log = logging.getLogger("shoal.pipeline")


class Ahead(NamedTuple):
    """Where a read goes next."""

    offset: Offset
    newest: Offset


class Whole(NamedTuple):
    """Of each server that keeps the stream and answered, by its own log: the storage nodes that may
    have messages that this log lacks."""

    unheard: dict[UUID, list[UnheardNode]]

    def lacking(self, logs: Collection[UUID], to_ms: int | None) -> list[UnheardNode]:
        """Storage nodes that may have more than these logs, of messages up to a time. A log whose
        owner is gone is read as far as the others have it, and then along one of theirs."""
        owners = [self.unheard[log] for log in logs if log in self.unheard]
        found: dict[str, UnheardNode] = {}
        for unheard in owners or [min(self.unheard.values(), key=len, default=[])]:
            for one in unheard:
                if to_ms is None or to_ms > one.whole_until_ms:
                    found.setdefault(one.node, one)
        return list(found.values())


class _Stuck(NamedTuple):
    partition: int
    at: PartitionOffset
    best: dict[str, int]
    """By owner, how far servers have what was read."""


class Follower:
    """Follows a stream through the logs of its storage nodes."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._servers = LogServers(options)
        self._growing: set[UUID] = set()
        """The own logs of all servers that answered."""

    def close(self) -> None:
        self._servers.close()

    def place_of(self, point: Point) -> Offset:
        """The offset of a point, of all partitions that there are."""
        if isinstance(point, Offset):
            return point
        heads = self._heads()
        found = {}
        for partition in heads.partitions:
            along = heads.best(partition)
            if along is not None:
                newest = heads.newest(partition, along)
            elif (alone := heads.longest(partition)) is not None:
                # Too few servers have any of it yet: "latest" is not to mean all of it later.
                along, newest = alone.log, alone.last
            else:
                continue
            found[partition] = PartitionOffset(along, self._seq_of(point, partition, along, newest))
        return Offset(found)

    def whole(self, to_ms: int | None = None) -> Whole:
        """Have the servers compare what they have with all storage nodes of the stream, so that
        what is read after this lacks nothing that was acknowledged before; as long as the options
        say, if that is not to be had at once and data must not be lost."""
        end_s = time.monotonic() + self._options.patience_s
        while True:
            answers = self._servers.heads(whole=True)
            found = Whole({answer.own: answer.unheard for answer in answers if answer.kept})
            heads = Heads(answers, self._options.min_replicas)
            logs = [log for p in heads.partitions if (log := heads.best(p)) is not None]
            is_late = time.monotonic() + PAUSE_S > end_s
            if not found.lacking(logs, to_ms) or not self._options.fail_on_data_loss or is_late:
                return found
            time.sleep(PAUSE_S)

    def check_whole(
        self, whole: Whole, ranges: Sequence[LogRange], to_ms: int | None = None
    ) -> None:
        """HistoryIncomplete if a storage node may have messages that belong into these ranges, and
        the options do not say to go on without them."""
        ends = {part.partition: part.log for part in ranges}
        lacking = whole.lacking(list(ends.values()), to_ms)
        said = list(map(_shown, lacking))
        # A server that came, or began a new log, after the others had answered.
        new = sorted({*ends.values()} & self._growing - whole.unheard.keys())
        said += [
            f"any, since the owner of log {log} was not compared with the others" for log in new
        ]
        if not said:
            return
        named = "; ".join(said)
        text = (
            f"{self._options.stream}: a batch up to 'latest' is incomplete: there may be messages"
            f" that no server has: {named}"
        )
        if self._options.fail_on_data_loss:
            raise HistoryIncomplete(
                f"{text}. Start it again, end the batch at a time or an offset (endingOffsets), or"
                " set failOnDataLoss to false to take what the others have"
            )
        log.warning("%s; the batch goes on without them", text)

    def pinned(self, point: Point = "latest") -> Target:
        """What there is now, or had come in by a time: a target that does not move."""
        heads = self._heads()
        if not isinstance(point, datetime):
            return heads.newest
        return lambda partition, log: self._seq_of(
            point, partition, log, heads.newest(partition, log)
        )

    def ranges(self, start: Offset, point: Point) -> list[LogRange]:
        """All that is after start, up to a point that is pinned now."""
        if isinstance(point, Offset):
            return ranges_to(start, point)
        at, found, target = start, list[LogRange](), self.pinned(point)
        while True:
            offset = self.ahead(at, target=target).offset
            if offset == at:
                return found
            found += ranges_between(at, offset)
            at = offset

    def ahead(self, at: Offset, limit: int | None = None, target: Target | None = None) -> Ahead:
        """How far a read may go from here; OffsetExpired if rows on the way are gone, and the
        options do not say to go on."""
        end_s = time.monotonic() + self._options.patience_s
        while True:
            heads = self._heads()
            planned = step(at, heads, limit, target)
            self._check_lost(planned.lost)
            ahead, stuck = self._moved(at, planned, heads)
            if not stuck:
                return ahead
            if time.monotonic() + PAUSE_S > end_s:
                raise _stuck_error(stuck)
            time.sleep(PAUSE_S)

    def seek(self, part: LogRange, when_ms: int) -> int:
        """The first seq of a log that came in then or later."""
        return self._servers.seek(part.log, part.partition, when_ms)

    # Steps

    def _heads(self) -> Heads:
        answers = self._servers.heads()
        self._growing |= {answer.own for answer in answers}
        return Heads(answers, self._options.min_replicas)

    def _seq_of(self, point: Point, partition: int, log: UUID, newest: int) -> int:
        """The last row before a point."""
        if point == "latest" or not newest:
            return newest
        when_ms = max(0, round(point.timestamp() * 1000)) if isinstance(point, datetime) else 0
        return min(newest, self._servers.seek(log, partition, when_ms) - 1)

    def _check_lost(self, lost: Sequence[Lost]) -> None:
        for rows in lost:
            text = (
                f"log {rows.log}, partition {rows.partition}, was read up to {rows.after}, and the"
                f" servers have it from {rows.first} on: retention was faster"
            )
            if self._options.fail_on_data_loss:
                raise OffsetExpired(
                    f"{text}. Keep rows for longer, or set failOnDataLoss to false to go on",
                    first_seq=rows.first,
                )
            log.warning("%s; what lies between is skipped", text)

    def _moved(self, at: Offset, planned: Step, heads: Heads) -> tuple[Ahead, list[_Stuck]]:
        offset, newest = dict(planned.offset.partitions), dict(planned.newest.partitions)
        stuck: list[_Stuck] = []
        for partition in planned.stranded:
            here = at.partitions[partition]
            moved = self._move(partition, here, heads, stuck)
            if moved is not None:
                offset[partition] = moved
                end = max(moved.seq, heads.newest(partition, moved.log))
                newest[partition] = PartitionOffset(moved.log, end, moved.minus)
        return Ahead(Offset(offset), Offset(newest)), stuck

    def _move(
        self, partition: int, here: PartitionOffset, heads: Heads, stuck: list[_Stuck]
    ) -> PartitionOffset | None:
        """The same place in a log that grows; None if there is none, or none that knows enough,
        which is then said in `stuck`."""
        known: dict[str, int] = {}
        for other in heads.growing(partition):
            minus = here.reached()
            begun = minus.pop(other, 0)
            has = heads.at_owner(partition, other)
            if not self._options.fail_on_data_loss:
                minus = {log: min(seq, has.get(log, 0)) for log, seq in minus.items()}
                minus = {log: seq for log, seq in minus.items() if seq}
            lacking = [log for log, seq in minus.items() if has.get(log, 0) < seq]
            if not lacking:
                first = heads.first(partition, other) or 1
                begin = begun or first - 1
                return self._first_unread(
                    LogRange(
                        partition=partition,
                        log=other,
                        after=begin,
                        upto=max(begin, heads.newest(partition, other)),
                        minus=minus,
                        fresh=begun == 0,
                    )
                )
            known[str(other)] = has.get(lacking[0], 0)
        if known:
            stuck.append(_Stuck(partition, here, known))
        return None

    def _first_unread(self, part: LogRange) -> PartitionOffset:
        """Before the first row of a log that was not read in another one."""
        after = part.after
        while after < part.upto:
            try:
                page = self._servers.rows(part, after, EVERYTHING, limit=1, damaged_too=True)
            except OffsetExpired as error:
                after = skipped(error, part, after, fail=self._options.fail_on_data_loss)
                continue
            if page.rows or page.damaged:
                after = min([*(row.seq for row in page.rows), *page.damaged]) - 1
                break
            after = page.through
        return PartitionOffset(part.log, after, part.minus)


def _shown(unheard: UnheardNode) -> str:
    if not unheard.until_ms:
        return f"{unheard.node}, of which nothing is known"
    when = datetime.fromtimestamp(unheard.until_ms / 1000, UTC)
    return f"{unheard.node}, which was last compared at {show_time(when)}"


def _stuck_error(stuck: Sequence[_Stuck]) -> HistoryUnavailable:
    partition, at, known = stuck[0]
    best = "; ".join(f"the owner of {log} up to {seq}" for log, seq in known.items())
    return HistoryUnavailable(
        f"partition {partition} was read along log {at.log} up to {at.seq}, whose node does not"
        f" answer, and of those that do none has all of what was read ({best}): start that node"
        " again, or set failOnDataLoss to false to go on, where some rows may come twice."
        " With minReplicas = 2 nothing is read that only one node has"
    )
