"""Random lives of a store beside a naive one: after every step they say the same."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shoal.base.errors import NotFound, OffsetExpired, UsageError
from shoal.base.ids import NodeId
from shoal.identity.message_body import Position
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store_types import Lease, LogId, ReplicaRow, Row
from tests.storage.naive import NaiveStore, Place
from tests.storage.stage import (
    ALICE,
    BOB,
    OTHER,
    START_MS,
    START_NS,
    STREAM,
    claim,
    horizon_ms,
    kept_rows,
    message,
    open_store,
    rows_of,
    verified,
)

AGE_NS = 50
# Small pages, steps and maps, so that a few messages go through every boundary.
CONFIG = StoreConfig(
    retention=Retention(age_ns=AGE_NS, size_bytes_max=None, rows_per_step=3),
    map_bytes=16 * 4096,
    page_rows_max=3,
    scan_rows_max=4,
)
PLACES: list[Place] = [(STREAM, 0), (STREAM, 1), (OTHER, 0)]
LOGS = [UUID(int=0xA), UUID(int=0xB)]
CLOSED_MAX = 3

places = st.sampled_from(PLACES)
logs = st.sampled_from(LOGS)
own_logs = st.integers(0, CLOSED_MAX)
times = st.sampled_from([0, 1, 2, 59_999, 60_000, 180_000])
publishers = st.sampled_from([ALICE, BOB])
chains = st.sampled_from(["c", "cc"])
positions = st.builds(Position, times.map(START_MS.__add__), st.integers(0, 2))


@st.composite
def some_messages(draw: st.DrawFn, place: Place | None = None) -> VerifiedMessage:
    stream, partition = place or draw(places)
    return message(
        draw(times),
        draw(st.integers(0, 1)),
        stream=stream,
        partition=partition,
        publisher=draw(publishers),
        chain=draw(chains),
        # The second content is equivocation, the second signature is not.
        content=draw(st.sampled_from([b"one", b"one", b"one", b"two"])),
        signature=draw(st.sampled_from([b"s", b"s", b"t"])),
    )


class StoreLife(RuleBasedStateMachine):
    """One store, its naive twin, and the logs of two other nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-store-"))
        self.store = open_store(self.folder, CONFIG)
        self.naive = NaiveStore(self.store.log)
        self.now_ns = START_NS
        self.opened = 0
        self.elsewhere: dict[tuple[LogId, Place], list[Row]] = {}
        """What the other nodes have in their logs."""

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # What happens

    @rule(batch=st.lists(some_messages(), max_size=8), elapsed_ns=st.integers(-10, 30))
    def append(self, batch: list[VerifiedMessage], elapsed_ns: int) -> None:
        self.now_ns += elapsed_ns  # clocks go back, too
        assert self.store.append(batch, self.now_ns) == self.naive.append(batch, self.now_ns)

    @rule(log=logs, place=places, data=st.data())
    def another_node_appends(self, log: LogId, place: Place, data: st.DataObject) -> None:
        rows = self.elsewhere.setdefault((log, place), [])
        latest_ns = rows[-1].ingest_ns if rows else START_NS
        for sent in data.draw(st.lists(some_messages(place), max_size=5)):
            latest_ns += 1
            rows.append(Row(sent.id, len(rows) + 1, latest_ns, sent.signed))

    @rule(
        log=logs,
        place=places,
        back=st.integers(-1, 3),
        count=st.integers(0, 6),
        bare=st.booleans(),
    )
    def replicate(self, log: LogId, place: Place, back: int, count: int, bare: bool) -> None:
        replica = self.naive.logs.get((log, place))
        begin = max(1, (replica.last if replica else 0) + 1 - back)
        rows = self.elsewhere.get((log, place), [])[begin - 1 :][:count]
        lacking = self.store.lacking([claim(row) for row in rows])
        offered = [
            ReplicaRow(
                row.seq,
                row.ingest_ns,
                row.id,
                None if bare and row.id not in lacking else verified(row),
            )
            for row in rows
        ]
        if rows and replica is not None and begin > replica.last + 1:
            with pytest.raises(UsageError, match="begins at"):
                self.store.append_replica(log, *place, offered, self.now_ns)
            return
        if bare:  # then the bytes are taken to be ours
            rows = [
                Row(row.id, row.seq, row.ingest_ns, self.naive.held[row.id].signed)
                if row.id not in lacking
                else row
                for row in rows
            ]
        result = self.store.append_replica(log, *place, offered, self.now_ns)
        assert result.appended == self.naive.append_replica(log, place, rows, self.now_ns)

    @rule(log=logs, place=places, first=st.integers(1, 15))
    def advance(self, log: LogId, place: Place, first: int) -> None:
        # Not beyond what that node has: nothing would ever be appended.
        first = min(first, len(self.elsewhere.get((log, place), [])) + 1)
        advanced = self.store.advance_replica(log, *place, first)
        assert advanced == self.naive.advance(log, place, first)

    @rule(elapsed_ns=st.integers(0, 80))
    def retain(self, elapsed_ns: int) -> None:
        self.now_ns += elapsed_ns
        removed = 0
        while True:
            step = self.store.retain(self.now_ns)
            removed += step.removed
            if not step.more:
                break
        assert removed == self.naive.retain(self.now_ns, AGE_NS)
        available = [
            len(log.after(max(log.first - 1, self.naive.shared.get(key, 0))))
            for key, log in self.naive.logs.items()
        ]
        assert kept_rows(self.store) == sum(available), "and the rest is swept"

    @rule(
        holder=st.sampled_from(["x", "y"]),
        log=logs | own_logs,
        place=places,
        after_seq=st.integers(0, 10),
        lasts_ns=st.integers(1, 100),
    )
    def lease(
        self, holder: str, log: LogId | int, place: Place, after_seq: int, lasts_ns: int
    ) -> None:
        log = self.log_of(log)
        held = self.naive.log(log, place)
        expires_ns = self.now_ns + lasts_ns
        taken = Lease(holder, log, *place, after_seq, expires_ns)
        if held is None or after_seq + 1 < held.first:
            with pytest.raises(NotFound if held is None else OffsetExpired):
                self.store.lease(taken, self.now_ns)
            return
        self.store.lease(taken, self.now_ns)
        self.naive.leases[holder, log, place] = after_seq, expires_ns

    @rule(holder=st.sampled_from(["x", "y"]), place=places)
    def release(self, holder: str, place: Place) -> None:
        held = (holder, self.store.log, place)
        released = self.store.release(holder, self.store.log, *place)
        lease = self.naive.leases.pop(held, None)
        # Expired leases are dropped whenever retention passes by.
        assert released or lease is None or lease[1] <= self.now_ns

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.opened += 1
        self.store = open_store(self.folder, CONFIG, seed=f"opened {self.opened}")
        assert self.store.log == self.naive.own

    @rule(keep_old=st.sampled_from([True, True, False]), elapsed_ns=st.integers(-30, 30))
    def new_log(self, keep_old: bool, elapsed_ns: int) -> None:
        if len(self.naive.closed) == CLOSED_MAX:
            return
        log = self.store.new_log(self.now_ns + elapsed_ns, keep_old=keep_old)
        self.naive.new_log(log, self.now_ns + elapsed_ns, keep_old=keep_old)
        assert self.store.log == log

    def log_of(self, drawn: LogId | int) -> LogId:
        """The log of another node, the own one, or one that was."""
        if not isinstance(drawn, int):
            return drawn
        return [*self.naive.closed, *[self.naive.own] * (CLOSED_MAX + 1)][drawn]

    # What is read

    @rule(
        place=places,
        begin=positions | st.none(),
        end=positions | st.none(),
        publisher=publishers | st.none(),
        chain=chains | st.none(),
    )
    def read_range(
        self,
        place: Place,
        begin: Position | None,
        end: Position | None,
        publisher: NodeId | None,
        chain: str | None,
    ) -> None:
        pages = self.store.range(*place, begin, end, publisher, chain)
        assert rows_of(pages) == self.naive.range(place, begin, end, publisher, chain)

    @rule(place=places, n=st.integers(0, 12), publisher=publishers | st.none())
    def read_last(self, place: Place, n: int, publisher: NodeId | None) -> None:
        expected = self.naive.range(place, publisher=publisher)[-n:] if n else []
        assert rows_of(self.store.last(*place, n, publisher)) == expected

    @rule(
        log=logs | own_logs,
        place=places,
        after_seq=st.integers(0, 12),
        limit=st.integers(1, 5),
        other=logs | own_logs,
        up_to=st.integers(0, 6),
    )
    def read_log(
        self,
        log: LogId | int,
        place: Place,
        after_seq: int,
        limit: int,
        other: LogId | int,
        up_to: int,
    ) -> None:
        log = self.log_of(log)
        minus = {self.log_of(other): up_to} if up_to else {}
        expected = self.naive.log(log, place)
        left_out = [self.naive.log(known, place) for known in minus]
        if expected is None or None in left_out:
            with pytest.raises((NotFound, OffsetExpired)):
                self.store.log_read(log, *place, after_seq, limit, minus)
        elif after_seq + 1 < expected.first:
            with pytest.raises(OffsetExpired) as caught:
                self.store.log_read(log, *place, after_seq, limit)
            assert (caught.value.first_seq, caught.value.last_seq) == (
                expected.first,
                expected.last,
            )
        elif log in minus or any(at is not None and at.last < up_to for at in left_out):
            with pytest.raises(UsageError):
                self.store.log_read(log, *place, after_seq, limit, minus)
        else:
            rows, through = [], after_seq
            while through < expected.last:
                page = self.store.log_read(log, *place, through, limit, minus)
                assert len(page.rows) <= limit
                assert page.through > through
                rows += page.rows
                through = page.through
            assert rows == self.naive.minus(expected.after(after_seq), minus)

    @rule(log=logs | own_logs, place=places, elapsed_ns=st.integers(-150, 50))
    def find_by_time(self, log: LogId | int, place: Place, elapsed_ns: int) -> None:
        log = self.log_of(log)
        expected = self.naive.log(log, place)
        if expected is None:
            return
        time_ns = self.now_ns + elapsed_ns
        available = [row for row in expected.after(expected.first - 1) if row.ingest_ns >= time_ns]
        seq = available[0].seq if available else expected.last + 1
        assert self.store.first_seq_at(log, *place, time_ns) == seq

    @rule(sent=st.lists(some_messages(), max_size=8))
    def read_ids(self, sent: list[VerifiedMessage]) -> None:
        held = [self.naive.held[one.id] for one in sent if one.id in self.naive.held]
        assert rows_of(self.store.get([one.id for one in sent])) == held
        lacking = [one.id for one in sent if not self.naive.holds(one)]
        assert self.store.lacking([claim(one) for one in sent]) == lacking

    # What is always so

    @invariant()
    def heads_and_counts_agree(self) -> None:
        for place in PLACES:
            assert self.store.heads(*place) == self.naive.heads(place)
            assert horizon_ms(self.store, *place) == self.naive.horizons.get(place, 0)
            assert rows_of(self.store.range(*place)) == self.naive.range(place)
        assert self.store.info().messages == len(self.naive.held)

    @invariant()
    def nothing_contradicts_anything(self) -> None:
        self.store.check_invariants()


StoreLife.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestStoreLife = StoreLife.TestCase
