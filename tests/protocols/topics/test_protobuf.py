"""Protobuf's wire format: numbers and bytes, and what is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage
from shoal.protocols.topics.wire import (
    Reader,
    bytes_field,
    number_field,
    read_fields,
    read_varint,
    text_field,
    varint,
)

UINT64 = st.integers(0, 2**64 - 1)


# protobuf.dev, "Encoding"
@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (150, "9601"), (2**64 - 1, "ff" * 9 + "01")],
)
def test_known_varints(number: int, text: str) -> None:
    assert varint(number).hex() == text
    assert read_varint(bytes.fromhex(text), 0) == (number, len(text) // 2)


def test_known_fields() -> None:
    assert number_field(1, 150).hex() == "089601"
    assert text_field(2, "testing").hex() == "120774657374696e67"
    assert bytes_field(16, b"").hex() == "820100"


@given(UINT64, st.binary(max_size=10))
def test_a_varint_ends_where_it_ends(number: int, rest: bytes) -> None:
    raw = b"\xff" + varint(number) + rest
    assert read_varint(raw, 1) == (number, len(raw) - len(rest))


@pytest.mark.parametrize("text", ["", "80", "8000", "ff" * 9, "ff" * 9 + "02", "ff" * 10 + "01"])
def test_other_varints_are_refused(text: str) -> None:
    with pytest.raises(MalformedMessage, match="no varint"):
        read_varint(bytes.fromhex(text), 0)


@given(st.lists(st.tuples(st.integers(1, 2**29 - 1), UINT64 | st.binary(max_size=200)), max_size=6))
def test_fields_come_back(pairs: list[tuple[int, int | bytes]]) -> None:
    raw = b"".join(
        number_field(field, value) if isinstance(value, int) else bytes_field(field, value)
        for field, value in pairs
    )
    fields: dict[int, list[int | bytes]] = {}
    for field, value in pairs:
        fields.setdefault(field, []).append(value)
    assert read_fields(raw) == fields


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_malformed(raw: bytes) -> None:
    with suppress(MalformedMessage):
        read_fields(raw)


def test_fields_of_fixed_size_are_passed_over() -> None:
    raw = bytes.fromhex("090102030405060708" + "1501020304") + number_field(3, 7)
    message = Reader("a message", raw)
    assert message.number(3) == 7
    assert message.has(1)
    assert not message.has(4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0a05616263", "5 bytes are announced, 3 are there"),
        ("0901", "8 bytes are announced"),
        ("0b", "kind 3"),
        ("0f", "kind 7"),
        ("0001", "number 0"),
        ("08", "no varint"),
    ],
)
def test_other_fields_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        read_fields(bytes.fromhex(text))


def test_a_reader_names_what_is_wrong() -> None:
    raw = number_field(1, 2) + text_field(2, "a") + text_field(2, "b") + bytes_field(3, b"\xff")
    message = Reader("a thing", raw)
    assert message.several(2) == [b"a", b"b"]
    assert message.several(9) == []
    for read, complaint in (
        (lambda: message.number(2), "a thing has field 2 once, not 2 times"),
        (lambda: message.number(4), "a thing has field 4 once, not 0 times"),
        (lambda: message.number(3), "field 3 is a number"),
        (lambda: message.blob(1), "field 1 is bytes"),
        (lambda: message.several(1), "field 1 is bytes"),
        (lambda: message.flag(1), "field 1 is 0 or 1, not 2"),
        (lambda: message.text(3), "no UTF-8"),
        (lambda: Reader("a thing", raw, (1, 2)), "a thing has no field 3"),
    ):
        with pytest.raises(MalformedMessage, match=complaint):
            read()
