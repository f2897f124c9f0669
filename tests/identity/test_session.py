"""Numbers of sessions grow with each start, whatever the clock says; their records prove that."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.session_record import (
    NUMBER_MAX,
    SESSION_TAG,
    SessionRecord,
    begin_session,
    decode_session,
    encode_session,
)

KEY = PrivateKey.generate(SeededEntropy("session"))
OTHER = PrivateKey.generate(SeededEntropy("other"))


@given(st.lists(st.integers(0, 1 << 42), min_size=2, max_size=8))
def test_a_later_start_has_a_higher_number_whatever_the_clock_says(clocks_ms: list[int]) -> None:
    entropy, above = SeededEntropy("starts"), 0
    for now_ms in clocks_ms:
        record = begin_session(KEY, entropy, now_ms, above)
        assert above < record.number <= NUMBER_MAX
        assert record.is_signed_by(KEY.address)
        assert not record.is_signed_by(OTHER.address)
        above = record.number


def test_two_copies_that_start_at_once_differ() -> None:
    entropy = SeededEntropy("copies")
    numbers = {begin_session(KEY, entropy, 7, 1 << 50).number for _ in range(10)}
    assert len(numbers) == 10


def test_what_is_signed_is_tag_and_number() -> None:
    record = begin_session(KEY, SeededEntropy("bytes"), 1_767_225_600_000)
    assert record.number >> 20 == 1_767_225_600_000
    assert record.signature == KEY.sign(SESSION_TAG + record.number.to_bytes(8))
    assert SESSION_TAG == b"shoal/session/1\0"
    assert decode_session(encode_session(record)) == record


@pytest.mark.parametrize(
    "fields",
    [
        [0, bytes(65)],
        [1, b""],
        [1, bytes(64)],
        [1, bytes(66)],
        [-1, bytes(65)],
        [1 << 63, bytes(65)],
    ],
)
def test_a_record_out_of_bounds_is_malformed(fields: list[object]) -> None:
    with pytest.raises(MalformedMessage):
        decode_session(msgspec.msgpack.encode(fields))
    assert not SessionRecord(3, bytes(65)).is_signed_by(KEY.address)
