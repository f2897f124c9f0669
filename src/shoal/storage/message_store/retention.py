"""Letting go of the oldest, step by step.

Retention takes rows off the old end of the own log: those older than the age allowed, and, while
the store is too large, the oldest wherever they are (in runs, so "oldest" is exact to a run). With
its row a message goes from every table, and replicas become unavailable up to the rows that named
it. Seqs are never given again, for heads stay.

A lease keeps rows that are too old. It keeps none in a store that is too large: others would have
to go for them, and whoever may read one stream could empty all the others.

A pass goes over the places, oldest first; each step of it removes a bounded number of messages in
one transaction. Between passes a step costs a comparison.

What has expired is said by two times. A row must go when it is too old by the time that has
certainly passed: the store counts that along the monotonic clock while it is open, and writes it
down. The time that it was closed does not count, for only the time of day tells how long that was,
and that may be wrong. Rows that are too old by the time of day alone go as well, but only 2 % of
the store a day, and none for an hour after the clock was set, or the node was started: so a wrong
reading costs next to nothing, and a store that was closed for long catches up.

The horizon of a place is the message time below which messages were removed. A store does not ask
others for what lies below it: with two stores that let go at different times, each would otherwise
bring back what the other has just removed, for ever.
"""

from __future__ import annotations

import logging
import threading
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from shoal.base.errors import UsageError
from shoal.base.ids import StreamId
from shoal.base.units import S_NS
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.lmdb_file import Txn, with_checksum, without_checksum
from shoal.storage.message_store.database import Database, Names
from shoal.storage.message_store.layout import (
    HEAD_KEY_BYTES,
    OWN,
    Place,
    Tables,
    entry_key,
    head_key,
    head_value,
    lease_value,
    read_head,
    read_lease,
    split_head_key,
    timestamp_of,
)
from shoal.storage.message_store.logs import Entries, Logs, check_available, closed_at, holders_of
from shoal.storage.message_store.store_types import Lease, LogId, RetentionStep

DAY_NS = 24 * 3600 * S_NS
DAILY_PERCENT = 2
"""Of the store's messages: what may go in a day by the time of day alone, and so what a clock that
is wrong for a day costs."""
WRITTEN_NS = 60 * S_NS  # what a crash may lose of the time that has certainly passed
TOLD_NS = 3600 * S_NS  # less is the time between two looks, or a restart

log = logging.getLogger("shoal.storage")

_META = b"retention"  # in `meta`
_BUCKETS = 256  # into which an age is divided, to count what went before its time
_RUN_ROWS = 32  # removed at one place before the next oldest is looked for, and the size measured
_SWEPT_PER_ROW = 4  # replica rows removed in a step for each message: more replicas than most have
_ALL = 2**64
_NONE = -1

_Oldest = tuple[int, Place]


class _Times(msgspec.Struct, frozen=True, array_like=True):
    """What is written down of the time that has passed, in Unix nanoseconds."""

    certain_ns: int
    day_ns: int
    """When the day began in which so many rows went by the time of day alone."""
    day_rows: int
    early: dict[int, int] = {}
    """How many of those that went so would not have gone by now, by when they came in (buckets by
    their beginnings)."""


class _Limits(NamedTuple):
    """What a step goes by."""

    certain_ns: int
    """The time by which rows must go."""
    wall_ns: int
    """The time of day, by which some more may go, and by which leases end."""
    more_rows: int = 0
    """How many more."""
    strict: bool = False
    """The time of day has been right for a while, as far as can be told from here: a lease that
    ends later than leases may is of a wrong reading."""


class _Run(NamedTuple):
    removed: int
    next_ns: int | None
    """Ingest time of the oldest row left."""
    blocked: bool
    last_ns: int
    """Ingest time of the last row removed."""
    raised: list[int]
    """Numbers of the replicas that have rows to be swept now."""


class _Pass(NamedTuple):
    """What a step leaves for the next."""

    queue: list[_Oldest]
    sweeps: dict[tuple[Place, int], None]
    held: list[_Oldest]
    """Places whose oldest rows should go, and leases hold them."""
    times: _Times | None = None
    """With what the step removed by the time of day alone."""


def newest_ingest(txn: Txn, tables: Tables) -> int:
    """When the newest row of the own log came in, at whatever place; 0 without any."""
    newest_ns = 0
    for key, value in txn.cursor(tables.heads):
        if split_head_key(key)[1] == OWN:
            newest_ns = max(newest_ns, read_head(value).ingest_ns)
    return newest_ns


