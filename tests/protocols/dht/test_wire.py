"""Bytes of the DHT: round trips, fixed encodings, and bytes that are no message."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError
from shoal.base.ids import Contact
from shoal.identity.topics.cid import BLOCK_BYTES_MAX
from shoal.kernel.machine import DHT
from shoal.protocols.dht.config import (
    FRAME_BYTES_MAX,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    VALUES_MAX,
    K,
)
from shoal.protocols.dht.key_space import ID_BYTES
from shoal.protocols.dht.messages import (
    ANSWERS,
    QUESTIONS,
    FindNode,
    FindValue,
    Nodes,
    Ping,
    Pong,
    StoreValue,
    Values,
    ValueStored,
)
from shoal.protocols.dht.wire import DhtCodec
from shoal.transport.port import TransportLimits
from tests.support.dht import contact

CODEC = DhtCodec()
PLACE = bytes(range(ID_BYTES))
HOME = ("ws://10.0.0.1:4000",)

EXAMPLES = [
    Ping(1, HOME),
    Pong(1),
    FindNode(2, HOME, PLACE),
    Nodes(2, (contact(1), contact(2))),
    FindValue(3, (), PLACE, b"key"),
    Values(3, (b"value",), (contact(1),)),
    StoreValue(4, HOME, b"key", b"value", 86_400, False),
    ValueStored(4, "full"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_examples_round_trip(message: object) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


def test_the_protocol_and_its_messages_have_numbers_for_ever() -> None:
    assert CODEC.number == DHT == 3
    numbers = [msgspec.msgpack.decode(CODEC.encode(message))[0] for message in EXAMPLES]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8]
    assert CODEC.messages == (*QUESTIONS, *ANSWERS)
    assert (
        CODEC.encode(Ping(1, HOME)).hex()
        == "9301 0191 b2".replace(" ", "") + HOME[0].encode().hex()
    )


@pytest.mark.parametrize(
    "message",
    [
        FindNode(1, (), bytes(ID_BYTES - 1)),
        FindNode(-1, (), PLACE),
        FindValue(1, (), PLACE, b""),
        FindValue(1, (), PLACE, bytes(KEY_BYTES_MAX + 1)),
        Ping(1, ("a",) * 5),
        Nodes(1, (contact(1),) * (K + 1)),
        Values(1, (b"v",) * (VALUES_MAX + 1), ()),
        StoreValue(1, (), b"k", b"", 1, False),
        ValueStored(1, "r" * 33),
    ],
    ids=lambda message: type(message).__name__,
)
def test_limits_are_checked_while_decoding(message: object) -> None:
    with pytest.raises(MalformedMessage):
        CODEC.decode(CODEC.encode(message))


def test_the_longest_frames_pass_and_longer_ones_do_not() -> None:
    value = bytes(VALUE_BYTES_MAX)
    far = tuple([contact(n) for n in range(K)])
    assert CODEC.decode(CODEC.encode(Values(1, (value,), far)))
    assert CODEC.decode(CODEC.encode(StoreValue(1, HOME * 4, bytes(64), value, 1, True)))
    with pytest.raises(OversizedMessage):
        CODEC.decode(bytes(FRAME_BYTES_MAX + 1))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_remote_error(frame: bytes) -> None:
    with contextlib.suppress(RemoteError):
        CODEC.decode(frame)


@given(st.sampled_from(EXAMPLES), st.data())
def test_changed_bytes_never_raise_anything_else(message: object, data: st.DataObject) -> None:
    frame = bytearray(CODEC.encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RemoteError):
        CODEC.decode(bytes(frame))


def test_the_largest_event_fits_into_a_value_and_the_largest_value_into_a_frame() -> None:
    assert BLOCK_BYTES_MAX <= VALUE_BYTES_MAX
    assert TransportLimits().frame_bytes_max >= FRAME_BYTES_MAX
    people = tuple([Contact(contact(n).node, ("ws://" + "x" * 250,) * 4) for n in range(1, K + 1)])
    assert len(CODEC.encode(Values(2**53, (bytes(VALUE_BYTES_MAX),), people))) <= FRAME_BYTES_MAX
