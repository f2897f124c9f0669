"""Bytes of the streams protocol: round trips, golden encodings, and the largest of each kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from shoal.base.ids import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    INT63_MAX,
    STREAM_ID_CHARS_MAX,
    Contact,
    StreamId,
)
from shoal.identity.message_body import Body, decode_body, encode_body, split_signed
from shoal.protocols.streams.config import DEGREE_MAX, HOLDERS_MAX, RTT_US_MAX, STORAGE_NODES_MAX
from shoal.protocols.streams.messages import (
    NOTICED_STREAMS_MAX,
    REASON_CHARS_MAX,
    SIGNAL_BYTES_MAX,
    Expect,
    Instruction,
    Join,
    JoinRefused,
    KeepStreams,
    KeyHolders,
    NewStream,
    Report,
    Rtt,
    Signalled,
    Status,
    StorageNodes,
)
from tests.strategies import BY_TYPE, bodies, signatures
from tests.support.stream_examples import BODIES, EXAMPLES, OLDER, SIGNATURE
from tests.support.streams import ALICE, CODEC, node

GOLDEN = Path(__file__).parents[2] / "golden" / "streams-messages-v1.json"


@pytest.mark.parametrize("kind", CODEC.messages, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was(kind: type) -> None:
    @given(BY_TYPE[kind])
    def round_trip(message: Any) -> None:
        frame = CODEC.encode(message)
        assert CODEC.decode(frame) == message
        assert type(CODEC.decode(frame)) is kind

    round_trip()


@given(signatures, bodies)
def test_every_body_comes_back_as_it_was(signature: bytes, body: Body) -> None:
    signed = signature + encode_body(body)
    assert decode_body(signed) == body
    assert split_signed(signed) == (signature, encode_body(body))


def test_every_message_type_has_a_golden_encoding() -> None:
    assert {type(message) for message in EXAMPLES.values()} == set(CODEC.messages)
    assert set(golden()) == {*EXAMPLES, *OLDER, *BODIES}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_is_the_bytes_it_always_was(name: str) -> None:
    frame = bytes.fromhex(golden()[name])
    assert CODEC.decode(frame) == EXAMPLES[name]
    assert CODEC.encode(EXAMPLES[name]).hex() == frame.hex()


@pytest.mark.parametrize("name", OLDER)
def test_what_earlier_nodes_said_is_understood(name: str) -> None:
    assert CODEC.decode(bytes.fromhex(golden()[name])) == OLDER[name]


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_the_bytes_that_were_always_signed(name: str) -> None:
    encoded = bytes.fromhex(golden()[name])
    assert decode_body(SIGNATURE + encoded) == BODIES[name]
    assert encode_body(BODIES[name]).hex() == encoded.hex()


def golden() -> dict[str, str]:
    text: dict[str, str] = json.loads(GOLDEN.read_text())
    return text


WIDE = "\U0001f41f"  # a character of four bytes, as long as they come
WIDEST = StreamId(WIDE * STREAM_ID_CHARS_MAX)
CROWD = tuple(node(number) for number in range(DEGREE_MAX))
FAR = tuple(Contact(n, (WIDE * ADDRESS_CHARS_MAX,) * ADDRESSES_MAX) for n in CROWD)


@pytest.mark.parametrize(
    "message",
    [
        Join(WIDEST, FAR[0], INT63_MAX, INT63_MAX, CROWD),
        Status(WIDEST, INT63_MAX, INT63_MAX, CROWD),
        Report(
            WIDEST,
            tuple(Rtt(n, RTT_US_MAX, RTT_US_MAX) for n in CROWD),
            CROWD,
            CROWD,
            RTT_US_MAX,
        ),
        Instruction(WIDEST, INT63_MAX, INT63_MAX, FAR),
        StorageNodes(WIDEST, FAR[:STORAGE_NODES_MAX]),
        KeyHolders(INT63_MAX, FAR[:HOLDERS_MAX]),
        Expect(WIDEST, FAR[0]),
        KeepStreams((NewStream(WIDEST, ALICE, "f" * 64),) * NOTICED_STREAMS_MAX),
        JoinRefused(WIDEST, False, WIDE * REASON_CHARS_MAX),
        Signalled(WIDEST, ALICE, bytes(SIGNAL_BYTES_MAX)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_largest_of_its_kind_fits_a_frame(message: Any) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message
