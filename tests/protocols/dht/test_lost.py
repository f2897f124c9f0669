"""Contacts that were lost are tried again, and forgotten one day."""

from __future__ import annotations

from random import Random

from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.maintenance import LOST_MAX, Lost
from shoal.protocols.dht.routing_table import RoutingTable
from tests.support.dht import ME, sharing


def test_what_was_lost_is_tried_again_until_it_is_found() -> None:
    first, second, third = sharing(0, 3)
    table = RoutingTable(ME, DhtConfig())
    lost = Lost([first], table, Random(1))
    assert lost.draw() == first, "a bootstrap contact that was never met"
    table.seen(first, 0)
    assert lost.draw() is None
    lost.add(second)
    lost.add(third)
    assert {lost.draw() for _ in range(20)} == {second, third}
    lost.found(second.node)
    table.seen(third, 0)
    assert lost.draw() is None


def test_the_oldest_are_forgotten() -> None:
    every = sharing(0, LOST_MAX + 1)
    lost = Lost([], RoutingTable(ME, DhtConfig()), Random(1))
    for one in every:
        lost.add(one)
    drawn = {lost.draw() for _ in range(2000)}
    assert drawn == set(every[1:])
