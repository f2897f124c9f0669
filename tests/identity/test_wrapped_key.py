"""A wrapped key is for one reader, and is the key that it is said to be, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.errors import DecryptionFailed, MalformedMessage
from shoal.base.ids import NodeId, StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import (
    GROUP_KEY_BYTES,
    WRAP_BYTES,
    WRAPS_MAX,
    GroupKey,
    Wrap,
    decode_announcement,
    encode_announcements,
    unwrap_key,
    wrap_key,
)
from shoal.identity.message_body import CONTENT_BYTES_MAX
from tests.identity.strategies import private_keys

STREAM = StreamId("0x" + "11" * 20 + "/private")
ALICE = NodeId(b"a" * 20)
READER = PrivateKey.generate(SeededEntropy("reader"))
KEY = GroupKey(STREAM, ALICE, bytes(range(GROUP_KEY_BYTES)))
WRAP = wrap_key(KEY, READER.public, SeededEntropy(1))


@settings(max_examples=30)
@given(private_keys, st.binary(min_size=GROUP_KEY_BYTES, max_size=GROUP_KEY_BYTES), st.integers())
def test_a_reader_unwraps_what_was_wrapped_for_it(
    reader: PrivateKey, secret: bytes, seed: int
) -> None:
    key = GroupKey(STREAM, ALICE, secret)
    wrap = wrap_key(key, reader.public, SeededEntropy(seed))
    assert (wrap.reader, wrap.key, len(wrap.sealed)) == (reader.address, key.id, WRAP_BYTES)
    found = unwrap_key(STREAM, ALICE, key.id, wrap.sealed, reader)
    assert (found.id, found.secret_bytes()) == (key.id, secret)


@given(st.integers(0, WRAP_BYTES * 8 - 1))
def test_any_changed_bit_is_noticed(bit: int) -> None:
    sealed = bytearray(WRAP.sealed)
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DecryptionFailed):
        unwrap_key(STREAM, ALICE, KEY.id, bytes(sealed), READER)


@pytest.mark.parametrize(
    ("stream", "publisher", "key_id", "reader"),
    [
        (StreamId(STREAM + "x"), ALICE, KEY.id, READER),
        (STREAM, NodeId(b"b" * 20), KEY.id, READER),
        (STREAM, ALICE, bytes(16), READER),
        (STREAM, ALICE, KEY.id, PrivateKey.generate(SeededEntropy("other"))),
    ],
)
def test_it_is_nothing_elsewhere(
    stream: StreamId, publisher: NodeId, key_id: bytes, reader: PrivateKey
) -> None:
    with pytest.raises(DecryptionFailed):
        unwrap_key(stream, publisher, key_id, WRAP.sealed, reader)


def test_another_key_under_a_name_is_not_taken() -> None:
    class Liar(GroupKey):
        """Wraps itself as another."""

    liar = Liar(STREAM, ALICE, bytes(GROUP_KEY_BYTES))
    liar.id = KEY.id
    wrap = wrap_key(liar, READER.public, SeededEntropy(2))
    with pytest.raises(DecryptionFailed, match="another key"):
        unwrap_key(STREAM, ALICE, KEY.id, wrap.sealed, READER)


def test_a_wrap_of_this_version_opens_in_later_ones() -> None:
    sealed = bytes.fromhex(
        "036e91965e3c326945a1170323c5c97f071e56e3a6f28a81b008d4a6d40c6a5f60fd7ede09993e1d437f299196"
        "880ffd10d0db3b50c42f191b0f5e18e2fb9b7d85529d3b53afd4eb93ba614bb2db9cf945"
    )
    found = unwrap_key(STREAM, ALICE, KEY.id, sealed, READER)
    assert found.secret_bytes() == KEY.secret_bytes()


def test_two_wraps_of_a_key_differ() -> None:
    entropy = SeededEntropy(3)
    wraps = {wrap_key(KEY, READER.public, entropy).sealed for _ in range(3)}
    assert len(wraps) == 3


@given(st.integers(0, 2 * WRAPS_MAX + 1))
@settings(max_examples=10)
def test_announcements_are_split_and_fit_a_message(count: int) -> None:
    wraps = [Wrap(NodeId(number.to_bytes(20)), KEY.id, WRAP.sealed) for number in range(count)]
    contents = encode_announcements(wraps)
    assert all(len(content) <= CONTENT_BYTES_MAX for content in contents)
    found = [wrap for content in contents for wrap in decode_announcement(content).wraps]
    assert found == wraps


@given(st.binary(max_size=200))
def test_noise_is_no_announcement(noise: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_announcement(noise)
