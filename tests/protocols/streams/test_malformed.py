"""Bytes that are no message of the streams protocol, and bodies that are none."""

from __future__ import annotations

import struct
import sys
from typing import Any

import msgspec
import pytest

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.identity.message_body import decode_body, encode_body
from shoal.protocols.streams.config import DEGREE_MAX, FRAME_BYTES_MAX, HOLDERS_MAX
from shoal.protocols.streams.messages import Ping
from tests.support.stream_examples import BODY, FIRST_BODY, SIGNATURE
from tests.support.streams import CODEC


def array(*items: Any) -> bytes:
    """A msgpack array that need not be any message of ours."""
    return msgspec.msgpack.encode(items)


def raw(*parts: bytes) -> bytes:
    """An array of items that are encoded already."""
    return bytes([0x90 + len(parts)]) + b"".join(parts)


LONG_ARRAY = b"\xdd\xff\xff\xff\xff"
LONG_TEXT = b"\xdb\xff\xff\xff\xff"
LONG_BYTES = b"\xc6\xff\xff\xff\xff"
TEXT_S = b"\xa1s"
NO_MESSAGES = {
    "nothing": b"",
    "one-byte": b"\xc1",
    "a-number": b"\x01",
    "a-map": msgspec.msgpack.encode({"type": 4, "nonce": 1}),
    "no-fields": array(),
    "unknown-number": array(12, 1),
    "number-zero": array(0, 1),
    "negative-number": array(-1, 1),
    "number-as-text": array("4", 1),
    "number-as-float": array(4.0, 1),
    "too-few-fields": array(4),
    "two-messages": array(4, 1) + array(4, 1),
    "negative-count": array(4, -1),
    "count-of-64-bits": array(4, 2**63),
    "count-of-64-ones": array(4, 2**64 - 1),
    "count-as-float": array(4, 1.0),
    "count-as-nan": raw(b"\x04", b"\xcb" + struct.pack(">d", float("nan"))),
    "count-as-bool": array(4, True),
    "count-as-nil": array(4, None),
    "count-as-time": raw(b"\x04", b"\xd6\xff\x00\x00\x00\x00"),
    "flag-as-number": array(2, "s", 1),
    "empty-stream": array(2, "", False),
    "long-stream": array(2, "s" * 257, False),
    "stream-as-bytes": array(2, b"s", False),
    "stream-not-utf8": raw(b"\x02", b"\xa2\xff\xfe", b"\xc2"),
    "stream-half-a-surrogate": raw(b"\x02", b"\xa3\xed\xa0\x80", b"\xc2"),
    "stream-overlong-utf8": raw(b"\x02", b"\xa2\xc0\xaf", b"\xc2"),
    "short-node": array(8, "s", 0, 0, [b"n" * 19]),
    "long-node": array(8, "s", 0, 0, [b"n" * 21]),
    "empty-node": array(8, "s", 0, 0, [b""]),
    "node-as-text": array(8, "s", 0, 0, ["n" * 20]),
    "too-many-neighbours": array(8, "s", 0, 0, [b"n" * 20] * (DEGREE_MAX + 1)),
    "too-many-contacts": array(10, "s", 0, 0, [[b"n" * 20, []]] * (DEGREE_MAX + 1)),
    "too-many-round-trips": array(9, "s", [[b"n" * 20, 1]] * (DEGREE_MAX + 1), [], []),
    "too-many-addresses": array(6, "s", [b"n" * 20, ["a"] * 9], 0, 0, []),
    "long-address": array(6, "s", [b"n" * 20, ["a" * 257]], 0, 0, []),
    "too-many-holders": array(26, 1, [[b"n" * 20, []]] * (HOLDERS_MAX + 1)),
    "too-many-hops": array(1, 256, 0, 0, b"s" * 66),
    "signature-without-body": array(1, 0, 0, 0, b"s" * 65),
    "endless-array": LONG_ARRAY + b"\x02" + TEXT_S + b"\xc2",
    "endless-neighbours": raw(b"\x08", TEXT_S, b"\x00", b"\x00", LONG_ARRAY),
    "endless-text": raw(b"\x02", LONG_TEXT, b"\xc2"),
    "endless-bytes": raw(b"\x01", b"\x00", b"\x00", b"\x00", LONG_BYTES),
    "deep-arrays": raw(b"\x02", b"\x91" * 400_000),
    "deep-maps": raw(b"\x02", b"\x81\x01" * 200_000),
    "deep-arrays-behind-a-message": raw(b"\x02", TEXT_S, b"\xc2", b"\x91" * 400_000),
    "endless-array-behind-a-message": raw(b"\x02", TEXT_S, b"\xc2", LONG_ARRAY + b"\xc0" * 400_000),
}


