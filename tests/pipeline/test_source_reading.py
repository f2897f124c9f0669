"""A read along the logs of storage nodes: whatever happens to them, every message comes once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from random import Random
from time import time_ns
from uuid import UUID

import pytest
from msgspec.structs import replace

from shoal.base.errors import HistoryUnavailable, NotFound, OffsetExpired, UsageError
from shoal.base.ids import StreamId
from shoal.base.offsets import Offset, PartitionOffset, format_offset
from shoal.base.units import S_NS
from shoal.pipeline.sources import leases
from shoal.pipeline.sources.batch import BatchReader, RangePartition
from shoal.pipeline.sources.following import Follower
from shoal.pipeline.sources.leases import LeaseKeeper
from shoal.pipeline.sources.options import SourceOptions, parse_options
from shoal.pipeline.sources.planning import Target
from shoal.pipeline.sources.ranges import EVERYTHING, LogRange, RowFilter, ranges_between, ranges_to
from shoal.pipeline.sources.reading import read_range
from tests.support.log_server import (
    BOB,
    START_MS,
    STREAM,
    LogServer,
    numbers,
    servers_of,
    signed,
)
from tests.transport.recorder import until

HOUR_NS = 3_600 * S_NS


@pytest.fixture
def a(tmp_path: Path) -> Iterator[LogServer]:
    with LogServer(tmp_path / "a") as server:
        yield server


@pytest.fixture
def b(tmp_path: Path) -> Iterator[LogServer]:
    with LogServer(tmp_path / "b") as server:
        yield server


def options(*servers: LogServer, **more: str) -> SourceOptions:
    given = {"servers": servers_of(*servers), "stream": STREAM, "patienceSeconds": "0", **more}
    return parse_options(given, streaming="endingOffsets" not in more)


def rows_of(
    chosen: SourceOptions, parts: list[LogRange], wanted: RowFilter = EVERYTHING
) -> list[int]:
    found = []
    for part in parts:
        for batch in read_range(chosen, part, wanted):
            assert batch.column("error").null_count == batch.num_rows
            found += batch.column("value").to_pylist()
    return numbers(found)


class Query:
    """What Spark does with the source, batch by batch."""

    def __init__(self, *servers: LogServer, **more: str) -> None:
        self.options = options(*servers, **more)
        self.at = Offset()
        self.got: list[int] = []

    def run(self, limit: int | None = None, target: Target | None = None) -> None:
        """Until there is nothing new."""
        follower = Follower(self.options)
        try:
            while (ahead := follower.ahead(self.at, limit, target)).offset != self.at:
                parts = ranges_between(self.at, ahead.offset)
                got = rows_of(self.options, parts)
                assert limit is None or len(got) <= limit
                self.got += got
                self.at = ahead.offset
        finally:
            follower.close()


def test_everything_comes_once_and_late_messages_too(a: LogServer) -> None:
    a.append(signed(n, partition=n % 3) for n in range(100, 400))
    query = Query(a)
    query.run(limit=70)
    assert sorted(query.got) == list(range(100, 400))
    a.append(signed(n) for n in range(5))  # stamped before all that was read
    query.run()
    assert sorted(query.got) == [*range(5), *range(100, 400)]


def test_a_server_that_dies_in_the_middle_of_a_range_is_replaced(
    a: LogServer, b: LogServer
) -> None:
    padding = b" " * 300_000
    a.append(signed(n, content=b'{"number":%d%b}' % (n, padding)) for n in range(50))
    b.append(signed(n) for n in range(1000, 1010))  # its own log is another one
    b.follow(a)
    chosen = options(a, b)
    part = LogRange(partition=0, log=a.store.log, after=0, upto=50)
    a.pages_left = 1
    sizes = [batch.num_rows for batch in read_range(chosen, part, EVERYTHING)]
    assert len(sizes) > 2
    assert sum(sizes) == 50
    assert any("log?" in asked for asked in b.asked), "the rest is from the other one"


def test_a_log_that_is_gone_is_gone_on_with_in_another(a: LogServer, b: LogServer) -> None:
    a.append(signed(n) for n in range(0, 100))
    b.append(signed(n) for n in range(50, 150))  # what it heard itself, in its own order
    b.follow(a)
    a.follow(b)
    query = Query(a, b)
    query.run()
    assert query.got == list(range(150))
    log = query.at.partitions[0].log
    first, second = (a, b) if log == a.store.log else (b, a)
    first.die()
    second.append(signed(n) for n in range(150, 160))
    query.run(limit=4)
    assert query.got == list(range(160))
    place = query.at.partitions[0]
    assert (place.log, place.minus) == (second.store.log, {first.store.log: 150})
    first.start()
    second.die()
    first.append([signed(160)])
    with pytest.raises(HistoryUnavailable, match=r"none has all of what was read.*minReplicas"):
        query.run()
    first.follow(second)
    query.run()
    assert query.got == list(range(161))
    assert query.at.partitions[0].log == first.store.log, "back, and nothing came twice"


def test_where_rows_are_unknown_they_come_twice_only_if_one_says_so(
    a: LogServer, b: LogServer
) -> None:
    a.append(signed(n) for n in range(10))
    b.append(signed(n) for n in range(7, 10))
    b.follow(a, upto=6)
    query = Query(a, b)
    query.run()
    assert query.at.partitions[0].log == a.store.log
    a.die()
    with pytest.raises(HistoryUnavailable, match=f"{a.store.log} up to 10"):
        query.run()
    query.options = options(a, b, failOnDataLoss="false")
    query.run()
    assert sorted(query.got) == sorted([*range(10), *range(7, 10)])


def follow_each_other(servers: list[LogServer]) -> None:
    """Until all have all."""
    for _ in range(2):
        for one, other in permutations(servers, 2):
            one.follow(other)


def test_kills_at_random_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    """Three servers hear messages in different orders, copy each other now and then, and die one
    at a time; what two of them have is read."""
    rng, sent = Random(seed), 0
    with ExitStack() as stack:
        servers = [
            stack.enter_context(LogServer(tmp_path / name, keeps=lambda _: True)) for name in "abc"
        ]
        query = Query(*servers, minReplicas="2")
        dead: LogServer | None = None
        for _ in range(60):
            alive = [server for server in servers if server is not dead]
            match rng.randrange(5):
                case 0 | 1:
                    batch = [signed(n, partition=n % 2) for n in range(sent, sent + 9)]
                    sent += 9
                    for server in alive:
                        heard = [message for message in batch if rng.random() < 0.8]
                        rng.shuffle(heard)
                        server.append(heard)
                    alive[0].append(batch)
                case 2:
                    one, other = rng.sample(alive, 2)
                    one.follow(other)
                case 3:
                    query.run(limit=rng.choice([None, 5, 20]))
                case 4:
                    if dead is not None:
                        dead.start()
                        dead = None
                    else:
                        dead = rng.choice(servers)
                        # What two have is read, so two must have it while one is away.
                        follow_each_other(servers)
                        dead.die()
        if dead is not None:
            dead.start()
        follow_each_other(servers)
        query.run()
        assert sorted(query.got) == list(range(sent))


def test_available_now_ends_with_what_there_was(a: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    follower = Follower(options(a))
    target = follower.pinned()
    follower.close()
    a.append(signed(n, partition=n % 2) for n in range(10, 20))
    query = Query(a)
    query.run(limit=3, target=target)
    assert query.got == list(range(10))
    query.run()
    assert sorted(query.got) == list(range(20))


def test_a_time_is_one_of_ingest(a: LogServer) -> None:
    for number in range(10):
        a.append([signed(9 - number)], now_ns=(START_MS + 1000 * number) * 1_000_000)
    follower = Follower(options(a))
    when = datetime.fromtimestamp(START_MS / 1000 + 3, UTC)
    begin = follower.place_of(when)
    assert begin == Offset({0: PartitionOffset(a.store.log, 3)})
    later = datetime.fromtimestamp(START_MS / 1000 + 6.5, UTC)
    assert rows_of(options(a), follower.ranges(begin, later)) == [3, 4, 5, 6]
    assert follower.place_of("latest") == Offset({0: PartitionOffset(a.store.log, 10)})
    assert follower.place_of(datetime(2030, 1, 1, tzinfo=UTC)) == follower.place_of("latest")
    follower.close()


def test_a_copy_that_lags_does_not_say_where_a_time_is(a: LogServer, b: LogServer) -> None:
    for number in range(10):
        a.append([signed(number)], now_ns=(START_MS + 1000 * number) * 1_000_000)
    b.follow(a, upto=4)
    follower = Follower(options(b, a))
    when = datetime.fromtimestamp(START_MS / 1000 + 7, UTC)
    parts = follower.ranges(follower.place_of("earliest"), when)
    assert rows_of(options(b, a), parts) == list(range(7))
    follower.close()


def test_nor_does_a_copy_that_begins_later(a: LogServer, b: LogServer) -> None:
    for number in range(10):
        a.append([signed(number)], now_ns=(START_MS + 1000 * number) * 1_000_000)
    b.follow(a, upto=2)
    b.store.advance_replica(a.store.log, STREAM, 0, 6)
    b.follow(a)
    follower = Follower(options(b, a))
    when = datetime.fromtimestamp(START_MS / 1000 + 3, UTC)
    parts = follower.ranges(Offset({0: PartitionOffset(a.store.log, 0)}), when)
    assert rows_of(options(b, a), parts) == [0, 1, 2]
    follower.close()


def test_latest_is_not_everything_where_no_other_server_has_it_yet(
    a: LogServer, b: LogServer
) -> None:
    b.append([signed(0, partition=1)])
    a.append(signed(n) for n in range(5))
    query = Query(a, b, minReplicas="2")
    follower = Follower(query.options)
    query.at = follower.place_of("latest")
    follower.close()
    a.append(signed(n) for n in range(5, 8))
    b.follow(a)
    query.run()
    assert query.got == [5, 6, 7]


def test_a_batch_goes_on_along_another_log_too(a: LogServer, b: LogServer) -> None:
    a.append(signed(n) for n in range(10))
    b.follow(a)
    b.append(signed(n) for n in range(10, 15))
    a.die()
    follower = Follower(options(a, b))
    parts = follower.ranges(Offset({0: PartitionOffset(a.store.log, 4)}), "latest")
    assert rows_of(options(a, b), parts) == list(range(4, 15))
    given = Offset({0: PartitionOffset(b.store.log, 12)})
    parts = follower.ranges(Offset({0: PartitionOffset(a.store.log, 4)}), given)
    assert rows_of(options(a, b), parts) == list(range(4, 12))
    follower.close()


def test_filters_reach_the_server(a: LogServer) -> None:
    a.append(signed(n, key=BOB) for n in range(8))
    a.append(signed(n) for n in range(8, 16))
    part = LogRange(partition=0, log=a.store.log, after=0, upto=16)
    bob = RowFilter(publisher=f"0x{BOB.address.hex()}", from_ms=START_MS + 4)
    assert rows_of(options(a), [part], bob) == [4, 5, 6, 7]


# What cannot be read


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
    monkeypatch.setattr(leases, "RENEW_S", 0.05)
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
