"""Storage nodes that crash, lie and fall behind, on real stores under virtual time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from shoal.storage.message_store.layout import place_of, tail_of
from shoal.storage.message_store.store import Store
from tests.support.storage_network import STREAM, StorageNetwork, whole_log

PARTITIONS = (0, 1)


def same_everywhere(net: StorageNetwork) -> None:
    """All stores hold the same messages, and each other's logs, row by row."""
    published = set(net.published)
    for store in net.stores:
        store.check_invariants()
        assert net.ids(store, PARTITIONS) == published
    for partition in PARTITIONS:
        for owner in net.stores:
            own = whole_log(owner, owner.log, partition)
            assert [row.seq for row in own] == list(range(1, len(own) + 1))
            for other in net.stores:
                if other is not owner:
                    assert whole_log(other, owner.log, partition) == own


def test_a_storage_node_that_was_away_gets_everything_back(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    with StorageNetwork(seed, tmp_path) as net:
        net.start()
        sim = net.simulation
        for number in range(600):
            at_s = 5 + number * 0.05
            sim.at_s(at_s, partial(net.publish, number, number % 2, rng.randrange(1, 3_000)))
        victim = net.storage[1]
        sim.at_s(12, victim.crash)
        sim.at_s(26, lambda: net.start_storage(victim))
        sim.run_until_s(25)
        lacking = set(net.published) - net.ids(net.stores[1], PARTITIONS)
        assert len(lacking) > 200
        sim.run_until_s(60)
        sim.check_quiet()
        assert len(net.published) == 600
        same_everywhere(net)


def test_three_storage_nodes_that_crash_in_turn_end_up_the_same(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    with StorageNetwork(seed, tmp_path, storage=3) as net:
        net.start()
        sim = net.simulation
        for number in range(500):
            at_s = 5 + number * 0.06
            sim.at_s(at_s, partial(net.publish, number, number % 2, rng.randrange(1, 500)))
        for turn, begin_s in enumerate((8.0, 14.0, 20.0, 26.0, 30.0)):
            node = net.storage[turn % 3]
            crash_s = begin_s + rng.random()
            sim.at_s(crash_s, node.crash)
            sim.at_s(crash_s + rng.uniform(0.5, 4), partial(net.start_storage, node))
        sim.run_until_s(120)
        sim.check_quiet()
        same_everywhere(net)


def test_a_new_storage_node_is_filled_by_the_others(tmp_path: Path, seed: int) -> None:
    with StorageNetwork(seed, tmp_path) as net:
        newcomer = net.storage.pop()
        net.start()
        sim = net.simulation
        for number in range(1500):
            sim.at_s(5 + number * 0.01, partial(net.publish, number, number % 2, 400))
        sim.run_until_s(100)  # long past what neighbours remember for repairs
        net.start_storage(newcomer)
        sim.run_until_s(130)
        same_everywhere(net)
        assert newcomer.machines[2].replicated == 1500  # type: ignore[attr-defined]
        assert net.stores[0].heads(STREAM, 0)[net.stores[1].log].last == 750


def damage(store: Store, seqs: list[int], partition: int = 0) -> None:
    """A byte of each of these messages is another one."""
    rows = [row for row in whole_log(store, store.log, partition) if row.seq in seqs]
    kept = store._database.tables.messages

    def work(txn: Any) -> None:
        for row in rows:
            key = place_of(0, partition) + tail_of(row.id)
            value = txn.get(key, db=kept)
            txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=kept)

    store._database.write(work)


def test_damaged_rows_are_fetched_from_another_storage_node(tmp_path: Path, seed: int) -> None:
    with StorageNetwork(seed, tmp_path) as net:
        net.start()
        sim = net.simulation
        for number in range(300):
            sim.at_s(5 + number * 0.02, partial(net.publish, number, number % 2, 400))
        sim.run_until_s(30)
        hurt = net.stores[0]
        damage(hurt, [5, 6, 70])
        assert len(net.ids(hurt, PARTITIONS)) == 297, "reading notices"
        sim.run_until_s(45)
        assert (hurt.damage.mended, hurt.damage.problem) == (3, None)
        sim.check_quiet()
        same_everywhere(net)


def test_a_follower_does_not_stop_at_rows_that_are_damaged(tmp_path: Path, seed: int) -> None:
    """The newcomer has no other source: what is left of the log comes all the same."""
    with StorageNetwork(seed, tmp_path) as net:
        newcomer = net.storage.pop()
        net.start()
        sim = net.simulation
        for number in range(300):
            sim.at_s(5 + number * 0.02, partial(net.publish, number, number % 2, 400))
        sim.run_until_s(100)
        hurt, other = net.stores
        bad = [row.id for row in whole_log(hurt, hurt.log) if row.seq in (5, 70)]
        damage(hurt, [5, 70])
        net.start_storage(newcomer)
        sim.run_until_s(130)
        assert net.ids(other, PARTITIONS) == set(net.published) - set(bad)
        page = other.log_read(hurt.log, STREAM, 0, 0, 1000)
        assert page.through == page.head.last == 150
        assert [lost.seq for lost in page.damaged] == [5, 70]
        assert other.damage.problem is None, "it is the other one's damage"
        other.check_invariants()
