"""Copies that are still missing when a durable message is acknowledged are made afterwards."""

from __future__ import annotations

from pathlib import Path

from tests.support.open_storage import OpenStorage

COUNT = 20


def test_streams_that_one_storage_node_alone_was_told_of_come_to_all(
    tmp_path: Path, seed: int
) -> None:
    with OpenStorage(seed, tmp_path) as net:
        sim, publisher = net.simulation, net.publishers[0]
        net.start_storage(0)
        publisher.start()
        sim.run_until_s(3)
        for number in range(COUNT):
            net.publish(publisher, number, durable=True)
        sim.run_until_s(15)
        assert len(net.acknowledged) == COUNT
        counts = net.copies(0)
        assert counts.single == 0 or counts.uncompared  # it has not met the others yet
        publisher.crash()
        net.start_storage(1, 2)
        sim.run_until_s(75)
        for number in range(3):
            assert net.held(number) == set(net.acknowledged)
            counts = net.copies(number)
            assert (counts.single, counts.missing, counts.uncompared) == (0, 0, 0)


def test_the_count_of_copies_says_what_one_node_alone_has(tmp_path: Path, seed: int) -> None:
    with OpenStorage(seed, tmp_path, storage=2) as net:
        sim, publisher = net.simulation, net.publishers[0]
        net.start_storage(0, 1)
        publisher.start()
        sim.run_until_s(3)
        net.publish(publisher, 0, durable=True)
        sim.run_until_s(20)
        assert net.copies(0).single == net.copies(1).single == 0
        net.storage[1].crash()
        sim.run_until_s(30)
        for _ in range(5):
            net.publish(publisher, 0, durable=True)
        sim.run_until_s(40)
        assert len(net.acknowledged) == 6
        assert (net.copies(0).single, net.copies(0).missing) == (5, 5)
        net.start_storage(1)
        sim.run_until_s(60)
        assert (net.copies(0).single, net.copies(0).missing) == (0, 0)
        assert net.held(1) == net.held(0) == set(net.acknowledged)


def test_a_node_that_comes_back_empty_has_no_copies(tmp_path: Path, seed: int) -> None:
    """What it said before it lost its disk counts no more."""
    with OpenStorage(seed, tmp_path, storage=2) as net:
        sim, publisher = net.simulation, net.publishers[0]
        net.start_storage(0, 1)
        publisher.start()
        sim.run_until_s(3)
        for number in range(5):
            net.publish(publisher, number, durable=True)
        sim.run_until_s(20)
        assert net.held(0) == net.held(1) == set(net.acknowledged)
        net.storage[1].crash()
        sim.run_until_s(30)
        net.empty(1, tmp_path / "new")
        net.start_storage(1)
        link_up_s = 30.0
        while net.copies(0).uncompared == 0 and link_up_s < 45:
            link_up_s += 0.05
            sim.run_until_s(link_up_s)
        assert net.copies(0).uncompared == 5  # it is known at once that nothing is known
        sim.run_until_s(90)
        assert net.held(1) == set(net.acknowledged)
        assert (net.copies(0).single, net.copies(0).uncompared) == (0, 0)