class Retainer:
    """Retention of a whole store."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        self._database = database
        self._tables = database.tables
        self._config = config.retention
        self._one_at_a_time = threading.Lock()
        # Hints, all of them: a restart begins with a pass over everything.
        self._pass: _Pass | None = None
        self._swept = False
        """Replicas hold no rows but available ones, and those that the pass knows of."""
        # The ingest time of the oldest row that the last pass left, or of one that came since.
        self._oldest_ns = _ALL
        self._oldest_changes = threading.Lock()
        self._lease_ns_max = config.lease_ns_max
        self._times: _Times | None = None  # as of `_steady_ns`
        self._steady_ns = 0
        self._written_ns = 0
        self._told_ns: int | None = None
        self.certain_ns: int | None = None
        """The time that has certainly passed, in Unix nanoseconds; None before the first step."""
        self.uncertain_ns = 0
        """By how much the time of day is ahead of it."""
        self.waits = False
        """Rows have expired by the time of day alone, and it was set not long ago, or is known to
        be wrong."""

    def step(self, now_ns: int) -> RetentionStep:
        """One step by a time that is right; call again while there is more."""
        with self._one_at_a_time:
            return self._one_step(_Limits(now_ns, now_ns))

    def begin_time(self, now_ns: int, wall_ns: int) -> None:
        """Count the time that passes from here on, if that was not begun."""
        with self._one_at_a_time:
            self._passed(now_ns, wall_ns, settled=False)

    def careful_step(self, now_ns: int, wall_ns: int, *, settled: bool) -> RetentionStep:
        """One step by a monotonic time and the time of day, which was not set for an hour if it is
        settled, and is not known to be wrong."""
        with self._one_at_a_time:
            times = self._passed(now_ns, wall_ns, settled=settled)
            self.certain_ns = times.certain_ns
            self.uncertain_ns = max(0, wall_ns - times.certain_ns)
            certain_ns = min(times.certain_ns, wall_ns)
            more_rows = 0
            if settled:
                in_the_morning = self._database.read(self._messages) + times.day_rows
                share = max(1, in_the_morning * DAILY_PERCENT // 100)
                more_rows = max(0, share - times.day_rows)
            age_ns = self._config.age_ns
            expired = age_ns is not None and self._oldest_ns + age_ns <= wall_ns
            self.waits = expired and not settled and self._oldest_ns + (age_ns or 0) > certain_ns
            self._tell(now_ns, expired=expired)
            return self._one_step(_Limits(certain_ns, wall_ns, more_rows, settled))

    def _one_step(self, limits: _Limits) -> RetentionStep:
        if self._pass is None and not self._is_due(limits):
            size_bytes = self._database.read(self._database.size_bytes)
            return RetentionStep(0, False, False, size_bytes)
        try:
            return self._go_on(limits)
        except BaseException:
            self._forget()
            raise

    def _passed(self, now_ns: int, wall_ns: int, *, settled: bool) -> _Times:
        """What time it certainly is; written down now and then."""
        times = self._times
        if times is None:
            times = self._database.read(self._read_times, wall_ns)
            self._written_ns = 0
        else:
            certain_ns = times.certain_ns + now_ns - self._steady_ns
            if settled:  # it was ahead, by the reading with which the store was made, say
                certain_ns = min(certain_ns, wall_ns)
            times = replace(times, certain_ns=certain_ns)
        if times.certain_ns - times.day_ns >= DAY_NS:
            times = replace(times, day_ns=times.certain_ns, day_rows=0)
        times = self._overtaken(times)
        self._times, self._steady_ns = times, now_ns
        if abs(times.certain_ns - self._written_ns) >= WRITTEN_NS:
            self._database.write(self._write_times, times)
            self._written_ns = times.certain_ns
        return times

    def _overtaken(self, times: _Times) -> _Times:
        """Rows that went early and would go now: as many others may go early in their place, or
        what was missed while the store was closed would be missed for ever."""
        now = self._bucket(times.certain_ns - (self._config.age_ns or 0))
        overtaken = [bucket for bucket in times.early if bucket < now]
        if not overtaken:
            return times
        rows = sum(times.early[bucket] for bucket in overtaken)
        early = {bucket: count for bucket, count in times.early.items() if bucket >= now}
        return replace(times, day_rows=times.day_rows - rows, early=early)

    def _bucket(self, ingest_ns: int) -> int:
        """When it begins: its number would be another one once the age allowed is."""
        return ingest_ns - ingest_ns % max(1, (self._config.age_ns or DAY_NS) // _BUCKETS)

    def _read_times(self, txn: Txn, wall_ns: int) -> _Times:
        raw = without_checksum(txn.get(_META, db=self._tables.meta) or b"")
        if raw is not None:
            return msgspec.msgpack.decode(raw, type=_Times)
        certain_ns = min(newest_ingest(txn, self._tables) or wall_ns, wall_ns)
        return _Times(certain_ns, certain_ns, 0)

    def _write_times(self, txn: Txn, times: _Times) -> None:
        txn.put(_META, with_checksum(msgspec.msgpack.encode(times)), db=self._tables.meta)

    def _messages(self, txn: Txn) -> int:
        return int(txn.stat(self._tables.messages)["entries"])

    def _tell(self, now_ns: int, *, expired: bool) -> None:
        """Say in the log that the time of day would have more go, once a day."""
        if not expired or self.uncertain_ns < TOLD_NS:
            return
        if self._told_ns is None or now_ns - self._told_ns >= DAY_NS:
            self._told_ns = now_ns
            log.warning(
                "by the system clock, messages have expired that are not too old by the time that"
                " this store was open, which is %.1f days less: %s. If the store was closed for so"
                " long, all is well; otherwise set the clock right",
                self.uncertain_ns / DAY_NS,
                "none of them goes while the clock has just been set, or is off"
                if self.waits
                else f"at most {DAILY_PERCENT} % of the store goes a day",
            )

    def appended(self, ingest_ns: int) -> None:
        """A row came in, at this time or later."""
        with self._oldest_changes:
            self._oldest_ns = min(self._oldest_ns, ingest_ns)

    def limit(self, limits: Retention) -> None:
        """Other limits from now on."""
        self._config = limits
        self.rows_given_up()

    def rows_given_up(self) -> None:
        """A replica has rows that are not available any more: the next pass removes them."""
        with self._one_at_a_time:
            self._forget()

    def _forget(self) -> None:
        """The next step begins a pass over everything."""
        self._pass = None
        self._swept = False

    def _go_on(self, limits: _Limits) -> RetentionStep:
        if self._pass is None:
            self._oldest_ns = _ALL  # what is appended from here on says so itself
            self._pass = self._database.read(self._begin)
        left, step = self._database.write(self._step, self._pass, limits)
        self._times = left.times or self._times  # only now is it certain that they are gone
        if step.more:
            self._pass = left
        else:
            self._pass = None
            self._swept = True
            if left.queue or left.held:
                self.appended(0 if left.held else left.queue[0][0])
        return step

    def _is_due(self, limits: _Limits) -> bool:
        age_ns, size_max = self._config.age_ns, self._config.size_bytes_max
        limit_ns = limits.wall_ns if limits.more_rows else limits.certain_ns
        if not self._swept or (age_ns is not None and self._oldest_ns + age_ns <= limit_ns):
            return True
        return size_max is not None and self._database.read(self._database.size_bytes) > size_max

    def _begin(self, txn: Txn) -> _Pass:
        """Every place with rows, the oldest first, and replicas that may have rows to sweep."""
        queue: list[_Oldest] = []
        sweeps: dict[tuple[Place, int], None] = {}
        for key, value in txn.cursor(self._tables.heads):
            place, number = split_head_key(key)
            head = read_head(value)
            if number != OWN:
                if not self._swept:
                    sweeps[place, number] = None
            elif head.first <= head.last:
                entries = Entries(txn, self._tables, place, OWN)
                for _, oldest in entries.after(head.first - 1):
                    queue.append((oldest.ingest_ns, place))
                    break
        heapify(queue)
        return _Pass(queue, sweeps, [])

    def _step(self, txn: Txn, begun: _Pass, limits: _Limits) -> tuple[_Pass, RetentionStep]:
        queue, sweeps, held = begun.queue.copy(), begun.sweeps.copy(), begun.held.copy()
        removed, more_rows, times = 0, 0, self._times
        while removed < self._config.rows_per_step:
            limit_ns = self._limit_ns(txn, limits.certain_ns)
            if limit_ns == _ALL:  # leases count no more: the oldest rows are theirs
                while held:
                    heappush(queue, held.pop())
            if not queue:
                break
            rows = min(self._config.rows_per_step - removed, _RUN_ROWS)
            by_wall = queue[0][0] > limit_ns
            if by_wall:
                limit_ns = self._limit_ns(txn, limits.wall_ns)
                rows = min(rows, limits.more_rows - more_rows)
                if queue[0][0] > limit_ns or rows <= 0:
                    break
            _, place = heappop(queue)
            run = self._remove(txn, place, limit_ns, limits, rows, leased=limit_ns != _ALL)
            removed += run.removed
            if by_wall and times is not None:
                more_rows += run.removed
                bucket = self._bucket(run.last_ns)
                early = {**times.early, bucket: times.early.get(bucket, 0) + run.removed}
                times = replace(times, day_rows=times.day_rows + run.removed, early=early)
            sweeps.update(dict.fromkeys((place, number) for number in run.raised))
            if run.next_ns is not None:
                oldest = (run.next_ns, place)
                held.append(oldest) if run.blocked else heappush(queue, oldest)
        self._sweep(txn, sweeps)
        if more_rows and times is not None:
            self._write_times(txn, times)
        last_ns = limits.wall_ns if more_rows < limits.more_rows else limits.certain_ns
        limit_ns = self._limit_ns(txn, last_ns)
        more = bool(sweeps) or (bool(queue) and queue[0][0] <= limit_ns)
        more |= bool(held) and limit_ns == _ALL
        step = RetentionStep(removed, more, bool(held), self._database.size_bytes(txn))
        return _Pass(queue, sweeps, held, times), step

    def _limit_ns(self, txn: Txn, now_ns: int) -> int:
        """What came in up to this time must go."""
        age_ns, size_max = self._config.age_ns, self._config.size_bytes_max
        if size_max is not None and self._database.size_bytes(txn) > size_max:
            return _ALL
        return _NONE if age_ns is None else now_ns - age_ns

    def _remove(
        self, txn: Txn, place: Place, limit_ns: int, limits: _Limits, rows: int, *, leased: bool
    ) -> _Run:
        """Take rows that must go off the old end of the own log at a place; if leases count there,
        not what somebody still needs."""
        tables = self._tables
        head = read_head(txn.get(head_key(place, OWN), db=tables.heads))
        most_ns = limits.wall_ns + self._lease_ns_max if limits.strict else None
        # A lease that seems to be over by a wrong reading may be of a reader that is there.
        now_ns = limits.wall_ns if limits.strict else limits.certain_ns
        held = leased_after(txn, tables, place, now_ns, most_ns) if leased else {}
        entries, closed = Entries(txn, tables, place, OWN), closed_at(txn, tables, place)
        raised: dict[int, int] = {}
        seq, horizon_ms, next_ns, blocked = head.first, head.horizon_ms, None, False
        last_ns = 0
        while seq <= head.last:
            entry = entries.find(seq)
            if entry is None:  # damaged: what is left of it goes with a repair
                self._database.damage.forget(place, seq)
                seq += 1
                continue
            message_key = place + entry.tail
            holders = holders_of(txn, tables, message_key)
            holders += [(log.number, seq) for log in closed if seq <= log.last]
            blocked = any(at > held.get(log, _ALL) for log, at in [(OWN, seq), *holders])
            if blocked or entry.ingest_ns > limit_ns or seq - head.first >= rows:
                next_ns = entry.ingest_ns
                blocked &= entry.ingest_ns <= limit_ns
                break
            txn.delete(message_key, db=tables.messages)
            txn.delete(message_key, db=tables.holders)
            txn.delete(entry_key(OWN, place, seq), db=tables.entries)
            last_ns = entry.ingest_ns
            self._database.damage.forget(place, seq)
            horizon_ms = max(horizon_ms, timestamp_of(entry.tail) + 1)
            for number, replica_seq in holders:
                raised[number] = max(replica_seq + 1, raised.get(number, 0))
            seq += 1
        if seq > head.first:
            head_now = head._replace(first=seq, horizon_ms=horizon_ms)
            txn.put(head_key(place, OWN), head_value(head_now), db=tables.heads)
            self._raise(txn, place, raised)
        return _Run(seq - head.first, next_ns, blocked, last_ns, list(raised))

    def _raise(self, txn: Txn, place: Place, raised: dict[int, int]) -> None:
        """Replicas begin above the rows whose messages are gone."""
        for number, first in raised.items():
            key = head_key(place, number)
            raw = txn.get(key, db=self._tables.heads)
            head = read_head(raw)
            if raw and first > head.first:  # a forgotten log has no head
                txn.put(key, head_value(head._replace(first=first)), db=self._tables.heads)

    def _sweep(self, txn: Txn, sweeps: dict[tuple[Place, int], None]) -> None:
        """Remove replica rows that are not available any more, up to a step's share."""
        rows = _SWEPT_PER_ROW * self._config.rows_per_step
        for place, number in list(sweeps):
            first = read_head(txn.get(head_key(place, number), db=self._tables.heads)).first
            begin, end = entry_key(number, place, 0), entry_key(number, place, first)
            for table in (self._tables.variants, self._tables.entries):
                with txn.cursor(table) as cursor:
                    found = cursor.set_range(begin)
                    while found and cursor.key() < end:
                        if not rows:
                            return
                        rows -= 1
                        found = cursor.delete()
            del sweeps[place, number]


