"""The bytes of the handshake's first version: golden, and as they follow from the definition."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from shoal.base.ids import NodeId
from shoal.identity import PrivateKey, SeededEntropy, verify
from shoal.transport.handshake import Handshake
from shoal.transport.port import Credentials

GOLDEN = Path(__file__).parents[1] / "golden" / "link-handshake-v1.json"


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
