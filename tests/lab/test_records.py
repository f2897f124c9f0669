"""The tables of a run: from a trace written by hand, and from real runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.kernel.records import (
    Delivered,
    FaultInjected,
    InstructionHandled,
    Published,
    ReceivedAgain,
    Record,
    RttMeasured,
    Sent,
)
from shoal.sim.delays import RegionTable
from shoal.sim.trace import Row, by_kind
from shoal_lab.experiments.streams import tables as records
from shoal_lab.experiments.streams.figures import NEVER_NS, StreamResults
from shoal_lab.experiments.streams.tables import Place, StreamRecords, Surroundings
from shoal_lab.runs.run_tables import TENTH_NS
from tests.lab.test_results import ALL_READY, STREAM, A, B, C, D, message, published, received

PLACES = [Place(A, "x"), Place(B, "y"), Place(C, "x"), Place(D, "y")]


def again(node: NodeId, id: Any, at_ms: int, copies: int = 1) -> list[Row]:
    return [(at_ms * MS_NS, node, ReceivedAgain(id, A))] * copies


def tables(
    rows: list[Row],
    running: tuple[NodeId, ...] = (A, B, C, D),
    edges: list[tuple[StreamId, int, int, int]] | None = None,
    delays: RegionTable = RegionTable((), ()),  # noqa: B008 - it cannot change
) -> dict[str, pa.Table]:
    """Of one trace, handed over in batches of several sizes, which must not matter."""
    found = []
    for size in (1, 3, len(rows) + 1):
        results = StreamResults(place.id for place in PLACES)
        gathered = StreamRecords(PLACES, results)
        for at in range(0, len(rows), size):
            results(by_kind(rows[at : at + size]))
            gathered(by_kind(rows[at : at + size]))
        world = Surroundings(dict.fromkeys(running, 0), edges or [], delays)
        found.append(gathered.tables("r", world))
    assert found[0] == found[1] == found[2]
    return found[0]


def rows_of(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in table.to_pylist()]


def test_a_delivery_has_its_delay_its_hops_and_its_copies() -> None:
    m, n = message(A, 10), message(B, 20)
    made = tables([
        *ALL_READY,
        *published(m),
        *received(B, m, 12),
        *again(B, m, 13, copies=2),
        *again(A, m, 13),
        *published(n),
        *received(C, m, 25, hops=2),
        *received(C, n, 27, hops=3),
        *again(C, n, 28),
    ])  # fmt: skip
    columns = ("run", "stream", "message", "publisher", "node", "region", "delay_tenths_ms")
    assert rows_of(made["deliveries"], *columns, "hops", "duplicates", "due") == [
        ("r", STREAM, 0, 0, 1, "y", 20, 1, 2, True),
        ("r", STREAM, 0, 0, 2, "x", 150, 2, 0, True),
        ("r", STREAM, 1, 1, 2, "x", 70, 3, 1, True),
    ]
    published_columns = ("message", "time_ns", "node", "timestamp_ms", "publisher", "size_bytes")
    assert rows_of(made["messages"], *published_columns, "expected", "duplicates") == [
        (0, 10 * MS_NS, 0, 10, A, 9, 3, 1),
        (1, 20 * MS_NS, 1, 20, B, 9, 3, 0),
    ]


@pytest.mark.parametrize(
    ("past", "tenths"), [(0, 20), (TENTH_NS // 2 - 1, 20), (TENTH_NS // 2, 21)]
)
def test_delays_are_rounded_to_the_nearest_tenth(past: int, tenths: int) -> None:
    m = message(A, 10)
    came: Row = (12 * MS_NS + past, B, Delivered(m, 1, 0))
    made = tables([*ALL_READY, *published(m), came])
    assert rows_of(made["deliveries"], "delay_tenths_ms") == [(tenths,)]


def test_a_node_that_did_not_stay_or_came_late_is_not_due() -> None:
    m = message(A, 10)
    late = (11 * MS_NS, D, InstructionHandled(STREAM, 1, 1, 1, 1))
    rows = [*ALL_READY[:3], *published(m), late, *received(B, m, 12), *received(C, m, 12)]
    made = tables([*rows, *received(D, m, 13)], running=(A, B, D))
    assert rows_of(made["deliveries"], "node", "due") == [(1, True), (2, False), (3, False)]
    assert rows_of(made["messages"], "expected") == [(1,)]
    assert rows_of(made["nodes"], "node", "id", "region", "ready_ns") == [
        (0, A, "x", MS_NS), (1, B, "y", MS_NS), (2, C, "x", NEVER_NS), (3, D, "y", 11 * MS_NS),
    ]  # fmt: skip


def test_copies_are_counted_once_when_a_node_is_given_a_message_twice() -> None:
    m = message(A, 10)
    rows = [*ALL_READY, *published(m), *received(B, m, 12), *again(B, m, 13, copies=3)]
    made = tables([*rows, *received(B, m, 40), *received(C, m, 41)])
    assert rows_of(made["deliveries"], "node", "duplicates") == [(1, 3), (1, 0), (2, 0)]


def test_a_copy_of_what_nobody_published_is_nobodys() -> None:
    m = message(A, 10)
    made = tables([*ALL_READY, *published(m), *again(B, message(C, 99), 12), *received(B, m, 13)])
    assert rows_of(made["deliveries"], "duplicates") == [(0,)]


def test_round_trips_become_one_row_a_link() -> None:
    trips = [(5, B, 300), (6, B, 100), (7, C, 50), (9, B, 200)]
    made = tables([(at, A, RttMeasured(peer, rtt_us)) for at, peer, rtt_us in trips])
    columns = ("a", "b", "rtts", "rtt_us_min", "rtt_us_sum", "last_ns")
    assert rows_of(made["links"], *columns) == [(A, B, 3, 100, 600, 9), (A, C, 1, 50, 50, 7)]


def test_what_is_rare_is_kept_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK_ROWS", 2)
    faults: list[tuple[int, NodeId, Record]] = [
        (at, A, FaultInjected("loss", f"{at}")) for at in range(5)
    ]
    made = tables([*faults, (9, A, Sent(message(A, 1), 3))])
    assert made.keys() == {"deliveries", "messages", "nodes", "fault_injected"}
    assert rows_of(made["fault_injected"], "run", "time_ns", "node", "fault", "detail") == [
        ("r", at, A, "loss", f"{at}") for at in range(5)
    ]


def test_what_the_trace_does_not_tell_is_told() -> None:
    delays = RegionTable(("x", "y"), ((1_000, 7_000), (9_999, 2_000)))
    made = tables([], edges=[(STREAM, 0, 1, 2_500_000)], delays=delays)
    assert rows_of(made["topologies"], "stream", "a", "b", "delay_us") == [(STREAM, 0, 1, 2500)]
    assert rows_of(made["delays"], "a", "b", "delay_us") == [
        ("x", "x", 1), ("x", "y", 7), ("y", "x", 9), ("y", "y", 2),
    ]  # fmt: skip


def test_a_run_without_messages_has_empty_tables() -> None:
    made = tables([(MS_NS, A, Published(message(A, 1), 3))])
    assert made["deliveries"].num_rows == 0
    assert tables([])["messages"].num_rows == 0
