"""A read along the logs of storage nodes: whatever happens to them, every message comes once."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from random import Random

import pytest

from shoal.base.errors import HistoryUnavailable
from shoal.base.offsets import Offset, PartitionOffset
from shoal_spark.source.follower import Follower
from shoal_spark.source.offsets import EVERYTHING, LogRange, RowFilter
from shoal_spark.source.readers import read_range
from tests.support.log_server import BOB, START_MS, STREAM, LogServer, signed
from tests.support.source_reads import Query, options, rows_of


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
