"""What went over an edge lately."""

from __future__ import annotations

from shoal.base.units import S_NS
from shoal.protocols.search.bubbles.bubble_relay import AROUND_BYTES, Sent
from tests.support.bubbles import a_cast
from tests.support.circle import Peer

ANN = Peer(1)


def test_it_is_given_back_once_and_in_order() -> None:
    sent = Sent(20 * S_NS, 1 << 20)
    parts = [a_cast(ANN) for _ in range(3)]
    for part in parts:
        sent.add(1, part.id, part, 0)
    sent.add(2, parts[0].id, parts[0], 0)
    assert sent.take(1, S_NS) == [(part.id, part) for part in parts]
    assert sent.take(1, S_NS) == []
    assert len(sent) == 1


def test_what_is_older_than_a_silent_neighbour_has_arrived() -> None:
    sent = Sent(20 * S_NS, 1 << 20)
    old, new = a_cast(ANN), a_cast(ANN)
    sent.add(1, old.id, old, 0)
    sent.add(1, new.id, new, 5 * S_NS)
    assert sent.take(1, 21 * S_NS) == [(new.id, new)]


def test_bytes_are_bounded() -> None:
    sent = Sent(20 * S_NS, 10 * (AROUND_BYTES + 1000))
    parts = [a_cast(ANN, bytes(1000)) for _ in range(12)]
    for part in parts:
        sent.add(1, part.id, part, 0)
    assert len(sent) == 10
    assert not sent.has(1, parts[1].id)
    assert sent.has(1, parts[2].id)


def test_it_knows_which_bubbles_an_edge_has_had() -> None:
    sent = Sent(20 * S_NS, 2 * (AROUND_BYTES + 7))
    part, other = a_cast(ANN), a_cast(ANN)
    assert not sent.has(1, part.id)
    sent.add(1, part.id, part, 0)
    sent.add(1, part.id, part, 0)  # two slices
    sent.add(1, other.id, other, 0)
    assert sent.has(1, part.id)
    assert not sent.has(2, part.id)
    sent.add(1, other.id, other, 0)
    assert not sent.has(1, part.id)


def test_edges_that_ended_are_forgotten() -> None:
    sent = Sent(20 * S_NS, 1 << 20)
    part = a_cast(ANN)
    for edge in (1, 2):
        sent.add(edge, part.id, part, 0)
    sent.expire([2, 3], S_NS)
    assert not sent.has(1, part.id)
    assert sent.has(2, part.id)
    sent.expire([2, 3], 30 * S_NS)
    assert len(sent) == 0
