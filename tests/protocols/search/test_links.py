"""Links for a purpose: what waits for them, what is dialled, and who is left alone."""

from __future__ import annotations

import pytest

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact
from shoal.base.units import S_NS
from shoal.kernel.effects import CloseLink, Effect, OpenLink
from shoal.protocols.search.links import (
    CALLS_BURST,
    CALLS_NS,
    LEFT_ALONE_NS,
    USER,
    VISIT,
    WAITING_MAX,
    Links,
    Then,
    Visits,
    is_private,
)
from tests.support.circle import Peer

ANN, BEN = Peer(1), Peer(2)


class Heard:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def then(self, up: bool, now_ns: int) -> list[Effect]:
        self.told.append(up)
        return []


def nothing(up: bool, now_ns: int) -> list[Effect]:
    return []


def test_all_who_wait_are_told_once() -> None:
    links, heard = Links(USER, soft=False), Heard()
    assert links.open(ANN.contact, heard.then, 0) == [OpenLink(ANN.contact, USER)]
    assert links.open(ANN.contact, heard.then, 0) == []
    assert links.is_waiting(ANN.node)
    assert ANN.node not in links
    links.opened(ANN.node, 0)
    assert heard.told == [True, True]
    assert ANN.node in links
    links.open(ANN.contact, heard.then, 0)
    assert heard.told == [True] * 3
    links.lost(ANN.node, 0)
    assert heard.told == [True] * 3
    assert len(links) == 0


def test_a_dial_that_fails_is_told() -> None:
    links, heard = Links(USER, soft=False), Heard()
    links.open(ANN.contact, heard.then, 0)
    links.lost(ANN.node, 0)
    assert heard.told == [False]
    assert len(links) == 0


def test_so_many_wait_and_no_more() -> None:
    links, heard = Links(VISIT, soft=True), Heard()
    for _ in range(WAITING_MAX):
        links.open(ANN.contact, nothing, 0)
    links.open(ANN.contact, heard.then, 0)
    assert heard.told == [False]


def test_what_is_not_held_is_not_given_back() -> None:
    links = Links(USER, soft=False)
    links.open(ANN.contact, nothing, 0)
    assert links.release(ANN.node) == []
    links.opened(ANN.node, 0)
    assert links.release(ANN.node) == [CloseLink(ANN.node, USER)]
    assert links.release(ANN.node) == []


def test_links_for_nothing_are_noticed() -> None:
    links = Links(USER, soft=False)
    with pytest.raises(InvariantViolated, match="used, but not held"):
        links.check_invariants([ANN.node])
    links.opened(ANN.node, 0)
    with pytest.raises(InvariantViolated, match="held for nothing"):
        links.check_invariants([])
    links.check_invariants([ANN.node])


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("ws://10.0.0.1:7700", True),
        ("ws://192.168.1.1:7700", True),
        ("ws://127.0.0.1:7700", True),
        ("ws://localhost:7700", True),
        ("ws://169.254.169.254:80", True),
        ("ws://[::1]:7700", True),
        ("ws://[fc00::1]:7700", True),
        ("ws://[broken", True),
        ("ws://8.8.8.8:7700", False),
        ("wss://node.example.org:443", False),
    ],
)
def test_private_addresses(address: str, private: bool) -> None:
    assert is_private(address) == private


def test_private_addresses_are_not_dialled_in_a_public_network() -> None:
    links = Links(VISIT, soft=True)
    links.may_dial = lambda address: not is_private(address)
    contact = Contact(ANN.node, ("ws://10.0.0.1:7700", "ws://8.8.8.8:7700"))
    (effect,) = links.open(contact, nothing, 0)
    assert effect == OpenLink(Contact(ANN.node, ("ws://8.8.8.8:7700",)), VISIT, True)


# Calls to those whose address nobody has proven


def test_an_address_that_led_to_nobody_is_left_alone() -> None:
    visits, heard = Visits(), Heard()
    assert visits.call(ANN.contact, heard.then, 0) == [OpenLink(ANN.contact, VISIT, True)]
    visits.lost(ANN.node, S_NS)
    # Whoever claims to live there, too.
    impostor = Contact(BEN.node, ANN.contact.addresses)
    assert visits.call(impostor, heard.then, 2 * S_NS) == []
    assert heard.told == [False, False]
    assert visits.call(ANN.contact, heard.then, S_NS + LEFT_ALONE_NS) != []


def test_who_was_found_is_not_left_alone() -> None:
    visits, heard = Visits(), Heard()
    visits.call(ANN.contact, heard.then, 0)
    visits.opened(ANN.node, 0)
    visits.lost(ANN.node, S_NS)  # in good order, or evicted
    assert visits.call(ANN.contact, heard.then, 2 * S_NS) != []


def test_a_host_is_not_called_by_everybody_at_once() -> None:
    visits, heard = Visits(), Heard()

    def call(number: int, now_ns: int) -> list[Effect]:
        victim = Contact(Peer(number).node, (f"ws://10.9.9.9:{number}",))
        return visits.call(victim, heard.then, now_ns)

    dialled = [number for number in range(1, 200) if call(number, 0)]
    assert len(dialled) == CALLS_BURST
    assert heard.told == [False] * (199 - CALLS_BURST)
    assert call(200, CALLS_NS)


def test_a_call_to_somebody_who_is_here_costs_nothing() -> None:
    visits, heard = Visits(), Heard()
    visits.call(ANN.contact, heard.then, 0)
    then: Then = heard.then
    for _ in range(CALLS_BURST + 1):
        visits.call(ANN.contact, then, 0)
    visits.opened(ANN.node, 0)
    assert all(heard.told)
    assert len(heard.told) == CALLS_BURST + 2
