"""Canonical DAG-CBOR: one encoding for each value, and no other is read."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, UsageError
from shoal.identity.topics.cid import BLOCK_BYTES_MAX, DEPTH_MAX
from shoal.identity.topics.dag_cbor import Link, decode, encode
from tests.support.topics import BLOCKS, TOPIC_CID, cids, flipped

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.binary(max_size=300)
    | st.text(max_size=80)
    | cids.map(Link)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=30), inner),
    max_leaves=12,
)


# RFC 8949, appendix A
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65535, "19ffff"),
        (65536, "1a00010000"),
        (2**32, "1b0000000100000000"),
        (2**64 - 1, "1bffffffffffffffff"),
        (-1, "20"),
        (-1000, "3903e7"),
        (-(2**64), "3bffffffffffffffff"),
        (False, "f4"),
        (True, "f5"),
        (None, "f6"),
        (b"", "40"),
        (b"\1\2\3\4", "4401020304"),
        ("", "60"),
        ("IETF", "6449455446"),
        ("水", "63e6b0b4"),
        ("\U00010151", "64f0908591"),
        ([], "80"),
        ([1, [2, 3], [4, 5]], "8301820203820405"),
        ({}, "a0"),
        ({"b": [2, 3], "a": 1}, "a26161016162820203"),
        ({"aa": 1, "b": 2, "é": 3, "": 4}, "a46004616202626161" + "0162c3a903"),
    ],
)
def test_known_values(value: Any, text: str) -> None:
    assert encode(value).hex() == text
    decoded = decode(bytes.fromhex(text))
    assert decoded == value
    assert type(decoded) is type(value)


def test_a_link_is_tag_42_around_a_zero_and_the_cid() -> None:
    encoded = encode(Link(TOPIC_CID))
    assert encoded == bytes.fromhex("d82a582500") + TOPIC_CID
    assert decode(encoded) == Link(TOPIC_CID)


@given(VALUES)
def test_every_value_comes_back(value: Any) -> None:
    with suppress(UsageError):  # nested too deep
        assert decode(encode(value)) == value


@given(st.binary(max_size=60))
@example(b"\xa1" * 2000)
@example(b"\x9b" + b"\xff" * 8)
@example(b"\xbb" + b"\xff" * 8)
@example(b"\x5b" + b"\xff" * 8)
def test_any_bytes_are_canonical_or_malformed(raw: bytes) -> None:
    with suppress(MalformedMessage):
        assert encode(decode(raw)) == raw


@given(st.sampled_from(sorted(BLOCKS)), st.data())
def test_changed_bytes_are_canonical_or_malformed(name: str, data: st.DataObject) -> None:
    raw = bytes.fromhex(BLOCKS[name]["cbor"])
    for bit in data.draw(st.lists(st.integers(0, len(raw) * 8 - 1), min_size=1, max_size=3)):
        raw = flipped(raw, bit)
    with suppress(MalformedMessage):
        assert encode(decode(raw)) == raw


LINK = (bytes.fromhex("d82a582500") + TOPIC_CID).hex()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "cut off"),
        ("18", "cut off"),
        ("19ff", "cut off"),
        ("4101ff", "1 more follow"),
        ("4201", "2 bytes are announced, 1 are there"),
        ("1817", "shorter"),
        ("1900ff", "shorter"),
        ("1a0000ffff", "shorter"),
        ("1b00000000ffffffff", "shorter"),
        ("580101", "shorter"),
        ("f97e00", "a float"),
        ("fa47c35000", "a float"),
        ("fb3ff199999999999a", "a float"),
        ("f7", "no value"),
        ("e0", "no value"),
        ("f818", "a float"),
        ("5f4101ff", "indefinite"),
        ("7f6161ff", "indefinite"),
        ("9fff", "indefinite"),
        ("bfff", "indefinite"),
        ("ff", "indefinite"),
        ("1c", "indefinite"),
        ("a1016161", "a key is text"),
        ("a1416101", "a key is text"),
        ("a2616101616102", "twice"),
        ("a2616201616102", "canonical order"),
        ("a262616101616202", "canonical order"),
        ("a161", "1 bytes are announced, 0 are there"),
        ("61ff", "no UTF-8"),
        ("63eda080", "no UTF-8"),
        ("c074323031332d30332d32315432303a30343a30305a", "links are the only tag"),
        ("c249010000000000000000", "links are the only tag"),
        ("d9002a" + LINK[4:], "shorter"),
        ("d82a" + "60", "a link is bytes"),
        ("d82a" + "40", "a link is bytes"),
        ("d82a5824" + TOPIC_CID.hex(), "a link is bytes"),
        ("d82a582501" + TOPIC_CID.hex(), "a link is bytes"),
        ("d82a582400" + TOPIC_CID.hex()[:-2], "36 bytes from 01711220 on"),
        ("d82a" + LINK, "a link is bytes"),
        ("81" * (DEPTH_MAX + 1) + "00", "nests deeper"),
        ("9bffffffffffffffff00", "cut off"),
    ],
)
def test_anything_else_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        decode(bytes.fromhex(text))


def test_a_block_has_a_largest_size() -> None:
    fits = BLOCK_BYTES_MAX - 5
    assert decode(encode(bytes(fits))) == bytes(fits)
    with pytest.raises(MalformedMessage, match="at most"):
        decode(encode(bytes(fits + 1)))


@pytest.mark.parametrize(
    "value", [1.5, 2**64, -(2**64) - 1, "\ud800", {"\ud800": 1}, {1, 2}, [object()]]
)
def test_what_has_no_canonical_form_is_a_usage_error(value: Any) -> None:
    with pytest.raises(UsageError):
        encode(value)


def test_values_nest_as_deep_when_written_as_when_read() -> None:
    value: Any = 0
    for _ in range(DEPTH_MAX):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(UsageError, match="flatter"):
        encode([value])