@pytest.mark.parametrize("frame", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_bytes_that_are_no_message_are_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        CODEC.decode(frame)


def test_a_frame_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(OversizedMessage):
        CODEC.decode(b"\xc1" * (FRAME_BYTES_MAX + 1))
    with pytest.raises(MalformedMessage):
        CODEC.decode(b"\xc1" * FRAME_BYTES_MAX)


def test_a_later_version_may_say_more() -> None:
    assert CODEC.decode(array(4, 1, "more", {"of": "it"})) == Ping(1)


def body_bytes(
    *id: Any, tag: Any = "shoal/stream/1", rest: tuple[Any, ...] = (None, 0, b"")
) -> bytes:
    return SIGNATURE + msgspec.msgpack.encode([tag, list(id), *rest])


ID = ("s", 0, 0, 0, b"n" * 20, "c")
NO_BODIES = {
    "nothing": SIGNATURE,
    "less-than-a-signature": b"s",
    "a-number": SIGNATURE + b"\x01",
    "another-tag": body_bytes(*ID, tag="shoal/stream/2"),
    "no-tag": SIGNATURE + msgspec.msgpack.encode([list(ID), None, 0, b""]),
    "empty-stream": body_bytes("", *ID[1:]),
    "partition-over": body_bytes("s", 101, *ID[2:]),
    "partition-below": body_bytes("s", -1, *ID[2:]),
    "negative-timestamp": body_bytes("s", 0, -1, *ID[3:]),
    "timestamp-of-64-bits": body_bytes("s", 0, 2**63, *ID[3:]),
    "sequence-of-64-bits": body_bytes("s", 0, 0, 2**63, *ID[4:]),
    "short-publisher": body_bytes("s", 0, 0, 0, b"n" * 19, "c"),
    "long-publisher": body_bytes("s", 0, 0, 0, b"n" * 21, "c"),
    "empty-chain": body_bytes("s", 0, 0, 0, b"n" * 20, ""),
    "long-chain": body_bytes("s", 0, 0, 0, b"n" * 20, "c" * 33),
    "short-id": body_bytes(*ID[:5]),
    "previous-as-number": body_bytes(*ID, rest=(1, 0, b"")),
    "previous-negative": body_bytes(*ID, rest=([-1, 0], 0, b"")),
    "content-type-over": body_bytes(*ID, rest=(None, 256, b"")),
    "content-as-text": body_bytes(*ID, rest=(None, 0, "")),
    "two-bodies": SIGNATURE + 2 * encode_body(BODY),
    "deep": SIGNATURE + b"\x91" * 400_000,
}


@pytest.mark.parametrize("signed", NO_BODIES.values(), ids=NO_BODIES)
def test_bytes_that_are_no_body_are_malformed(signed: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_body(signed)


@pytest.mark.parametrize("depth", [0, 1, 700])
def test_every_hop_reads_a_body_the_same_way(depth: int) -> None:
    # A body with more in it than we know is read by whoever has stack left for what is nested in
    # there, and is an offence of its honest sender to whoever has not.
    more = b"\x91" * depth + b"\x01"
    encoded = encode_body(FIRST_BODY)
    signed = SIGNATURE + bytes([encoded[0] + 1]) + encoded[1:] + more

    def deeper(levels: int) -> bool:
        if levels:
            return deeper(levels - 1)
        try:
            decode_body(signed)
        except MalformedMessage:
            return False
        return True

    verdicts = {deeper(levels) for levels in (0, sys.getrecursionlimit() // 2)}
    assert verdicts == {False}
