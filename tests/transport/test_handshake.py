"""The handshake as a pair of machines: what brings it to its end, and that nothing else does."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.base.errors import RemoteError, UsageError
from shoal.base.ids import NodeId
from shoal.identity import PrivateKey, SeededEntropy, verify
from shoal.transport.handshake import (
    FEATURES_MAX,
    HELLO_BYTES_MAX,
    LINK_TAG,
    REFUSALS,
    ROLES_MAX,
    VERSION_MAX,
    Handshake,
    HandshakeFailed,
    Session,
    State,
    Transcript,
)
from shoal.transport.port import Credentials
from tests.transport.stage import credentials

GOLDEN = Path(__file__).parents[1] / "golden" / "link-handshake-v1.json"

ALICE, BOB, MALLORY = credentials("alice"), credentials("bob"), credentials("mallory")
BINDING = bytes(range(32))


def pair(binding: bytes = b"", **changes: Any) -> tuple[Handshake, Handshake]:
    """Alice dials Bob."""
    alice = msgspec.structs.replace(ALICE, **changes)
    return Handshake(alice, BOB.key.address, binding), Handshake(BOB, None, binding)


def proofs_of(dialler: Handshake, acceptor: Handshake) -> tuple[bytes, bytes]:
    """Exchange the Hellos."""
    first, second = dialler.receive(acceptor.hello), acceptor.receive(dialler.hello)
    assert first is not None
    assert second is not None
    return first, second


def complete(dialler: Handshake, acceptor: Handshake) -> tuple[Session, Session]:
    """Let both come to the end."""
    first, second = proofs_of(dialler, acceptor)
    assert dialler.receive(second) is None
    assert acceptor.receive(first) is None
    assert dialler.session is not None
    assert acceptor.session is not None
    return dialler.session, acceptor.session


def refusal(handshake: Handshake, message: bytes) -> str:
    """Why a message is refused; the handshake is over then."""
    with pytest.raises(HandshakeFailed) as caught:
        handshake.receive(message)
    assert handshake.state is State.FAILED
    assert handshake.session is None
    with pytest.raises(UsageError):
        handshake.receive(message)
    assert caught.value.reason in REFUSALS
    assert str(caught.value).startswith(caught.value.reason)
    assert isinstance(caught.value, RemoteError)
    return caught.value.reason


def hello_like(hello: bytes, **changes: Any) -> bytes:
    """A Hello with other fields, by position."""
    fields = msgspec.msgpack.decode(hello)
    names = ["magic", "newest", "oldest", "features", "roles", "public_key", "nonce", "ephemeral"]
    for name, value in changes.items():
        fields[names.index(name)] = value
    return msgspec.msgpack.encode(fields)


def test_both_sides_end_with_the_same_keys_and_each_others_names() -> None:
    dialler, acceptor = pair(roles=("tracker",), features=("b", "a"))
    alice, bob = complete(dialler, acceptor)
    assert (alice.peer.node, bob.peer.node) == (BOB.key.address, ALICE.key.address)
    assert (alice.peer.roles, bob.peer.roles) == (("node",), ("tracker",))
    assert alice.send_key == bob.receive_key
    assert alice.receive_key == bob.send_key
    keys = {alice.send_key, alice.receive_key}
    assert len(keys) == 2
    assert all(key is not None and len(key) == 32 for key in keys)
    with pytest.raises(UsageError, match="over"):
        dialler.receive(b"more")


def test_an_encrypted_channel_needs_no_keys() -> None:
    for session in complete(*pair(binding=BINDING)):
        assert session.send_key is session.receive_key is None


def test_no_two_links_have_the_same_keys() -> None:
    keys = {complete(*pair())[side].send_key for side in (0, 1) for _ in range(10)}
    assert len(keys) == 20


@given(st.data())
def test_the_order_of_arrival_does_not_matter(data: st.DataObject) -> None:
    dialler, acceptor = pair()
    to_acceptor, to_dialler = [dialler.hello], [acceptor.hello]
    while to_acceptor or to_dialler:
        queues = [(to_acceptor, acceptor, to_dialler), (to_dialler, dialler, to_acceptor)]
        queue, receiver, back = data.draw(st.sampled_from([q for q in queues if q[0]]))
        answer = receiver.receive(queue.pop(0))
        if answer is not None:
            back.append(answer)
    assert dialler.state is acceptor.state is State.DONE


@given(st.sampled_from(["dialler", "acceptor"]), st.integers(0, 10_000), st.integers(1, 255))
def test_a_hello_that_was_changed_on_its_way_ends_both_sides(
    side: str, position: int, flip: int
) -> None:
    dialler, acceptor = pair()
    author, reader = (dialler, acceptor) if side == "dialler" else (acceptor, dialler)
    changed = bytearray(author.hello)
    changed[position % len(changed)] ^= flip
    proof = author.receive(reader.hello)
    assert proof is not None
    try:
        other_proof = reader.receive(bytes(changed))
    except HandshakeFailed:
        return
    assert other_proof is not None
    assert refusal(author, other_proof) == "signature"
    assert refusal(reader, proof) == "signature"


@given(st.integers(0, 64), st.integers(1, 255))
def test_a_proof_that_was_changed_is_refused(position: int, flip: int) -> None:
    assume((position, flip) != (64, 1))  # v is a hint (identity/signatures.py), and no secret
    dialler, acceptor = pair()
    first, second = proofs_of(dialler, acceptor)
    for reader, proof in [(acceptor, first), (dialler, second)]:
        changed = bytearray(proof)
        changed[position] ^= flip
        assert refusal(reader, bytes(changed)) == "signature"


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_and_nothing_worse(message: bytes) -> None:
    dialler, acceptor = pair()
    assert refusal(acceptor, message) in ("malformed", "version")
    proofs_of(dialler, fresh := pair()[1])
    assert refusal(dialler, message) in ("malformed", "signature")
    assert refusal(fresh, message) in ("malformed", "signature")


def test_every_field_has_its_bounds() -> None:
    hello = pair()[0].hello
    name = "x" * 32
    impossible: list[dict[str, Any]] = [
        {"magic": "other"},
        {"magic": 7},
        {"newest": 0},
        {"newest": -1},
        {"newest": VERSION_MAX + 1},
        {"oldest": 2},  # above the newest
        {"newest": "1"},
        {"features": ["x"] * (FEATURES_MAX + 1)},
        {"features": "x"},
        {"features": [name + "x"]},
        {"features": [""]},
        {"features": ["Upper"]},
        {"features": ["new\nline"]},
        {"features": ["line\n"]},
        {"roles": ["x"] * (ROLES_MAX + 1)},
        {"roles": [1]},
        {"public_key": b"\x02" * 32},
        {"public_key": b"\x04" + bytes(64)},
        {"public_key": b"\x05" + bytes(32)},
        {"public_key": b"\x02" + b"\xff" * 32},
        {"nonce": bytes(31)},
        {"nonce": bytes(33)},
        {"nonce": "text"},
        {"ephemeral": bytes(31)},
        {"ephemeral": bytes(33)},
    ]
    for changes in impossible:
        assert refusal(pair()[1], hello_like(hello, **changes)) == "malformed", changes
    longest = hello_like(
        hello,
        newest=VERSION_MAX,
        features=[name] * FEATURES_MAX,
        roles=[name] * ROLES_MAX,
    )
    assert len(longest) <= HELLO_BYTES_MAX
    assert pair()[1].receive(longest) is not None
    assert refusal(pair()[1], longest + bytes(HELLO_BYTES_MAX)) == "oversized"
    assert refusal(pair()[1], hello[:-1]) == "malformed"
    assert refusal(pair()[1], hello + b"\x00") == "malformed"


def test_a_point_that_gives_no_secret_is_refused() -> None:
    # Mallory is no outsider here, but even a peer must not choose the keys of a link.
    for point in (bytes(32), b"\x01" + bytes(31)):
        mallory, acceptor = Handshake(MALLORY, BOB.key.address), Handshake(BOB)
        mallory.hello = hello_like(mallory.hello, ephemeral=point)
        proof, _ = proofs_of(mallory, acceptor)
        assert refusal(acceptor, proof) == "malformed"


def test_a_later_version_may_append_fields() -> None:
    dialler, acceptor = pair()
    dialler.hello = msgspec.msgpack.encode([*msgspec.msgpack.decode(dialler.hello), "more", 7])
    complete(dialler, acceptor)


@pytest.mark.parametrize(
    ("mine", "theirs", "common"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 3), (2, 2), 2),
        ((1, 3), (2, 9), 3),
        ((1, 1), (2, 2), None),
        ((3, 9), (1, 2), None),
    ],
)
def test_the_highest_common_version_is_taken(
    mine: tuple[int, int], theirs: tuple[int, int], common: int | None
) -> None:
    dialler = Handshake(msgspec.structs.replace(ALICE, versions=mine), BOB.key.address)
    acceptor = Handshake(msgspec.structs.replace(BOB, versions=theirs))
    if common is None:
        assert refusal(dialler, acceptor.hello) == refusal(acceptor, dialler.hello) == "version"
    else:
        assert [session.peer.version for session in complete(dialler, acceptor)] == [common] * 2


def test_features_intersect_alike_on_both_sides() -> None:
    bob = Handshake(msgspec.structs.replace(BOB, features=("x", "y", "z")))
    alice = Handshake(
        msgspec.structs.replace(ALICE, features=("z", "w", "y", "y")), BOB.key.address
    )
    assert [session.peer.features for session in complete(alice, bob)] == [("y", "z")] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": (0, 1)},
        {"versions": (2, 1)},
        {"roles": ("Node",)},
        {"features": ("x" * 33,)},
        {"roles": ("x",) * 17},
    ],
)
def test_impossible_credentials_are_a_mistake(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="credentials"):
        pair(**changes)


# Attacks


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


# Golden


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=lambda c: c["name"])
def test_the_bytes_of_version_1_stay_what_they_are(case: dict[str, Any]) -> None:
    """Every later version opens these, and answers version 1 with the same bytes."""
    sides = {side: golden_credentials(case[side]) for side in ("dialler", "acceptor")}
    binding = bytes.fromhex(case["binding"])
    dialler = Handshake(sides["dialler"], sides["acceptor"].key.address, binding)
    acceptor = Handshake(sides["acceptor"], None, binding)
    assert dialler.hello.hex() == case["dialler"]["hello"]
    assert acceptor.hello.hex() == case["acceptor"]["hello"]
    first = dialler.receive(bytes.fromhex(case["acceptor"]["hello"]))
    second = acceptor.receive(bytes.fromhex(case["dialler"]["hello"]))
    assert first is not None
    assert second is not None
    assert first.hex() == case["dialler"]["proof"]
    assert second.hex() == case["acceptor"]["proof"]
    acceptor.receive(bytes.fromhex(case["dialler"]["proof"]))
    dialler.receive(bytes.fromhex(case["acceptor"]["proof"]))
    for side, handshake in [("dialler", dialler), ("acceptor", acceptor)]:
        session = handshake.session
        assert session is not None
        key = None if session.send_key is None else session.send_key.hex()
        assert key == case[side]["send_key"]
        assert session.peer.version == case["version"]
        assert list(session.peer.features) == case["features"]


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=lambda c: c["name"])
def test_the_golden_bytes_follow_from_the_definition(case: dict[str, Any]) -> None:
    """The same once more, from the text of the theory of operation alone."""
    dialler, acceptor = case["dialler"], case["acceptor"]
    hellos = [bytes.fromhex(side["hello"]) for side in (dialler, acceptor)]
    binding = bytes.fromhex(case["binding"])

    def transcript(side: str, talks_to: str) -> bytes:
        fields = ["shoal/link/1", side, *hellos, binding, bytes.fromhex(talks_to)]
        return msgspec.msgpack.encode(fields)

    for name, signer, other in [("dialler", dialler, acceptor), ("acceptor", acceptor, dialler)]:
        proof = bytes.fromhex(signer["proof"])
        signed = transcript(name, other["node"])
        assert verify(NodeId(bytes.fromhex(signer["node"])), signed, proof)
    if binding:
        return
    entropy = SeededEntropy(dialler["entropy_seed"])
    nonce, secret = entropy.token(32), entropy.token(32)
    assert msgspec.msgpack.decode(hellos[0])[6] == nonce
    there = X25519PublicKey.from_public_bytes(msgspec.msgpack.decode(hellos[1])[7])
    shared = X25519PrivateKey.from_private_bytes(secret).exchange(there)
    salt = hashlib.sha256(transcript("both", "")).digest()
    extracted = hmac.digest(salt, shared, "sha256")
    info = b"shoal/link/1 mac"
    one = hmac.digest(extracted, info + b"\x01", "sha256")
    two = hmac.digest(extracted, one + info + b"\x02", "sha256")
    assert (one.hex(), two.hex()) == (dialler["send_key"], acceptor["send_key"])


def golden_credentials(side: dict[str, Any]) -> Credentials:
    return Credentials(
        key=PrivateKey.from_bytes(bytes.fromhex(side["secret"])),
        entropy=SeededEntropy(side["entropy_seed"]),
        roles=tuple(side["roles"]),
        features=tuple(side["features"]),
        versions=tuple(side["versions"]),
    )
