"""Whom to ask for the way into the network."""

from __future__ import annotations

from shoal.base.ids import Contact
from shoal.protocols.search.circle.known_nodes import TRIES_MAX, Acquaintances
from tests.support.circle import ME, Peer

ANN, BOB, EVE = (Peer(number) for number in range(1, 4))


def test_nobody_is_known_at_first() -> None:
    known = Acquaintances(ME.node, [ME.contact], 4)
    assert len(known) == 0, "ourselves does not count"
    assert known.next() is None


def test_all_are_asked_in_turn() -> None:
    known = Acquaintances(ME.node, [ANN.contact, BOB.contact], 4)
    known.saw(EVE.contact)
    asked = [known.next() for _ in range(6)]
    assert {contact.node for contact in asked[:3] if contact} == {ANN.node, BOB.node, EVE.node}
    assert asked[:3] == asked[3:]


def test_who_was_seen_last_comes_first_and_nobody_twice() -> None:
    known = Acquaintances(ME.node, [ANN.contact], 4)
    known.saw(BOB.contact)
    known.saw(ANN.contact)
    assert known.recent() == (ANN.contact, BOB.contact)


def test_of_too_many_the_one_seen_longest_ago_is_forgotten() -> None:
    known = Acquaintances(ME.node, [], 2)
    for peer in (ANN, BOB, ANN, EVE):
        known.saw(peer.contact)
    assert known.recent() == (EVE.contact, ANN.contact)


def test_who_does_not_answer_is_forgotten_unless_it_was_given() -> None:
    known = Acquaintances(ME.node, [ANN.contact], 4)
    known.saw(BOB.contact)
    known.lost(BOB.node)
    known.lost(ANN.node)
    assert known.recent() == (ANN.contact,)


def test_who_cannot_be_dialled_is_of_no_use() -> None:
    known = Acquaintances(ME.node, [], 4)
    known.saw(Contact(ANN.node))
    known.saw(ME.contact)
    assert len(known) == 0


def test_who_does_not_answer_is_missed_until_it_is_seen() -> None:
    known = Acquaintances(ME.node, [ANN.contact], 4)
    known.saw(BOB.contact)
    known.saw(EVE.contact)
    for peer in (ANN, BOB):
        known.lost(peer.node)
    assert known.missed([]) == [ANN.contact, BOB.contact]
    assert known.missed([ANN.node]) == [BOB.contact]
    assert known.others([]) == [EVE.contact]
    assert known.others([EVE.node]) == []
    known.saw(BOB.contact)
    assert known.missed([]) == [ANN.contact]
    assert known.others([]) == [BOB.contact, EVE.contact]


def test_strangers_are_not_missed() -> None:
    known = Acquaintances(ME.node, [], 4)
    known.lost(ANN.node)
    assert known.missed([]) == []


def test_of_too_many_the_one_missed_longest_is_forgotten() -> None:
    known = Acquaintances(ME.node, [], 2)
    for peer in (ANN, BOB, EVE):
        known.saw(peer.contact)
        known.lost(peer.node)
    known.lost(BOB.node)
    assert known.missed([]) == [BOB.contact, EVE.contact]


def test_nobody_is_missed_for_ever() -> None:
    known = Acquaintances(ME.node, [], 4)
    known.saw(ANN.contact)
    for _ in range(TRIES_MAX - 1):
        known.lost(ANN.node)
    assert known.missed([]) == [ANN.contact]
    known.lost(ANN.node)
    assert known.missed([]) == []


def test_founders_are_apart_until_they_are_on_our_circle_and_never_forgotten() -> None:
    founders = [ME.node, ANN.node]
    known = Acquaintances(ME.node, [ANN.contact, BOB.contact], 4, founders)
    assert known.apart([]) == [ANN.contact], "of a cache's nobody is to be found again"
    known.saw(ANN.contact)
    assert known.apart([]) == [ANN.contact], "an answer is no place"
    assert known.apart([ANN.node]) == []
    known.linked(ANN.node)
    known.linked(BOB.node)
    assert known.apart([]) == []
    for _ in range(TRIES_MAX):
        known.lost(ANN.node)
    assert known.apart([]) == [ANN.contact]
    assert known.missed([]) == [ANN.contact]


def test_whom_nobody_lists_with_us_is_forgotten_after_many_tries() -> None:
    known = Acquaintances(ME.node, [ANN.contact], 4)
    assert known.apart([]) == [ANN.contact]
    for _ in range(TRIES_MAX):
        known.lost(ANN.node)
    assert known.apart([]) == []
