"""A store whose node's clock is wrong for a while, or was when it started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.base.units import S_NS
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored
from shoal.protocols.streams.history.disk_requests import (
    MessageKey,
    Retain,
    Retained,
    decode_answer,
    encode,
)
from shoal.storage.config import Retention, StoreConfig
from shoal.storage.message_store.store_disk import StoreDisk
from shoal.storage.message_store.store_types import LogHead
from tests.storage.stage import START_NS, STREAM, message, open_store

DAY_NS = 24 * 3600 * S_NS
STEPS = [600 * S_NS, -600 * S_NS, 3600 * S_NS, 31 * DAY_NS, -31 * DAY_NS]


class Node:
    """A storage node's disk, with both clocks of its machine."""

    def __init__(self, folder: Path, *, age_ns: int | None = 30 * DAY_NS) -> None:
        self._folder = folder
        self._config = StoreConfig(retention=Retention(age_ns, None))
        self.passed_ns = 0
        """Since the first start."""
        self.ahead_ns = 0
        """By how much the system clock is."""
        self._begun_ns = 0
        self.start()

    def start(self) -> None:
        self.store = open_store(self._folder, self._config)
        self.disk = StoreDisk(self.store)
        self._begun_ns = START_NS + self.passed_ns + self.ahead_ns  # monotonic time begins there
        self._begun_at_ns = self.passed_ns

    def stop(self) -> None:
        self.store.close()

    @property
    def steady_ns(self) -> int:
        return self._begun_ns + self.passed_ns - self._begun_at_ns

    def step(self, ns: int) -> None:
        """The system clock is set."""
        self.ahead_ns += ns
        wall_ns = START_NS + self.passed_ns + self.ahead_ns
        self.disk.wall.set(wall_ns - self.steady_ns, self.steady_ns)

    def keep(self, *numbers: int) -> None:
        requests = [
            (0, Store(encode(MessageKey(m.id)), m.signed, n)) for n in numbers for m in [message(n)]
        ]
        assert all(isinstance(r, Stored) for r in self.disk.work(requests, self.steady_ns))

    def passes(self, ns: int, every_ns: int = 0) -> None:
        """Time goes by, with retention now and then."""
        every_ns = every_ns or ns
        for _ in range(ns // every_ns):
            self.passed_ns += every_ns
            self.retain()

    def retain(self) -> None:
        while True:
            asked = (0, Load(encode(Retain()), None))
            (loaded,) = self.disk.work([asked], self.steady_ns)
            assert isinstance(loaded, Loaded)
            if not decode_more(loaded.value):
                return

    def kept(self) -> int:
        return self.store.info().messages


def decode_more(value: bytes | None) -> bool:
    assert value is not None
    answer = decode_answer(value)
    assert isinstance(answer, Retained)
    return answer.more


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "store")
    yield node
    node.stop()


@pytest.mark.parametrize("step_ns", STEPS)
def test_a_step_for_ten_seconds_removes_nothing(node: Node, step_ns: int) -> None:
    node.keep(*range(1000))
    node.passes(60 * S_NS, 10 * S_NS)
    node.step(step_ns)
    node.passes(10 * S_NS, S_NS)
    node.step(-step_ns)
    node.passes(2 * 3600 * S_NS, 60 * S_NS)
    assert node.kept() == 1000


def test_a_clock_that_stays_a_month_ahead_costs_two_percent_a_day(node: Node) -> None:
    node.keep(*range(1000))
    node.passes(60 * S_NS, 10 * S_NS)
    node.step(31 * DAY_NS)
    node.passes(3600 * S_NS - S_NS, 600 * S_NS - 1)
    assert node.kept() == 1000, "an hour of grace"
    assert node.store.retention_waits
    node.passes(5 * DAY_NS, 3600 * S_NS)
    assert 1000 * 0.98**6 <= node.kept() < 1000
    assert not node.store.retention_waits


def test_other_limits_let_no_more_go_by_the_time_of_day(node: Node) -> None:
    """What went before its time is counted by when it came in, whatever the age allowed is now."""
    node.keep(*range(1000))
    node.passes(60 * S_NS, 10 * S_NS)
    node.step(31 * DAY_NS)
    node.passes(5 * DAY_NS, 3600 * S_NS)
    before = node.kept()
    assert before < 950
    node.store.limit(Retention(10 * DAY_NS, None))  # no row is so old
    node.passes(DAY_NS, 3600 * S_NS)
    assert node.kept() >= before - 2 * 0.02 * 1000  # it may be two days' shares


def test_a_note_of_time_that_is_damaged_is_none(node: Node) -> None:
    node.keep(*range(100))
    node.passes(5 * DAY_NS, 3600 * S_NS)
    node.stop()
    node.start()
    tables = node.store._database.tables

    def damage(txn: Any) -> None:
        raw = txn.get(b"retention", db=tables.meta)
        txn.put(b"retention", raw[:5] + b"\xcf" + b"\x7f" * 8 + raw[14:], db=tables.meta)

    node.store._database.write(damage)
    node.step(31 * DAY_NS)
    node.passes(DAY_NS, 600 * S_NS)
    assert node.kept() >= 95


