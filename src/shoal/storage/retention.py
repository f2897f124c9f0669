"""Letting go of the oldest, step by step.

Retention takes rows off the old end of the own log: those older than the age allowed, and, while
the store is too large, the oldest wherever they are (in runs, so "oldest" is exact to a run). With
its row a message goes from every table, and replicas become unavailable up to the rows that named
it. Seqs are never given again, for heads stay.

A lease keeps rows that are too old. It keeps none in a store that is too large: others would have
to go for them, and whoever may read one stream could empty all the others.

A pass goes over the places, oldest first; each step of it removes a bounded number of messages in
one transaction. Between passes a step costs a comparison.

The horizon of a place is the message time below which messages were removed. A store does not ask
others for what lies below it: with two stores that let go at different times, each would otherwise
bring back what the other has just removed, for ever.
"""

from __future__ import annotations

import threading
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from shoal.base.errors import InvariantViolated
from shoal.storage.config import StoreConfig
from shoal.storage.database import Database
from shoal.storage.layout import (
    OWN,
    Entry,
    Place,
    Txn,
    entry_key,
    head_key,
    head_value,
    read_entry,
    read_head,
    split_head_key,
    timestamp_of,
)
from shoal.storage.leases import leased_after
from shoal.storage.logs import holders_of
from shoal.storage.rows import RetentionStep

_RUN_ROWS = 32  # removed at one place before the next oldest is looked for, and the size measured
_SWEPT_PER_ROW = 4  # replica rows removed in a step for each message: more replicas than most have
_ALL = 2**64
_NONE = -1

_Oldest = tuple[int, Place]


class _Run(NamedTuple):
    removed: int
    next_ns: int | None
    """Ingest time of the oldest row left."""
    blocked: bool
    raised: list[int]
    """Numbers of the replicas that have rows to be swept now."""


class _Pass(NamedTuple):
    """What a step leaves for the next."""

    queue: list[_Oldest]
    sweeps: dict[tuple[Place, int], None]
    blocked: bool


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

    def step(self, now_ns: int) -> RetentionStep:
        """One step; call again while there is more."""
        with self._one_at_a_time:
            if self._pass is None and not self._is_due(now_ns):
                size_bytes = self._database.read(self._database.size_bytes)
                return RetentionStep(0, False, False, size_bytes)
            try:
                return self._go_on(now_ns)
            except BaseException:
                self._forget()
                raise

    def appended(self, ingest_ns: int) -> None:
        """A row came in, at this time or later."""
        with self._oldest_changes:
            self._oldest_ns = min(self._oldest_ns, ingest_ns)

    def rows_given_up(self) -> None:
        """A replica has rows that are not available any more: the next pass removes them."""
        with self._one_at_a_time:
            self._forget()

    def _forget(self) -> None:
        """The next step begins a pass over everything."""
        self._pass = None
        self._swept = False

    def _go_on(self, now_ns: int) -> RetentionStep:
        if self._pass is None:
            self._oldest_ns = _ALL  # what is appended from here on says so itself
            self._pass = self._database.read(self._begin)
        left, step = self._database.write(self._step, self._pass, now_ns)
        if step.more:
            self._pass = left
        else:
            self._pass = None
            self._swept = True
            if left.queue or left.blocked:
                self.appended(0 if left.blocked else left.queue[0][0])
        return step

    def _is_due(self, now_ns: int) -> bool:
        age_ns, size_max = self._config.age_ns, self._config.size_bytes_max
        if not self._swept or (age_ns is not None and self._oldest_ns + age_ns <= now_ns):
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
                queue.append((self._entry(txn, place, head.first).ingest_ns, place))
        heapify(queue)
        return _Pass(queue, sweeps, False)

    def _step(self, txn: Txn, begun: _Pass, now_ns: int) -> tuple[_Pass, RetentionStep]:
        queue, sweeps, blocked = begun.queue.copy(), begun.sweeps.copy(), begun.blocked
        removed = 0
        while queue and removed < self._config.rows_per_step:
            limit_ns = self._limit_ns(txn, now_ns)
            if queue[0][0] > limit_ns:
                break
            _, place = heappop(queue)
            rows = min(self._config.rows_per_step - removed, _RUN_ROWS)
            run = self._remove(txn, place, limit_ns, now_ns, rows, leased=limit_ns != _ALL)
            removed += run.removed
            blocked |= run.blocked
            sweeps.update(dict.fromkeys((place, number) for number in run.raised))
            if run.next_ns is not None and not run.blocked:
                heappush(queue, (run.next_ns, place))
        self._sweep(txn, sweeps)
        more = bool(sweeps) or (bool(queue) and queue[0][0] <= self._limit_ns(txn, now_ns))
        step = RetentionStep(removed, more, blocked, self._database.size_bytes(txn))
        return _Pass(queue, sweeps, blocked), step

    def _limit_ns(self, txn: Txn, now_ns: int) -> int:
        """What came in up to this time must go."""
        age_ns, size_max = self._config.age_ns, self._config.size_bytes_max
        if size_max is not None and self._database.size_bytes(txn) > size_max:
            return _ALL
        return _NONE if age_ns is None else now_ns - age_ns

    def _remove(
        self, txn: Txn, place: Place, limit_ns: int, now_ns: int, rows: int, *, leased: bool
    ) -> _Run:
        """Take rows that must go off the old end of the own log at a place; if leases count there,
        not what somebody still needs."""
        tables = self._tables
        head = read_head(txn.get(head_key(place, OWN), db=tables.heads))
        held = leased_after(txn, tables, place, now_ns) if leased else {}
        raised: dict[int, int] = {}
        seq, horizon_ms, next_ns, blocked = head.first, head.horizon_ms, None, False
        while seq <= head.last:
            entry = self._entry(txn, place, seq)
            message_key = place + entry.tail
            holders = holders_of(txn, tables, message_key)
            blocked = any(at > held.get(log, _ALL) for log, at in [(OWN, seq), *holders])
            if blocked or entry.ingest_ns > limit_ns or seq - head.first >= rows:
                next_ns = entry.ingest_ns
                blocked &= entry.ingest_ns <= limit_ns
                break
            txn.delete(message_key, db=tables.messages)
            txn.delete(message_key, db=tables.holders)
            txn.delete(entry_key(OWN, place, seq), db=tables.entries)
            horizon_ms = max(horizon_ms, timestamp_of(entry.tail) + 1)
            for number, replica_seq in holders:
                raised[number] = max(replica_seq + 1, raised.get(number, 0))
            seq += 1
        if seq > head.first:
            head_now = head._replace(first=seq, horizon_ms=horizon_ms)
            txn.put(head_key(place, OWN), head_value(head_now), db=tables.heads)
            self._raise(txn, place, raised)
        return _Run(seq - head.first, next_ns, blocked, list(raised))

    def _raise(self, txn: Txn, place: Place, raised: dict[int, int]) -> None:
        """Replicas begin above the rows whose messages are gone."""
        for number, first in raised.items():
            key = head_key(place, number)
            head = read_head(txn.get(key, db=self._tables.heads))
            if first > head.first:
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

    def _entry(self, txn: Txn, place: Place, seq: int) -> Entry:
        raw = txn.get(entry_key(OWN, place, seq), db=self._tables.entries)
        if raw is None:
            raise InvariantViolated(f"the own log has no row {seq}")
        return read_entry(raw)
