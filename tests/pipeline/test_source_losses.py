"""What a read cannot have: rows that retention took, if no lease keeps them, and absent servers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import time_ns
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from shoal.base.errors import (
    HistoryIncomplete,
    HistoryUnavailable,
    NotFound,
    NotPermitted,
    OffsetExpired,
    UsageError,
)
from shoal.base.gateway_messages import UnheardNode
from shoal.base.ids import StreamId
from shoal.base.offsets import Offset, PartitionOffset, format_offset
from shoal.base.units import S_NS
from shoal.protocols.streams.history.log_entries import read_kept
from shoal.storage.message_store.store_types import ReplicaRow
from shoal_spark.source import log_client
from shoal_spark.source.follower import Follower
from shoal_spark.source.log_client import LeaseKeeper, RowsDamaged
from shoal_spark.source.offsets import EVERYTHING, LogRange, RowFilter, ranges_to
from shoal_spark.source.options import Point
from shoal_spark.source.readers import BatchReader, Pushed, RangePartition, StreamReader
from tests.gateway.test_log import damage
from tests.support.log_server import START_MS, STREAM, LogServer, signed
from tests.support.source_reads import Query, options, rows_of
from tests.transport.recorder import until

HOUR_NS = 3_600 * S_NS


def expire(server: LogServer) -> None:
    retainer = server.store._retainer
    retainer._config = replace(retainer._config, age_ns=HOUR_NS)
    while server.store.retain(time_ns()).more:
        pass


def test_rows_that_retention_took_end_the_query_unless_told_otherwise(a: LogServer) -> None:
    a.append((signed(n) for n in range(10)), now_ns=time_ns() - 2 * HOUR_NS)
    query = Query(a)
    query.run(limit=4)
    assert query.got == list(range(10))
    query.at, query.got = Offset({0: PartitionOffset(a.store.log, 4)}), []
    a.append(signed(n) for n in range(10, 15))
    expire(a)
    with pytest.raises(OffsetExpired, match=r"up to 4.*from 11 on.*failOnDataLoss"):
        query.run()
    part = LogRange(partition=0, log=a.store.log, after=4, upto=12)
    with pytest.raises(OffsetExpired, match="has expired"):
        rows_of(query.options, [part])
    assert rows_of(query.options, [replace(part, after=0, fresh=True)]) == [10, 11]
    query.options = options(a, failOnDataLoss="false")
    query.run()
    assert query.got == list(range(10, 15))


def test_a_log_that_is_come_back_to_may_have_lost_rows_meanwhile(
    a: LogServer, b: LogServer
) -> None:
    a.append(signed(n) for n in range(4))
    b.append((signed(n) for n in range(10)), now_ns=time_ns() - 2 * HOUR_NS)
    b.follow(a)
    b.append(signed(n) for n in range(10, 15))
    a.die()
    query = Query(a, b)
    query.at = Offset({0: PartitionOffset(a.store.log, 4, {b.store.log: 2})})
    expire(b)
    with pytest.raises(OffsetExpired, match="has expired"):
        query.run()
    query.options = options(a, b, failOnDataLoss="false")
    query.run()
    assert query.got == list(range(10, 15))


def test_a_given_end_in_another_log_begins_where_that_log_begins(
    a: LogServer, b: LogServer
) -> None:
    """What retention took there was read in the first log, or nothing says that it was not."""
    a.append(signed(n) for n in range(4))
    b.append((signed(n) for n in range(4)), now_ns=time_ns() - 2 * HOUR_NS)
    b.follow(a)
    b.append(signed(n) for n in range(4, 8))
    expire(b)
    end = Offset({0: PartitionOffset(b.store.log, 7)})
    parts = ranges_to(Offset({0: PartitionOffset(a.store.log, 4)}), end)
    assert rows_of(options(a, b), parts) == [4, 5, 6]


def test_leases_keep_what_a_query_has_not_read(
    a: LogServer, b: LogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_client, "RENEW_S", 0.05)
    a.append((signed(n) for n in range(10)), now_ns=time_ns() - 2 * HOUR_NS)
    b.follow(a)
    keeper = LeaseKeeper(options(a, b))

    def held() -> list[int]:
        return [lease.after_seq for server in (a, b) for lease in server.store.leases()]

    keeper.hold(Offset({0: PartitionOffset(a.store.log, 4)}))
    wait_for(lambda: held() == [4, 4])
    expire(a)
    assert a.store.heads(STREAM, 0)[a.store.log].first == 5
    keeper.hold(Offset({0: PartitionOffset(a.store.log, 7)}))
    wait_for(lambda: held() == [7, 7])
    keeper.release()
    assert held() == []


def test_a_query_that_goes_on_along_another_log_has_its_lease_at_once(
    a: LogServer, b: LogServer
) -> None:
    a.append(signed(n) for n in range(10))
    b.append(signed(n) for n in range(10))
    keeper = LeaseKeeper(options(a, b))

    def held() -> list[tuple[UUID, int]]:
        leases = [lease for server in (a, b) for lease in server.store.leases()]
        return [(lease.log, lease.after_seq) for lease in leases]

    keeper.hold(Offset({0: PartitionOffset(a.store.log, 4)}))
    wait_for(lambda: held() == [(a.store.log, 4)])
    keeper.hold(Offset({0: PartitionOffset(b.store.log, 6, {a.store.log: 4})}))
    wait_for(lambda: (b.store.log, 6) in held())
    keeper.release()
    assert held() == []


def test_a_batch_holds_a_lease_on_every_log_that_it_reads(a: LogServer, b: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    b.follow(a)
    b.append(signed(n) for n in range(10, 15))
    a.die()
    start = format_offset(Offset({0: PartitionOffset(a.store.log, 4)}))
    batch = BatchReader(options(a, b, startingOffsets=start, endingOffsets="latest"))
    parts = [task.part for task in batch.partitions() if isinstance(task, RangePartition)]
    assert [(part.log, part.after) for part in parts] == [(a.store.log, 4), (b.store.log, 10)]
    leases = [(lease.log, lease.after_seq) for lease in b.store.leases()]
    assert sorted(leases) == sorted((part.log, part.after) for part in parts)


def wait_for(condition: Callable[[], bool]) -> None:
    asyncio.run(until(condition, 20))


def test_a_stream_that_nobody_keeps_is_named(tmp_path: Path) -> None:
    empty = STREAM.replace("vehicles", "empty")
    with LogServer(tmp_path / "c", keeps=lambda stream: stream == empty) as server:
        with pytest.raises(NotFound, match=r"no server keeps stream.*\[\[streams\]\]"):
            Query(server).run()
        query = Query(server)
        query.options = replace(query.options, stream=StreamId(empty))
        query.run()  # it is kept, and nobody has said anything yet
        assert query.at == Offset()


def keeper_of_all(folder: Path) -> LogServer:
    """It keeps whatever comes, as `"*"` says; no stream is named."""
    return LogServer(folder, keeps=lambda stream: True, names=lambda stream: False)


def test_a_misspelt_stream_is_no_empty_table(tmp_path: Path) -> None:
    with keeper_of_all(tmp_path / "c") as server:
        server.append(signed(n) for n in range(3))
        typo = {"stream": STREAM.replace("vehicles", "vehicels")}
        with pytest.raises(NotFound, match=r"no stream .*vehicels.*allowMissing"):
            BatchReader(options(server, **typo, endingOffsets="latest")).partitions()
        live = StreamReader(options(server, **typo))
        with pytest.raises(NotFound, match=r"no stream .*vehicels.*allowMissing"):
            live.initialOffset()
        live.stop()
        assert len(BatchReader(options(server, endingOffsets="latest")).partitions()) == 1


def test_a_stream_that_is_still_to_come_is_waited_for_if_that_is_wanted(tmp_path: Path) -> None:
    with keeper_of_all(tmp_path / "c") as server:
        query = Query(server, allowMissing="true", startingOffsets="earliest")
        batch = options(server, allowMissing="true", endingOffsets="latest")
        assert BatchReader(batch).partitions() == []
        query.run()
        assert query.got == []
        server.append([signed(0)])
        query.run()
        assert query.got == [0]


def test_a_server_that_is_away_may_know_the_stream(tmp_path: Path, a: LogServer) -> None:
    a.append([signed(0)])
    a.die()
    with keeper_of_all(tmp_path / "c") as server:
        with pytest.raises(HistoryUnavailable, match="it knows no such stream"):
            Query(server, a).run()
        a.start()
        query = Query(server, a, startingOffsets="earliest")
        query.run()
        assert query.got == [0]


def test_servers_that_are_away_are_named(a: LogServer) -> None:
    a.append([signed(0)])
    a.die()
    with pytest.raises(HistoryUnavailable, match=f"{a.address}.*patienceSeconds"):
        Query(a).run()
    part = LogRange(partition=0, log=a.store.log, after=0, upto=1)
    with pytest.raises(HistoryUnavailable, match=f"log {a.store.log}.*1 to 1"):
        rows_of(options(a), [part])


def test_a_server_that_comes_back_in_time_is_waited_for(a: LogServer) -> None:
    a.append([signed(0)])
    a.die()
    timer = threading.Timer(1.0, a.start)
    timer.start()
    query = Query(a, patienceSeconds="20")
    query.run()
    timer.join()
    assert query.got == [0]


def test_a_log_that_was_restored_from_an_old_copy_is_refused(a: LogServer) -> None:
    a.append(signed(n) for n in range(5))
    query = Query(a)
    query.at = Offset({0: PartitionOffset(a.store.log, 9)})
    with pytest.raises(UsageError, match="restored from an old copy"):
        query.run()


def test_a_query_outlives_the_restore_of_its_storage_node(a: LogServer) -> None:
    a.append(signed(n) for n in range(6))
    query = Query(a)
    query.run(limit=4)
    assert query.got == list(range(6))
    a.store.new_log(time_ns())  # what `shoal restore` does
    a.append(signed(n) for n in range(6, 10))
    query.run()
    assert query.got == list(range(10))


def test_a_query_that_has_more_than_the_backup_skips_nothing(a: LogServer) -> None:
    """It has rows 4 and 5, the backup does not: seqs 5 and 6 of the old log are not given again."""
    a.append(signed(n) for n in range(4))
    query = Query(a)
    query.at = Offset({0: PartitionOffset(a.store.log, 6)})
    a.store.new_log(time_ns())
    a.append(signed(n) for n in range(6, 10))
    with pytest.raises(HistoryUnavailable, match=r"read along log .* up to 6.*none has all"):
        query.run()
    assert query.got == []
    query.options = options(a, failOnDataLoss="false")
    query.run()
    assert query.got == list(range(6, 10))


def test_a_query_waits_for_what_the_others_have_of_the_old_log(tmp_path: Path) -> None:
    with LogServer(tmp_path / "a") as a, LogServer(tmp_path / "b") as b:
        a.append(signed(n) for n in range(4))
        a.die()
        copy = tmp_path / "copy"
        copy.mkdir()
        a.store.close()
        (copy / "data.mdb").write_bytes((tmp_path / "a" / "data.mdb").read_bytes())
        with LogServer(tmp_path / "a") as original:  # it went on after its backup
            original.append(signed(n) for n in range(4, 6))
            b.follow(original)
            query = Query(original)
            query.run()
            old = original.store.log
        with LogServer(copy) as restored:
            assert restored.store.log == old
            restored.store.new_log(time_ns())
            restored.append(signed(n) for n in range(6, 9))
            query.options = options(restored)
            with pytest.raises(HistoryUnavailable, match="none has all of what was read"):
                query.run()
            page = b.store.log_read(old, STREAM, 0, 3, 10)
            rows = [
                ReplicaRow(row.seq, row.ingest_ns, row.id, read_kept(STREAM, row.signed).message)
                for row in page.rows
            ]
            restored.store.append_replica(old, STREAM, 0, rows, time_ns())
            query.run()
            assert query.got == list(range(9))


def test_a_damaged_row_is_read_from_another_server_or_told(a: LogServer, b: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    b.follow(a)
    damage(a, 4)
    query = Query(a, b)
    query.at = Offset({0: PartitionOffset(a.store.log, 0)})
    query.run()
    assert query.got == list(range(10))
    alone = Query(a)
    with pytest.raises(RowsDamaged, match=r"rows 5 of log .* are damaged at .*failOnDataLoss"):
        alone.run()
    assert alone.got == []
    alone.options = options(a, failOnDataLoss="false")
    alone.run()
    assert alone.got == [0, 1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("also_filtered", [False, True])
def test_each_of_two_servers_may_have_the_rows_that_are_damaged_at_the_other(
    a: LogServer, b: LogServer, also_filtered: bool
) -> None:
    a.append(signed(n) for n in range(10))
    b.follow(a)
    damage(a, 4)
    damage(b, 7)
    part = LogRange(partition=0, log=a.store.log, after=0, upto=10)
    wanted = RowFilter(from_ms=START_MS + 3) if also_filtered else EVERYTHING
    every = list(range(3 * also_filtered, 10))
    for fail in ("true", "false"):
        assert rows_of(options(a, b, failOnDataLoss=fail), [part], wanted) == every
    damage(a, 5)
    damage(b, 5)
    with pytest.raises(RowsDamaged, match=r"rows 6 of log .* are damaged at http.*, http"):
        rows_of(options(a, b, patienceSeconds="0"), [part], wanted)
    lenient = options(a, b, failOnDataLoss="false", patienceSeconds="0")
    every.remove(5)
    assert rows_of(lenient, [part], wanted) == every


def test_what_one_server_has_let_go_of_is_not_lost_because_of_damage_at_another(
    a: LogServer, b: LogServer
) -> None:
    for server in (a, b):
        server.append((signed(n) for n in range(8)), now_ns=time_ns() - 2 * HOUR_NS)
    a.append(signed(n) for n in range(8, 10))
    b.follow(a)
    expire(b)
    assert b.store.heads(STREAM, 0)[a.store.log].first == 9
    damage(a, 4)
    part = LogRange(partition=0, log=a.store.log, after=0, upto=10)
    for servers in ((a, b), (b, a)):
        with pytest.raises(RowsDamaged, match="rows 5 of log"):
            rows_of(options(*servers), [part])
        lenient = options(*servers, failOnDataLoss="false")
        assert rows_of(lenient, [part]) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_server_that_refuses_leases_is_told_of_once_and_read_all_the_same(
    a: LogServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its API key may read, and not lease."""
    a.append(signed(n) for n in range(3))
    asked = log_client.LogServer.ask

    def ask(self: log_client.LogServer, method: str, below: str, *more: Any, **query: Any) -> bytes:
        if method == "PUT":
            raise NotPermitted("key 1 may not lease")
        return asked(self, method, below, *more, **query)

    monkeypatch.setattr(log_client.LogServer, "ask", ask)
    many = log_client.LogServers(options(a), patience_s=0.0)
    for _ in range(3):
        assert many.everywhere("PUT", "/lease", partition=0) == 0
    assert len(many.heads()) == 1
    many.close()
    (line,) = caplog.messages
    assert "refuses PUT /lease: key 1 may not lease" in line


