"""Estimates: distances over half the round trips, faster where delays vary."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import dijkstra

from shoal.base.ids import NodeId
from shoal.protocols.streams.messages import Rtt
from shoal.protocols.streams.topology.policy import Pair, pair_of
from shoal.protocols.streams.tracker import delay_estimate as module
from shoal.protocols.streams.tracker.delay_estimate import Estimate, estimate_delays
from shoal.protocols.streams.tracker.stream_record import LinkDelay
from tests.support.streams import ALICE, BOB, CAROL, node

NODES = [node(number) for number in range(100, 108)]


def delay(rtt_us: int, deviation_us: int = 0) -> LinkDelay:
    return LinkDelay(Rtt(ALICE, rtt_us, deviation_us))


def shown(node: NodeId) -> str:
    return "0x" + node.hex()


# What both ends say


def test_both_ends_count_and_the_newest_word_of_each() -> None:
    pair = pair_of(ALICE, BOB)
    known = LinkDelay().told(pair, ALICE, Rtt(BOB, 1000, 30))
    assert (known.rtt_us, known.one_way_ms) == (1000, 0.5)
    assert known.deviation_ms == pytest.approx(0.03 / math.sqrt(2))
    known = known.told(pair, BOB, Rtt(ALICE, 2000, 40)).told(pair, ALICE, Rtt(BOB, 1200, 30))
    assert (known.rtt_us, known.one_way_ms) == (1600, 0.8)
    assert known.deviation_ms == pytest.approx(math.sqrt((900 + 1600) / 2 / 2) / 1000)


# Delays that do not vary


@given(st.data())
def test_without_variation_it_is_the_shortest_paths(data: st.DataObject) -> None:
    nodes = NODES[: data.draw(st.integers(1, len(NODES)))]
    every = [pair_of(a, b) for a, b in combinations(nodes, 2)]
    links = data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    delays = {
        pair: delay(data.draw(st.integers(0, 10**6)))
        for pair in links
        if data.draw(st.booleans(), label="measured")
    }
    handling_us = {n: data.draw(st.integers(0, 1000)) for n in nodes}
    found = estimate_delays(nodes, links, delays, handling_us)
    far = shortest_ms(nodes, delays, handling_us)
    assert (found.nodes, found.links, found.measured_links) == (
        len(nodes), len(links), len(delays)
    )  # fmt: skip
    reached = [ms for ms in far.values() if math.isfinite(ms)]
    assert found.reachable_pairs == len(reached)
    if not reached:
        assert (found.min_ms, found.mean_ms, found.max_ms) == (None, None, None)
        return
    assert found.min_ms == pytest.approx(min(reached))
    assert found.max_ms == pytest.approx(max(reached))
    assert found.mean_ms == pytest.approx(sum(reached) / len(reached))
    for n in nodes:
        own = [ms for (a, _), ms in far.items() if a == n and math.isfinite(ms)]
        assert found.per_node_ms[shown(n)] == (pytest.approx(np.mean(own)) if own else None)


def shortest_ms(
    nodes: list[NodeId], delays: dict[Pair, LinkDelay], handling_us: dict[NodeId, int]
) -> dict[tuple[NodeId, NodeId], float]:
    """Floyd and Warshall."""
    far = {(a, b): math.inf for a, b in product(nodes, repeat=2) if a != b}
    for pair, known in delays.items():
        one_way_ms = max(known.rtt_us, 1) / 2000
        far[pair.a, pair.b] = one_way_ms + handling_us[pair.b] / 1000
        far[pair.b, pair.a] = one_way_ms + handling_us[pair.a] / 1000
        if known.rtt_us == 0:  # a weight of zero is no link: the grain counts once, not on top
            far[pair.a, pair.b] = max(handling_us[pair.b] / 1000, module.LEAST_MS)
            far[pair.b, pair.a] = max(handling_us[pair.a] / 1000, module.LEAST_MS)
    for middle, a, b in product(nodes, repeat=3):
        if len({middle, a, b}) == 3:
            far[a, b] = min(far[a, b], far[a, middle] + far[middle, b])
    return far


# Delays that vary


def two_ways(deviation_us: int) -> Estimate:
    """From one node to another over two middles, each way of the same mean."""
    ends, middles = (ALICE, BOB), NODES[:2]
    links = [pair_of(end, middle) for end, middle in product(ends, middles)]
    return estimate_delays(
        [*ends, *middles], links, {p: delay(20_000, deviation_us) for p in links}
    )


def test_one_way_is_as_long_as_its_mean_however_it_varies() -> None:
    links = [pair_of(ALICE, BOB), pair_of(BOB, CAROL)]
    found = estimate_delays([ALICE, BOB, CAROL], links, {p: delay(20_000, 2000) for p in links})
    assert found.max_ms == pytest.approx(20.0, rel=0.1)


def test_several_ways_are_faster_together_than_each_in_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DRAWS_MAX", 3000)
    assert two_ways(0).max_ms == pytest.approx(20.0)
    spread_ms = 2.0  # of one message: a round trip of two such has the root of two as much
    found = two_ways(round(1000 * spread_ms * math.sqrt(2)))
    # Two sums of two shifted exponentials each; by simulation of another kind.
    draws = np.random.default_rng(5).exponential(spread_ms, (200_000, 2, 2))
    expected_ms = 20.0 - 2 * spread_ms + draws.sum(axis=2).min(axis=1).mean()
    assert expected_ms < 19.0
    assert found.max_ms == pytest.approx(expected_ms, rel=0.01)


def test_the_same_measurements_give_the_same_estimate() -> None:
    assert two_ways(3000) == two_ways(3000)


def test_large_overlays_take_fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def counted(*args: Any, **settings: Any) -> Any:
        taken.append(1)
        return dijkstra(*args, **settings)

    monkeypatch.setattr(module, "dijkstra", counted)
    two_ways(0)
    assert len(taken) == 1
    taken.clear()
    two_ways(100)
    assert len(taken) == module.DRAWS_MAX
    taken.clear()
    monkeypatch.setattr(module, "PAIRS_MAX", 5 * 4 * 4)
    two_ways(100)
    assert len(taken) == 5
    taken.clear()
    monkeypatch.setattr(module, "PAIRS_MAX", 0)
    two_ways(100)
    assert len(taken) == module.DRAWS_MIN
