"""Storage nodes of "*" keep every stream that somebody is in, though nobody asks them to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.open_storage import OpenStorage, stream_of

COUNT = 20


def test_what_is_published_is_kept_though_nobody_says_durable(tmp_path: Path, seed: int) -> None:
    with OpenStorage(seed, tmp_path, storage=2) as net:
        sim, publisher = net.simulation, net.publishers[0]
        net.start_storage(0, 1)
        publisher.start()
        sim.run_until_s(3)
        for number in range(COUNT):
            net.publish(publisher, number)  # at once, before storage can have come
        sim.run_until_s(20)
        assert len(net.signed) == COUNT
        assert net.held(0) == net.held(1) == set(net.signed)


def test_a_tracker_that_restarts_tells_of_what_began_while_storage_was_away(
    tmp_path: Path, seed: int
) -> None:
    with OpenStorage(seed, tmp_path, storage=1) as net:
        sim, (publisher, other) = net.simulation, net.publishers
        publisher.start()
        other.start()
        sim.run_until_s(3)
        for number in range(COUNT):
            net.join(other, number)
            net.publish(publisher, number)
        sim.run_until_s(10)
        (tracker,) = net.trackers
        tracker.crash()
        sim.run_until_s(12)
        net.start_storage(0)
        tracker.start()
        sim.run_until_s(30)
        assert net.held(0) == set(net.signed)


def test_a_tracker_that_takes_over_tells(tmp_path: Path, seed: int) -> None:
    with OpenStorage(seed, tmp_path, storage=1, trackers=2) as net:
        sim, (publisher, other) = net.simulation, net.publishers
        publisher.start()
        other.start()
        sim.run_until_s(3)
        for number in range(COUNT):
            net.join(other, number)
            net.publish(publisher, number)
        sim.run_until_s(10)
        net.start_storage(0)
        net.trackers[0].crash()
        sim.run_until_s(40)
        assert net.held(0) == set(net.signed)


@pytest.mark.parametrize("away_s", [1, 30])
@pytest.mark.parametrize("in_use", [False, True])
def test_a_storage_node_that_forgot_a_stream_is_told_again(
    away_s: float, in_use: bool, tmp_path: Path, seed: int
) -> None:
    """It had joined, lost its disk, and comes back; of those who are in the stream none joins."""
    with OpenStorage(seed, tmp_path, storage=1) as net:
        sim, (publisher, other) = net.simulation, net.publishers
        publisher.start()
        other.start()
        net.start_storage(0)
        sim.run_until_s(3)
        for number in range(COUNT):
            net.join(other, number)
            net.join(publisher, number)
        if in_use:
            net.publish(publisher, COUNT)  # this one it finds on its disk
        sim.run_until_s(20)
        storage = net.storage[0]
        assert all(net.keeps(storage, stream_of(number)) for number in range(COUNT))
        storage.crash()
        sim.run_until_s(20 + away_s)
        net.start_storage(0)
        sim.run_until_s(60 + away_s)
        for number in range(COUNT):
            net.publish(publisher, number)
        sim.run_until_s(90 + away_s)
        assert net.held(0) == set(net.signed)
