"""Attacks on the handshake: nobody is taken for another, and nothing is relayed or talked down."""

from __future__ import annotations

import msgspec

from shoal.transport.handshake import LINK_TAG, Handshake, Transcript
from tests.transport.handshakes import (
    ALICE,
    BINDING,
    BOB,
    MALLORY,
    hello_like,
    pair,
    proofs_of,
    refusal,
)


def test_a_dialler_refuses_another_than_it_expects() -> None:
    dialler = Handshake(ALICE, MALLORY.key.address)
    assert refusal(dialler, Handshake(BOB).hello) == "wrong-peer"


def test_nobody_talks_to_itself() -> None:
    dialler, acceptor = Handshake(BOB, BOB.key.address), Handshake(BOB)
    assert refusal(dialler, acceptor.hello) == refusal(acceptor, dialler.hello) == "self"


def test_a_mirror_gets_nowhere() -> None:
    for handshake in pair():
        assert refusal(handshake, handshake.hello) == "self"


def test_two_diallers_and_two_acceptors_do_not_match() -> None:
    # Mallory connects two nodes that each believe to have dialled, or to have been dialled.
    alice, bob = Handshake(ALICE, BOB.key.address), Handshake(BOB, ALICE.key.address)
    first, second = proofs_of(alice, bob)
    assert refusal(alice, second) == refusal(bob, first) == "signature"
    alice, bob = Handshake(ALICE), Handshake(BOB)
    first, second = proofs_of(alice, bob)
    assert refusal(alice, second) == refusal(bob, first) == "signature"


def test_a_proof_fits_one_handshake_only() -> None:
    old_dialler, old_acceptor = pair()
    old_first, old_second = proofs_of(old_dialler, old_acceptor)
    dialler, acceptor = pair()
    proofs_of(dialler, acceptor)
    assert refusal(acceptor, old_first) == refusal(dialler, old_second) == "signature"
    # Replaying the Hello as well does not help: the other side's nonce is new.
    victim = pair()[1]
    victim.receive(old_dialler.hello)
    assert refusal(victim, old_first) == "signature"
    victim = pair()[0]
    victim.receive(old_acceptor.hello)
    assert refusal(victim, old_second) == "signature"


def test_a_proof_made_for_one_node_cannot_be_shown_to_another() -> None:
    """Mallory, whom Alice dials, uses what Alice says to become Alice at Bob's door."""
    alice, bob = Handshake(ALICE, MALLORY.key.address), Handshake(BOB)
    bob.receive(alice.hello)
    # Alice must see Mallory's key, else she hangs up; so her transcript is not Bob's.
    assert refusal(Handshake(ALICE, MALLORY.key.address), bob.hello) == "wrong-peer"
    mallory = Handshake(MALLORY)
    proof = alice.receive(mallory.hello)
    assert proof is not None
    assert refusal(bob, proof) == "signature"


def test_under_tls_whoever_relays_is_found_out_by_its_certificate() -> None:
    dialler = Handshake(ALICE, BOB.key.address, b"mallory's certificate")
    acceptor = Handshake(BOB, None, b"bob's certificate")
    first, second = proofs_of(dialler, acceptor)
    assert refusal(acceptor, first) == refusal(dialler, second) == "signature"


def test_tls_cannot_be_stripped() -> None:
    dialler, acceptor = Handshake(ALICE, BOB.key.address, BINDING), Handshake(BOB)
    first, second = proofs_of(dialler, acceptor)
    assert refusal(acceptor, first) == refusal(dialler, second) == "signature"


def test_versions_and_features_cannot_be_talked_down() -> None:
    dialler = Handshake(msgspec.structs.replace(ALICE, versions=(1, 2)), BOB.key.address)
    acceptor = Handshake(msgspec.structs.replace(BOB, versions=(1, 2), features=("new",)))
    first = dialler.receive(hello_like(acceptor.hello, newest=1, features=[]))
    second = acceptor.receive(hello_like(dialler.hello, newest=1))
    assert first is not None
    assert second is not None
    assert refusal(acceptor, first) == refusal(dialler, second) == "signature"


def test_what_is_signed_begins_with_a_tag_of_its_own() -> None:
    encoded = msgspec.msgpack.encode(Transcript("dialler", b"", b"", b"", b""))
    assert msgspec.msgpack.decode(encoded)[0] == LINK_TAG == "shoal/link/1"
