"""The HTTP log of a storage node, as programs read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from time import time_ns
from typing import Any
from uuid import UUID

import pytest

from shoal.base.gateway_messages import (
    PAGE_BYTES_MAX,
    PAGE_ROWS_MAX,
    LogRows,
    decode_heads,
    decode_rows,
)
from shoal.base.units import S_NS
from shoal.gateway.endpoints import storage_log
from shoal.identity.message_body import decode_body
from shoal.storage.config import StoreConfig
from shoal.storage.message_store.layout import place_of, tail_of
from tests.support.log_server import ALICE, BOB, START_MS, STREAM, LogServer, signed

HOUR_NS = 3_600 * S_NS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LogServer]:
    with LogServer(tmp_path / "a") as running:
        yield running


def ask(
    server: LogServer, path: str, status: int = 200, method: str = "GET", stream: str = STREAM
) -> bytes:
    connection = HTTPConnection(server.address.removeprefix("http://"), timeout=20)
    try:
        connection.request(method, f"/streams/{stream}/log{path}")
        response = connection.getresponse()
        body = response.read()
        assert response.status == status, body
        return body
    finally:
        connection.close()


def said(server: LogServer, path: str, status: int = 200, method: str = "GET") -> Any:
    return json.loads(ask(server, path, status, method))


def page(server: LogServer, query: str = "") -> LogRows:
    return decode_rows(ask(server, f"?format=msgpack&log={server.store.log}{query}"))


def seqs(rows: LogRows) -> list[int]:
    return [row.seq for row in rows.rows]


def test_a_page_has_rows_as_they_were_signed(server: LogServer) -> None:
    sent = [signed(number) for number in range(2500)]
    server.append(sent)
    got = page(server)
    assert (got.log, got.first, got.last, got.through) == (server.store.log, 1, 2500, 2500)
    assert [row.signed for row in got.rows] == [message.signed for message in sent]
    assert seqs(got) == list(range(1, 2501)), "more than one transaction gives"
    assert abs(time_ns() - got.rows[-1].ingest_ns) < HOUR_NS
    assert seqs(page(server, "&after=10&upto=13")) == [11, 12, 13]
    assert page(server, "&after=10&upto=13").through == 13
    assert seqs(page(server, "&after=10&limit=2")) == [11, 12]
    assert page(server, "&after=20&upto=13").through == 20, "it never leads back"
    assert seqs(page(server, "&after=2500")) == []


def test_a_page_is_bounded_in_bytes(server: LogServer) -> None:
    server.append(signed(number, content=bytes(400_000)) for number in range(30))
    got = page(server)
    size_bytes = sum(len(row.signed) for row in got.rows)
    assert PAGE_BYTES_MAX <= size_bytes < PAGE_BYTES_MAX + 1_500_000
    assert got.through == len(got.rows) < 30
    assert seqs(page(server, f"&after={got.through}"))[0] == got.through + 1


def test_filters_leave_rows_out_and_lead_on(server: LogServer) -> None:
    server.append(signed(n, key=BOB if n % 10 == 0 else ALICE) for n in range(100))
    bob = page(server, f"&publisher=0x{BOB.address.hex()}")
    assert (seqs(bob), bob.through) == ([*range(1, 100, 10)], 100)
    begin, end = START_MS + 20, START_MS + 29
    some = page(server, f"&from={begin}&to={end}")
    assert (seqs(some), some.through) == ([*range(21, 31)], 100)
    both = page(server, f"&from={begin}&to={end}&publisher=0x{BOB.address.hex()}")
    assert seqs(both) == [21]
    assert seqs(page(server, f"&from={begin}&upto=25")) == [21, 22, 23, 24, 25]
    shown = said(server, f"?from={begin}&to={end}&limit=2")
    assert [row["timestamp_ms"] for row in shown["rows"]] == [begin, begin + 1], "for people too"


def test_a_filter_that_finds_nothing_ends_in_time(
    server: LogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.store._logs, "_config", StoreConfig(scan_rows_max=10))
    monkeypatch.setattr(storage_log, "SCANS_MAX", 3)
    server.append(signed(number) for number in range(100))
    got = page(server, f"&publisher=0x{BOB.address.hex()}")
    assert (got.rows, got.through) == ([], 30)
    assert page(server, f"&after=90&publisher=0x{BOB.address.hex()}").through == 100
    assert len(page(server).rows) == 100, "who wants all gets a whole page"


def test_minus_leaves_out_what_another_log_has(tmp_path: Path) -> None:
    with LogServer(tmp_path / "a") as a, LogServer(tmp_path / "b") as b:
        a.append(signed(number) for number in range(10))
        b.append(signed(number) for number in (20, 21))
        b.follow(a)
        b.append([signed(22)])
        got = page(b, f"&minus={a.store.log}:7")
        numbers = [decode_body(row.signed).id.timestamp_ms - START_MS for row in got.rows]
        assert (numbers, got.through) == ([20, 21, 7, 8, 9, 22], 13)
        ask(b, f"?format=msgpack&minus={a.store.log}:11", 404)
        heads = decode_heads(ask(b, "/heads"))
        held = {head.log: (head.first, head.last) for head in heads.partitions[0]}
        assert heads.own == b.store.log
        assert held == {a.store.log: (1, 10), b.store.log: (1, 13)}


def test_heads_of_all_partitions_come_at_once(tmp_path: Path) -> None:
    with LogServer(tmp_path / "a", keeps=lambda stream: stream.endswith("/empty")) as server:
        server.append(signed(n, partition=n % 3) for n in range(10))
        heads = decode_heads(ask(server, "/heads"))
        assert {p: logs[0].last for p, logs in heads.partitions.items()} == {0: 4, 1: 3, 2: 3}
        assert heads.kept
        owner = STREAM.split("/")[0]
        for path, kept in (("empty", True), ("none", False)):
            heads = decode_heads(ask(server, "/heads", stream=f"{owner}/{path}"))
            assert (heads.kept, heads.partitions) == (kept, {})


def test_seqs_are_found_by_ingest_time(server: LogServer) -> None:
    for number in range(5):
        server.append([signed(number)], now_ns=(START_MS + 1000 * number) * 1_000_000)
    for when_ms, seq in ((0, 1), (START_MS, 1), (START_MS + 1, 2), (START_MS + 4000, 5)):
        assert said(server, f"/seek?time={when_ms}")["seq"] == seq
    assert said(server, "/seek?time=2026-02-01T00:00:00Z")["seq"] == 6, "the next to be given"


def test_leases_are_taken_moved_and_given_back(server: LogServer) -> None:
    server.append(signed(number) for number in range(5))
    log = server.store.log
    words = f"/lease?log={log}&holder=query&partition=0"
    expires_ns = said(server, f"{words}&after=2&seconds=60", method="PUT")["expires_ns"]
    assert 0 < expires_ns - time_ns() <= 60 * S_NS
    (lease,) = server.store.leases()
    assert (lease.holder, lease.after_seq, lease.expires_ns) == ("query", 2, expires_ns)
    said(server, f"{words}&after=4", method="PUT")
    assert [lease.after_seq for lease in server.store.leases()] == [4], "the same one, moved"
    assert said(server, words, method="DELETE") == {"released": True}
    assert said(server, words, method="DELETE") == {"released": False}
    assert server.store.leases() == []


def test_a_lease_on_nothing_takes_no_room(server: LogServer) -> None:
    """The name of a stream, once in a store, is there for ever."""
    owner, log = STREAM.split("/")[0], server.store.log
    other = ask(
        server, f"/lease?log={log}&holder=x", 404, method="PUT", stream=f"{owner}/never/heard/of"
    )
    assert b"has no rows" in other
    assert server.store.info().streams == 0


@pytest.mark.parametrize(
    ("path", "method", "status", "complaint"),
    [
        ("?format=xml", "GET", 400, "format=xml: give json, or msgpack"),
        (f"?format=msgpack&limit={PAGE_ROWS_MAX + 1}", "GET", 400, "1 to 10000"),
        ("?limit=1001", "GET", 400, "1 to 1000"),
        ("?minus=7", "GET", 400, "minus=7: give a log's id"),
        (f"?minus={UUID(int=7)}:0", "GET", 400, "minus=0: give a whole number, 1 to"),
        ("?minus=" + ",".join(f"{UUID(int=n)}:1" for n in range(17)), "GET", 400, "at most 16"),
        ("?publisher=bob", "GET", 400, "'bob' is not a node id"),
        ("?from=soon", "GET", 400, "write milliseconds since 1970"),
        ("/seek", "GET", 400, "time=: give"),
        ("/lease?holder=x", "PUT", 400, "give its id"),
        (f"/lease?log={UUID(int=7)}", "PUT", 400, "holder=: whose lease it is"),
        (f"/lease?log={UUID(int=7)}&holder=x", "PUT", 404, "has no rows"),
        (f"/lease?log={UUID(int=7)}&seconds=3601", "PUT", 400, "seconds"),
        (f"/lease?log={UUID(int=7)}&holder={'x' * 65}", "DELETE", 400, "1 to 64 characters"),
    ],
)
def test_bad_values_are_named_with_a_remedy(
    server: LogServer, path: str, method: str, status: int, complaint: str
) -> None:
    assert complaint in said(server, path, status, method)["error"]


def test_what_retention_took_is_gone_and_what_is_left_is_said(server: LogServer) -> None:
    server.append((signed(number) for number in range(20)), now_ns=START_MS * 1_000_000)
    server.append([signed(20)])
    retainer = server.store._retainer
    retainer._config = type(retainer._config)(age_ns=HOUR_NS)
    while server.store.retain(time_ns()).more:
        pass
    gone = said(server, f"?after=3&format=msgpack&log={server.store.log}", 410)
    assert (gone["first"], gone["last"]) == (21, 21)
    assert "has expired" in gone["error"]


def test_a_place_is_of_one_log_and_a_node_may_begin_another(server: LogServer) -> None:
    """300 rows, a backup, 300 more, a restore, 400 new: what comes after 600?"""
    backed_up = [signed(number) for number in range(300)]
    server.append(backed_up)  # as the backup has it; a reader has read up to 600 since then
    old, new = server.store.log, server.store.new_log(time_ns())
    server.append([signed(number) for number in range(600, 1000)])
    assert "name it with log=" in said(server, "?after=600", 400)["error"]
    assert "is held here up to seq 300" in said(server, f"?after=600&log={old}", 404)["error"]
    unknown = said(server, f"?log={new}&minus={old}:600", 404)["error"]
    assert "held here up to 300 only" in unknown
    # Who came only as far as the backup goes on along the new log, with exactly what is new.
    at_end = said(server, f"?after=300&log={old}")
    assert (at_end["rows"], at_end["own"]) == ([], str(new))
    rest = decode_rows(ask(server, f"?format=msgpack&log={new}&minus={old}:300"))
    numbers = [decode_body(row.signed).id.timestamp_ms - START_MS for row in rest.rows]
    assert numbers == list(range(600, 1000))


def damage(server: LogServer, number: int) -> None:
    """A byte of a message is another one on disk."""
    kept = server.store._database.tables.messages
    key = place_of(0, 0) + tail_of(signed(number).id)

    def work(txn: Any) -> None:
        value = txn.get(key, db=kept)
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=kept)

    server.store._database.write(work)


def test_a_damaged_row_is_told_and_what_follows_comes(server: LogServer) -> None:
    server.append([signed(number) for number in range(864)])
    damage(server, 255)
    got = page(server)
    assert seqs(got) == [seq for seq in range(1, 865) if seq != 256]
    assert (got.damaged, got.through) == ([256], 864)
    shown = said(server, f"?log={server.store.log}&after=250&limit=10")
    assert [row["seq"] for row in shown["rows"]] == [251, 252, 253, 254, 255, 257, 258, 259, 260]
    assert (shown["damaged"], shown["through"]) == ([256], 260)
