"""The size of the network, and places where too many nodes are."""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.ids import Contact
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import SPACE, DhtId, common_bits
from shoal.protocols.dht.routing_table import RoutingTable
from shoal.protocols.dht.survey import Density
from tests.support.dht import ME, contact

CONFIG = DhtConfig()


def measuring(*peers: Contact) -> Density:
    """With a table of these nodes."""
    table = RoutingTable(ME, CONFIG)
    for peer in peers:
        table.seen(peer, 0)
    return Density(table, CONFIG)


def distances(nodes: int, rng: Random) -> list[int]:
    return sorted([rng.randrange(SPACE) for _ in range(nodes)])[:30]


@pytest.mark.parametrize("nodes", [30, 1000, 20_000])
def test_the_size_is_estimated(nodes: int) -> None:
    rng, density = Random(nodes), measuring()
    assert density.nodes is None
    for _ in range(CONFIG.density_samples):
        density.measured(distances(nodes, rng))
    assert density.nodes == pytest.approx(nodes, rel=0.3)


def test_chance_seldom_looks_like_an_attack_and_an_attack_seldom_like_chance() -> None:
    rng, density = Random(5), measuring()
    for _ in range(CONFIG.density_samples):
        density.measured(distances(1000, rng))
    alarms = sum(density.crowded(distances(1000, rng)) for _ in range(500))
    assert alarms < 25
    for _ in range(20):
        # A hundred of a thousand, each the best of 256 keys.
        near = [min([rng.randrange(SPACE) for _ in range(256)]) for _ in range(100)]
        assert density.crowded(sorted(near + distances(900, rng)))


def test_nothing_is_crowded_as_long_as_nothing_is_known_or_everybody_holds_everything() -> None:
    density = measuring()
    assert not density.crowded([1] * 20)
    density.measured([5] * 19)
    assert density.nodes is None
    density.measured(distances(1000, Random(1)))
    assert not density.crowded([1] * 19)


def test_one_crowded_sample_does_not_move_the_estimate() -> None:
    rng, density = Random(2), measuring()
    for _ in range(7):
        density.measured(distances(1000, rng))
    before = density.nodes
    for _ in range(3):
        density.measured(list(range(1, 31)))
    assert before is not None
    assert density.nodes is not None
    assert density.nodes < 2 * before


def test_places_beside_hold_about_as_many_nodes_as_replicas_are_wanted() -> None:
    rng, density = Random(3), measuring()
    for _ in range(CONFIG.density_samples):
        density.measured(distances(1000, rng))
    here = DhtId(rng.randrange(SPACE))
    inner, outer = [common_bits(here, place) for place in density.beside(here, rng)]
    assert 10 <= 1000 / 2 ** (inner + 1) < 20 * 1.5
    assert outer == inner - 1


def test_our_neighbours_tell_when_the_network_has_grown() -> None:
    rng, density = Random(4), measuring(*[contact(n) for n in range(1, 1001)])
    assert density.nodes == pytest.approx(1000, rel=0.6)
    assert density.outgrown, "nothing was measured"
    for _ in range(5):
        density.measured(distances(100, rng))
    assert density.nodes == pytest.approx(100, rel=0.4)
    assert density.outgrown
    density.forget()
    for _ in range(5):
        density.measured(distances(1000, rng))
    assert not density.outgrown
    assert not measuring(contact(1)).outgrown
