"""Storage nodes that crash, lie and fall behind, on real stores under virtual time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

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