# Readers that hold retention back, each for a while.
#
# A lease says: the rows of this log after this seq are still needed. It is kept in the database, so
# that a restart of the storage node does not cost a running query its rows.
#
# A lease keeps rows beyond their age, and `RetentionStep.blocked` says that it does. It keeps
# nothing in a store that is too large: there the oldest rows go as if there were no leases, so that
# a leased stream never costs another one a row. A reader that was too slow hears that its rows have
# expired.


class Leases:
    """Leases of a whole store."""

    def __init__(self, database: Database, names: Names, logs: Logs, config: StoreConfig) -> None:
        self._database = database
        self._tables = database.tables
        self._names = names
        self._logs = logs
        self._config = config

    def take(self, lease: Lease, now_ns: int) -> None:
        """Take, renew or move a lease, durably; OffsetExpired if its rows are gone already."""
        lasts_ns = lease.expires_ns - now_ns
        if not 0 < lasts_ns <= self._config.lease_ns_max:
            raise UsageError(
                f"a lease of {lasts_ns} ns: it lasts up to {self._config.lease_ns_max} ns, and is"
                " renewed before it expires"
            )
        holder = self._holder(lease.holder)

        def work(txn: Txn) -> None:
            at = self._logs.find(txn, lease.log, lease.stream, lease.partition)
            check_available(at, lease.after_seq)
            place = at.place or self._names.place_or_new(txn, lease.stream, lease.partition)
            key = head_key(place, at.number) + holder
            is_new = txn.get(key, db=self._tables.leases) is None
            if is_new:
                self._make_room(txn, now_ns)
            value = lease_value(lease.after_seq, lease.expires_ns)
            txn.put(key, value, db=self._tables.leases)

        self._database.write(work)

    def release(self, holder: str, log: LogId, stream: StreamId, partition: int) -> bool:
        """Give a lease up; False if there was none."""
        name = self._holder(holder)

        def work(txn: Txn) -> bool:
            at = self._logs.find(txn, log, stream, partition)
            if at.place is None:
                return False
            return txn.delete(head_key(at.place, at.number) + name, db=self._tables.leases)

        return self._database.write(work)

    def all(self) -> list[Lease]:
        """Every lease, also expired ones that no step has dropped yet."""

        def work(txn: Txn) -> list[Lease]:
            found = []
            for key, value in _leases_from(txn, self._tables, b""):
                place, number = split_head_key(key[:HEAD_KEY_BYTES])
                stream, partition = self._names.stream_of(txn, place)
                after_seq, expires_ns = read_lease(value)
                log, holder = self._names.log_of(txn, number), key[HEAD_KEY_BYTES:].decode()
                found.append(Lease(holder, log, stream, partition, after_seq, expires_ns))
            return found

        return self._database.read(work)

    def _make_room(self, txn: Txn, now_ns: int) -> None:
        table, most = self._tables.leases, self._config.leases_max
        if txn.stat(table)["entries"] < most:
            return
        for key, value in _leases_from(txn, self._tables, b""):
            if read_lease(value)[1] <= now_ns:
                txn.delete(key, db=table)
        if txn.stat(table)["entries"] >= most:
            raise UsageError(f"all {most} leases are taken: let readers release theirs")

    def _holder(self, holder: str) -> bytes:
        if not 0 < len(holder) <= self._config.holder_chars_max:
            raise UsageError(
                f"a lease's holder has 1 to {self._config.holder_chars_max} characters,"
                f" not {len(holder)}"
            )
        return holder.encode()


def leased_after(
    txn: Txn, tables: Tables, place: Place, now_ns: int, most_ns: int | None = None
) -> dict[int, int]:
    """Log number -> the lowest seq after which rows are still needed at this place. Drops leases
    that have expired, and those that would last beyond a time up to which none can."""
    lowest: dict[int, int] = {}
    for key, value in _leases_from(txn, tables, place):
        after_seq, expires_ns = read_lease(value)
        if expires_ns <= now_ns or (most_ns is not None and expires_ns > most_ns):
            txn.delete(key, db=tables.leases)
            continue
        number = split_head_key(key[:HEAD_KEY_BYTES])[1]
        lowest[number] = min(after_seq, lowest.get(number, after_seq))
    return lowest


def _leases_from(txn: Txn, tables: Tables, prefix: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of the leases at a place, or of all."""
    found = []
    with txn.cursor(tables.leases) as cursor:
        if cursor.set_range(prefix):
            for key, value in cursor.iternext():
                if not key.startswith(prefix):
                    break
                found.append((key, value))
    return found
