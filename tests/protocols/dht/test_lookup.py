"""One search: it finds the nearest that live, over paths that share no node, and it ends."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.ids import Contact, NodeId
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, id_of_node
from shoal.protocols.dht.lookup import Lookup
from shoal.protocols.dht.routing_table import RoutingTable
from tests.support.dht import ME, contact
from tests.support.machines import peer_id

CONFIG = DhtConfig(k=4, prefix_bucket_max=1000, prefix_table_max=1000)
TARGET = DhtId(SPACE // 3)


def network(numbers: list[int]) -> dict[NodeId, RoutingTable]:
    """Nodes that all met each other, and kept whom Kademlia keeps."""
    tables = {peer_id(n): RoutingTable(peer_id(n), CONFIG) for n in numbers}
    for table in tables.values():
        for number in numbers:
            table.seen(contact(number), 0)
    return tables


def nearest(numbers: list[int], target: DhtId) -> list[Contact]:
    return sorted([contact(n) for n in numbers], key=lambda one: id_of_node(one.node) ^ target)


def walk(lookup: Lookup, tables: dict[NodeId, RoutingTable], rng: Random) -> None:
    """Answers come in any order; who is not in the tables does not answer."""
    under_way: list[Contact] = []
    while True:
        under_way += lookup.next()
        lookup.check_invariants()
        if lookup.finished():
            return
        assert under_way, "it waits for nothing"
        one = under_way.pop(rng.randrange(len(under_way)))
        if one.node in tables:
            near = tables[one.node].closest(lookup.target, CONFIG.k)
            lookup.answered(one.node, near)
        else:
            lookup.failed(one.node)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=60, unique=True),
    st.integers(0, SPACE - 1).map(DhtId),
    st.integers(0, 1000),
)
def test_the_nearest_are_found(numbers: list[int], target: DhtId, seed: int) -> None:
    tables = network(numbers)
    seeds = [contact(numbers[0])]
    lookup = Lookup(target, ME, seeds, CONFIG)
    walk(lookup, tables, Random(seed))
    assert lookup.closest(CONFIG.k) == nearest(numbers, target)[: CONFIG.k]
    assert lookup.distances() == sorted(lookup.distances())


def test_dead_nodes_do_not_count() -> None:
    rng = Random(3)
    numbers = list(range(1, 80))
    tables = network(numbers)
    dead = rng.sample(numbers[3:], 25)
    for number in dead:
        del tables[peer_id(number)]
    alive = [n for n in numbers if n not in dead]
    lookup = Lookup(TARGET, ME, [contact(n) for n in (1, 2, 3)], CONFIG)
    walk(lookup, tables, rng)
    assert lookup.failures > 0
    assert set(lookup.closest(2)) <= set(nearest(alive, TARGET)[:4])
    assert not set(lookup.closest(100)) & {contact(n) for n in dead}


def test_paths_ask_side_by_side_and_no_node_twice() -> None:
    lookup = Lookup(TARGET, ME, [contact(n) for n in range(1, 31)], CONFIG)
    asked = lookup.next()
    assert len(asked) == CONFIG.paths * CONFIG.alpha
    assert lookup.next() == []
    named = [contact(n) for n in range(1, 40)]
    for one in asked:
        lookup.answered(one.node, named)
    again = lookup.next()
    assert not {one.node for one in again} & {one.node for one in asked}
    lookup.check_invariants()


def test_names_of_nobody_discredit_who_gave_them() -> None:
    config = DhtConfig(k=20, paths=1, alpha=1)
    liar = contact(1)
    lookup = Lookup(TARGET, ME, [liar], config)
    lookup.next()
    lookup.answered(liar.node, [contact(n) for n in range(100, 120)])
    asked = 0
    while chosen := lookup.next():
        asked += 1
        lookup.failed(chosen[0].node)
    assert lookup.finished()
    assert asked == 6  # of 20
    assert lookup.closest(20) == [liar]


def test_liars_around_us_do_not_mislead_the_path_that_begins_far_away() -> None:
    numbers = list(range(1, 121))
    tables = network(numbers)
    ordered = nearest(numbers, TARGET)
    liars, honest = ordered[2:5], [*ordered[:2], *ordered[5:]]

    def ask(far: list[Contact]) -> list[Contact]:
        lookup = Lookup(TARGET, ME, liars, CONFIG, far=far)
        while chosen := lookup.next():
            for one in chosen:
                near = tables[one.node].closest(TARGET, CONFIG.k)
                lookup.answered(one.node, liars if one in liars else near)
        return lookup.closest(2)

    assert ask([]) == liars[:2]
    assert ask(honest[-5:]) == ordered[:2]


def test_it_is_bounded_in_hops_and_questions() -> None:
    config = DhtConfig(k=20, paths=1, alpha=1, hops_max=5)
    lookup = Lookup(TARGET, ME, [contact(1)], config)
    number = 1
    while chosen := lookup.next():
        number += 1
        lookup.answered(chosen[0].node, [contact(number)])
    assert lookup.asked == 5
    wide = Lookup(TARGET, ME, [contact(n) for n in range(1, 100)], DhtConfig(asked_max=7))
    while chosen := wide.next():
        for one in chosen:
            wide.failed(one.node)
    assert wide.asked == 7
    assert wide.finished()


def test_a_search_without_anybody_is_over_at_once() -> None:
    lookup = Lookup(TARGET, ME, [contact(0), Contact(peer_id(4))], CONFIG)
    assert lookup.next() == []
    assert lookup.finished()
    assert lookup.reach == 0


def test_hops_count_the_nodes_on_the_way() -> None:
    lookup = Lookup(TARGET, ME, [contact(1)], CONFIG)
    lookup.next()
    lookup.answered(peer_id(1), [contact(2)])
    lookup.next()
    lookup.answered(peer_id(2), [contact(3)])
    assert [lookup.hops(peer_id(n)) for n in (1, 2, 3)] == [1, 2, 3]
