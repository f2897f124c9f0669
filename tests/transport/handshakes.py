"""Alice and Bob shake hands, as a pair of machines; Mallory is about."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.base.errors import RemoteError, UsageError
from shoal.transport.handshake import REFUSALS, Handshake, HandshakeFailed, Session, State
from tests.transport.stage import credentials

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
