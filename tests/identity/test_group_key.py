"""Sealed content: what went in comes out, in its own place, under its own key, and nowhere else."""

from __future__ import annotations

import pickle

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule

from shoal.base.errors import DecryptionFailed, IdentityError, UsageError
from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity import SeededEntropy
from shoal.identity.group_key import (
    COUNTER_BYTES,
    GROUP_KEY_BYTES,
    KEY_ID_BYTES,
    SEALED_OVERHEAD_BYTES,
    GroupKey,
    Sealer,
    sealed_with,
)
from shoal.identity.message_body import CONTENT_BYTES_MAX, ENCRYPTED
from tests.strategies import message_ids

STREAM = StreamId("0x" + "11" * 20 + "/private")
ALICE = NodeId(b"a" * 20)
SECRET = bytes(range(GROUP_KEY_BYTES))
ID = MessageId(STREAM, 0, 1_700_000_000_000, 0, ALICE, "c")
content_types = st.integers(0, 255)


def key(secret: bytes = SECRET, id: MessageId = ID) -> GroupKey:
    return GroupKey(id.stream, NodeId(id.publisher), secret)


@given(message_ids, content_types, st.binary(max_size=300), st.integers(0, 2**64 - 1))
def test_what_is_sealed_can_be_opened(
    id: MessageId, content_type: int, content: bytes, counter: int
) -> None:
    sealed = key(id=id).seal_at(counter, id, content_type, content)
    assert len(sealed) == len(content) + SEALED_OVERHEAD_BYTES
    assert sealed_with(sealed) == key(id=id).id
    assert key(id=id).open(id, sealed) == (content_type, content)


@given(st.binary(max_size=50), st.data())
def test_any_changed_bit_is_noticed(content: bytes, data: st.DataObject) -> None:
    sealed = bytearray(key().seal_at(7, ID, 0, content))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecryptionFailed):
        key().open(ID, bytes(sealed))


@given(message_ids)
def test_a_body_opens_in_its_own_place_only(other: MessageId) -> None:
    sealed = key().seal_at(0, ID, 0, b"content")
    if other != ID:
        with pytest.raises(DecryptionFailed):
            key().open(other, sealed)


@given(st.binary(max_size=SEALED_OVERHEAD_BYTES + 3))
def test_bytes_that_nobody_sealed_do_not_open(noise: bytes) -> None:
    with pytest.raises(DecryptionFailed):
        key().open(ID, noise)


def test_the_layout_is_key_counter_ciphertext() -> None:
    sealed = key().seal_at(258, ID, 2, b"text")
    assert sealed[:KEY_ID_BYTES] == key().id
    counter = sealed[KEY_ID_BYTES : KEY_ID_BYTES + COUNTER_BYTES]
    assert counter == bytes([0, 0, 0, 0, 0, 0, 1, 2])
    associated = (
        b"\x96" + _msgpack_str(STREAM) + b"\x00\xcf" + (1_700_000_000_000).to_bytes(8, "big")
    )
    associated += b"\x00\xc4\x14" + ALICE + b"\xa1c"
    plain = AESGCM(SECRET).decrypt(
        bytes(4) + counter, sealed[KEY_ID_BYTES + COUNTER_BYTES :], associated
    )
    assert plain == b"\x02text"


def _msgpack_str(text: str) -> bytes:
    return b"\xd9" + bytes([len(text)]) + text.encode()


def test_a_key_is_named_by_its_place_and_itself() -> None:
    names = {
        key().id,
        key(SECRET[::-1]).id,
        GroupKey(StreamId(STREAM + "2"), ALICE, SECRET).id,
        GroupKey(STREAM, NodeId(b"b" * 20), SECRET).id,
    }
    assert len(names) == 4
    assert {len(name) for name in names} == {KEY_ID_BYTES}
    assert key().id.hex() == "ebdae57b74e051cda34b63bee7667661"


def test_a_sealer_counts_and_keeps_to_its_place() -> None:
    sealer = Sealer(key())
    kinds, sealed = zip(*(sealer.seal(ID, 0, b"same") for _ in range(3)), strict=True)
    assert set(kinds) == {ENCRYPTED}
    assert [int.from_bytes(one[16:24]) for one in sealed] == [0, 1, 2]
    elsewhere = MessageId(StreamId("0x/other"), 0, 1, 0, ALICE, "c")
    with pytest.raises(UsageError, match="another place"):
        sealer.seal(elsewhere, 0, b"")
    most = CONTENT_BYTES_MAX - SEALED_OVERHEAD_BYTES
    assert len(sealer.seal(ID, 0, bytes(most))[1]) == CONTENT_BYTES_MAX
    with pytest.raises(UsageError, match=f"the limit is {most}"):
        sealer.seal(ID, 0, bytes(most + 1))


def test_a_key_shows_nothing_and_does_not_travel() -> None:
    assert SECRET.hex() not in repr(key())
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(key())
    with pytest.raises(IdentityError, match="32 bytes"):
        key(b"short")


class Incarnations(RuleBasedStateMachine):
    """Processes of one publisher come and go; no two messages have one key and one nonce."""

    sealers = Bundle("sealers")

    def __init__(self) -> None:
        super().__init__()
        self.entropy = SeededEntropy("incarnations")
        self.used: set[bytes] = set()

    @rule(target=sealers)
    def start(self) -> Sealer:
        return Sealer(GroupKey.generate(STREAM, ALICE, self.entropy))

    @rule(sealer=sealers, count=st.integers(1, 5))
    def publish(self, sealer: Sealer, count: int) -> None:
        for _ in range(count):
            _, sealed = sealer.seal(ID, 0, b"")
            key_and_nonce = sealed[: KEY_ID_BYTES + COUNTER_BYTES]
            assert key_and_nonce not in self.used
            self.used.add(key_and_nonce)


TestIncarnations = Incarnations.TestCase
TestIncarnations.settings = settings(max_examples=15, stateful_step_count=20)
