"""The handshake as a pair of machines: what brings it to its end, and that nothing else does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.base.errors import UsageError
from shoal.transport.handshake import (
    FEATURES_MAX,
    HELLO_BYTES_MAX,
    ROLES_MAX,
    VERSION_MAX,
    Handshake,
    HandshakeFailed,
    State,
)
from tests.transport.handshakes import (
    ALICE,
    BINDING,
    BOB,
    MALLORY,
    complete,
    hello_like,
    pair,
    proofs_of,
    refusal,
)


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
    record = [5, b""]
    fields = [*msgspec.msgpack.decode(dialler.hello), record, "more", 7]
    dialler.hello = msgspec.msgpack.encode(fields)
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
