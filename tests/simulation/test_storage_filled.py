"""Storage nodes that were all away: what neighbours and publishers have comes afterwards."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from shoal.protocols.streams.config import NodeConfig
from tests.support.open_storage import STORAGE, OpenStorage

RECENT_S = NodeConfig().recent_ns / 1e9


def gaps(net: OpenStorage, number: int) -> int:
    machine: Any = net.storage[number].machines[STORAGE]
    return int(machine.gaps.count)


def publishing(net: OpenStorage, from_s: int, to_s: int) -> None:
    """A message a second, from a publisher with one subscriber."""
    publisher, subscriber = net.publishers
    for node in (publisher, subscriber):
        node.start()
        net.join(node, 0)
    for at_s in range(from_s, to_s):
        net.simulation.at_s(at_s, partial(net.publish, publisher, 0))


def test_what_was_published_while_all_were_away_is_filled_from_neighbours(
    tmp_path: Path, seed: int
) -> None:
    with OpenStorage(seed, tmp_path, storage=2) as net:
        sim = net.simulation
        net.start_storage(0, 1)
        publishing(net, 10, 60)
        for node in net.storage:
            sim.at_s(20, node.crash)
        sim.at_s(50, partial(net.start_storage, 0, 1))
        sim.run_until_s(45)
        assert len(set(net.signed) - net.held(0)) > 20
        sim.run_until_s(140)
        assert len(net.signed) == 50
        assert net.held(0) == net.held(1) == set(net.signed)
        assert gaps(net, 0) == gaps(net, 1) == 0


def test_what_nobody_has_any_more_is_a_gap_and_counted(tmp_path: Path, seed: int) -> None:
    with OpenStorage(seed, tmp_path, storage=1) as net:
        sim = net.simulation
        net.start_storage(0)
        publishing(net, 10, 160)
        sim.at_s(20, net.storage[0].crash)
        back_s = 30 + 2 * RECENT_S
        sim.at_s(back_s, partial(net.start_storage, 0))
        sim.run_until_s(back_s + 20)
        assert gaps(net, 0) == 0  # it may still come
        sim.run_until_s(back_s + 100)
        lacking = set(net.signed) - net.held(0)
        assert 40 < len(lacking) < 80  # all but the last minute
        assert gaps(net, 0) == 1
        # The publisher had them on its disk, and hands them in: the gap is none any more.
        for id in sorted(lacking, key=lambda id: (id.timestamp_ms, id.sequence)):
            net.hand_in(net.publishers[0], id)
            sim.run_for(0.2)
        sim.run_for(100)
        assert net.held(0) == set(net.signed)
        assert gaps(net, 0) == 0