# Batches up to "latest"

AWAY = UnheardNode("0x" + "cd" * 20, START_MS + 120_000, START_MS + 60_000)
"""A storage node that died two minutes after the first message."""


def planned(batch: BatchReader) -> list[tuple[UUID, int]]:
    parts = [task.part for task in batch.partitions() if isinstance(task, RangePartition)]
    return [(part.log, part.upto) for part in parts]


def test_a_batch_that_may_lack_some_fails_and_names_who_has_them(a: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    a.unheard = [AWAY]
    latest = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    with pytest.raises(HistoryIncomplete, match=r"0xcdcd.*last compared at 2026.*failOnDataLoss"):
        planned(BatchReader(options(a, **latest)))
    assert "GET /streams/" in a.asked[0]
    assert a.asked[0].endswith("/log/heads?whole=true"), "before it looks how far it may go"
    batch = BatchReader(options(a, **latest, failOnDataLoss="false"))
    assert planned(batch) == [(a.store.log, 10)], "told to, it takes what there is"


def test_a_batch_of_what_was_compared_before_is_complete(a: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    a.unheard = [AWAY]
    batch = BatchReader(options(a, startingOffsets="earliest", endingOffsets="latest"))
    for to_ms, fails in ((AWAY.whole_until_ms, False), (AWAY.whole_until_ms + 1, True)):
        batch.pushed = Pushed(wanted=RowFilter(to_ms=to_ms))
        if fails:
            with pytest.raises(HistoryIncomplete):
                planned(batch)
        else:
            assert planned(batch) == [(a.store.log, 10)]


def test_a_batch_that_ends_at_a_time_or_an_offset_lacks_nothing(a: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    a.unheard = [AWAY]
    end = format_offset(Offset({0: PartitionOffset(a.store.log, 7)}))
    time.sleep(0.002)
    now = datetime.now(UTC).isoformat()
    for ending, upto in ((end, 7), (now, 10)):
        batch = BatchReader(options(a, startingOffsets="earliest", endingOffsets=ending))
        assert planned(batch) == [(a.store.log, upto)]


def test_a_batch_that_ends_at_a_time_to_come_ends_at_latest(a: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    a.unheard = [AWAY]
    until = {"startingOffsets": "earliest", "endingOffsets": "2100-01-01T00:00:00Z"}
    with pytest.raises(HistoryIncomplete):
        planned(BatchReader(options(a, **until)))
    a.unheard = []
    assert planned(BatchReader(options(a, **until))) == [(a.store.log, 10)]


def test_a_query_that_goes_on_is_not_held_up(a: LogServer) -> None:
    """What the others have comes into the log when they are back."""
    a.append(signed(n) for n in range(10))
    a.unheard = [AWAY]
    query = Query(a)
    query.run()
    assert query.got == list(range(10))


def test_the_log_that_is_read_must_be_the_whole(a: LogServer, b: LogServer) -> None:
    """Another server that has everything does not help a log that has not."""
    a.append(signed(n) for n in range(10))
    b.follow(a)
    batch = BatchReader(options(a, b, startingOffsets="earliest", endingOffsets="latest"))
    ((log, _),) = planned(batch)
    read, other = (a, b) if log == a.store.log else (b, a)
    other.unheard = [AWAY]
    assert planned(batch) == [(log, 10)]
    read.unheard, other.unheard = [AWAY], []
    with pytest.raises(HistoryIncomplete):
        planned(batch)


def test_a_server_that_does_not_keep_the_stream_does_not_say_that_it_is_empty(
    tmp_path: Path,
) -> None:
    def yes(stream: StreamId) -> bool:
        return True

    latest = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    with LogServer(tmp_path / "a", keeps=yes) as a, LogServer(tmp_path / "other") as other:
        assert planned(BatchReader(options(a, other, **latest))) == []
        a.unheard = [AWAY]
        with pytest.raises(HistoryIncomplete):
            planned(BatchReader(options(a, other, **latest)))
        alone = options(other, **latest, allowMissing="true")
        assert planned(BatchReader(alone)) == []


def test_a_log_whose_owner_was_not_there_when_others_said_that_they_have_all_may_lack_some(
    a: LogServer, b: LogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that has everything dies before it is read, and another one is back."""
    a.append(signed(n) for n in range(5))
    b.follow(a)
    b.append(signed(n) for n in range(3))
    a.append(signed(n) for n in range(5, 10))
    b.die()
    place_of = Follower.place_of

    def swapped(follower: Follower, point: Point) -> Offset:
        a.die()
        b.start()
        return place_of(follower, point)

    monkeypatch.setattr(Follower, "place_of", swapped)
    latest = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    with pytest.raises(HistoryIncomplete, match=f"owner of log {b.store.log} was not compared"):
        planned(BatchReader(options(a, b, **latest)))