@pytest.mark.parametrize("step_ns", [31 * DAY_NS, -31 * DAY_NS])
@pytest.mark.parametrize("times", [1, 5])
def test_a_start_with_a_wrong_clock_removes_nothing(node: Node, step_ns: int, times: int) -> None:
    node.keep(*range(1000))
    node.passes(60 * S_NS, 10 * S_NS)
    for _ in range(times):
        node.stop()
        node.ahead_ns += step_ns
        node.start()
        node.keep(*range(1000, 1010))
        node.passes(600 * S_NS, 10 * S_NS)
        node.stop()
        node.ahead_ns -= step_ns
        node.start()
        node.passes(600 * S_NS, 10 * S_NS)
    node.passes(DAY_NS // 2, 3600 * S_NS)
    assert node.kept() == 1010


def test_what_has_expired_while_the_store_was_open_goes(node: Node) -> None:
    node.keep(*range(500))
    node.passes(15 * DAY_NS, 3600 * S_NS)
    node.keep(*range(500, 1000))
    node.passes(14 * DAY_NS, 3600 * S_NS)
    assert node.kept() == 1000
    node.passes(2 * DAY_NS, 3600 * S_NS)
    assert node.kept() == 500


def test_a_store_that_was_closed_for_a_week_catches_up(node: Node) -> None:
    for day in range(30):
        node.keep(*range(100 * day, 100 * day + 100))
        node.passes(DAY_NS, 3600 * S_NS)
    before = node.kept()
    node.stop()
    node.passed_ns += 7 * DAY_NS
    node.start()
    node.passes(DAY_NS, 3600 * S_NS)
    assert before - 100 - 0.02 * before <= node.kept() <= before - 0.01 * before
    node.passes(10 * DAY_NS, 3600 * S_NS)
    assert node.kept() <= before - 1100


def test_known_to_be_wrong_it_lets_nothing_go_by_the_time_of_day(node: Node) -> None:
    node.keep(*range(1000))
    node.passes(60 * S_NS, 10 * S_NS)
    node.step(31 * DAY_NS)
    node.disk.wall_is_wrong = True
    node.passes(3 * DAY_NS, 3600 * S_NS)
    assert node.kept() == 1000
    assert node.store.retention_waits


@pytest.mark.parametrize("ahead_ns", [3600 * S_NS, 31 * DAY_NS])
def test_rows_from_ahead_of_the_clock_end_a_log(node: Node, ahead_ns: int) -> None:
    node.keep(1)
    node.passes(60 * S_NS, 10 * S_NS)
    node.step(ahead_ns)
    node.passes(5 * S_NS, S_NS)
    node.keep(2, 3)
    node.passes(5 * S_NS, S_NS)
    node.step(-ahead_ns)
    old = node.store.log
    node.passes(60 * S_NS, 10 * S_NS)
    node.keep(4)
    assert node.store.log != old
    heads = node.store.heads(STREAM, 0)
    assert heads[old] == LogHead(1, 3)
    assert heads[node.store.log] == LogHead(1, 4)
    wall_ns = START_NS + node.passed_ns
    rows = node.store.log_read(node.store.log, STREAM, 0, 0, 10).rows
    times = [row.ingest_ns for row in rows]
    assert times == sorted(times)
    assert times[-1] == wall_ns
    assert node.store.first_seq_at(node.store.log, STREAM, 0, wall_ns) == 4
    node.passes(600 * S_NS, 10 * S_NS)
    assert list(node.store.heads(STREAM, 0)) == list(heads), "once"
    node.store.check_invariants()


def test_retention_goes_on_where_no_new_log_can_begin(tmp_path: Path) -> None:
    node = Node(tmp_path / "store")
    node.stop()
    node._config = msgspec.structs.replace(node._config, logs_max=1)
    node.start()
    node.passes(60 * S_NS, 10 * S_NS)
    node.step(3600 * S_NS)
    node.keep(1)
    node.step(-3600 * S_NS)
    node.passes(60 * S_NS, 10 * S_NS)  # each is answered
    node.passes(32 * DAY_NS, 3600 * S_NS)
    assert node.kept() == 0
    assert node.disk.unanswered["UsageError"] > 1, "it was tried"
    node.stop()


@pytest.mark.parametrize("back_ns", [600 * S_NS, 31 * DAY_NS])
def test_a_clock_that_was_set_back_ends_no_log(node: Node, back_ns: int) -> None:
    """Rows would seem to have come in a month ago, and go when the clock is right again."""
    node.keep(1)
    node.passes(60 * S_NS, 10 * S_NS)
    old = node.store.log
    node.step(-back_ns)
    node.passes(1800 * S_NS, 10 * S_NS)
    node.keep(2)
    node.step(back_ns)
    node.passes(600 * S_NS, 10 * S_NS)
    assert node.store.log == old
    times = [row.ingest_ns for row in node.store.log_read(old, STREAM, 0, 0, 10).rows]
    assert times[1] >= times[0], "never backwards"
