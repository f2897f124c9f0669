"""Places in the DHT."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.dht.key_space import (
    ID_BITS,
    SPACE,
    DhtId,
    common_bits,
    id_of_key,
    id_of_node,
    id_of_wire,
    sibling,
    wire_of_id,
)
from tests.support.machines import peer_id

places = st.integers(0, SPACE - 1).map(DhtId)


def test_places_are_fixed_for_ever() -> None:
    # Another hash would send every node of an older version elsewhere.
    assert wire_of_id(id_of_node(peer_id(1))).hex().startswith("e0173eb2cbc32858")
    assert wire_of_id(id_of_key(b"key")).hex().startswith("ab652d4dc08e7a43")


def test_a_node_and_a_key_of_the_same_bytes_lie_apart() -> None:
    assert id_of_node(peer_id(1)) != id_of_key(peer_id(1))


@given(places)
def test_ids_survive_the_wire(id: DhtId) -> None:
    assert id_of_wire(wire_of_id(id)) == id


@given(places, places, places)
def test_distance_is_a_metric_and_common_bits_its_logarithm(a: DhtId, b: DhtId, c: DhtId) -> None:
    assert a ^ c <= (a ^ b) + (b ^ c)
    assert common_bits(a, b) == common_bits(b, a)
    assert (common_bits(a, b) == ID_BITS) == (a == b)
    assert (a ^ b) < 2 ** (ID_BITS - common_bits(a, b))


@given(places, st.integers(0, ID_BITS - 1), st.integers(0, 9))
def test_a_sibling_shares_exactly_so_many_bits(id: DhtId, depth: int, seed: int) -> None:
    there = sibling(id, depth, Random(seed))
    assert 0 <= there < SPACE
    assert common_bits(id, there) == depth
