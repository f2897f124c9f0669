"""Values are believed after a check, and not before."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.ids import NodeId
from shoal.identity import PrivateKey, SeededEntropy, verify_signed
from shoal.kernel.effects import Effect, Verify
from shoal.kernel.inputs import Verified
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.validators import (
    Checking,
    Judged,
    content_key,
    judge_any,
    judge_content,
    judge_record,
    read_record,
    sign_record,
)

KEY = PrivateKey.generate(SeededEntropy("dht"))
SIGNER = KEY.address


def record(number: int = 1, key: bytes = b"key") -> bytes:
    return sign_record(SIGNER, KEY.sign, key, number, b"payload")


class Asked:
    """What a check came to."""

    def __init__(self, config: DhtConfig | None = None) -> None:
        self.checking = Checking(judge_any, config or DhtConfig())
        self.results: list[Judged | None] = []

    def check(self, key: bytes, value: bytes) -> list[Effect]:
        return self.checking.check(key, value, self._then, 0)

    def _then(self, judged: Judged | None, now_ns: int) -> list[Effect]:
        self.results.append(judged)
        return []


def test_content_is_judged_at_once() -> None:
    asked = Asked()
    assert asked.check(content_key(b"value"), b"value") == []
    assert asked.check(content_key(b"value"), b"other") == []
    assert asked.results == [Judged(), None]


def test_a_signature_is_checked_once() -> None:
    asked = Asked()
    (verify,) = asked.check(b"key", record(7))
    assert isinstance(verify, Verify)
    assert verify.signer == SIGNER
    assert verify_signed(verify.signer, verify.signed)
    assert asked.results == []
    asked.checking.verified(Verified(verify.token, True), 0)
    assert asked.check(b"key", record(7)) == []
    assert [one and one.number for one in asked.results] == [7, 7]


def test_a_bad_signature_is_checked_again() -> None:
    asked = Asked()
    for _ in range(2):
        (verify,) = asked.check(b"key", record())
        assert isinstance(verify, Verify)
        asked.checking.verified(Verified(verify.token, False), 0)
    assert asked.results == [None, None]


def test_checks_are_bounded() -> None:
    asked = Asked(DhtConfig(checks_max=2))
    for number in range(2):
        assert not asked.checking.busy
        asked.check(b"key", record(number))
    assert asked.checking.busy


def test_a_record_belongs_to_its_key() -> None:
    assert judge_record(b"key", record()) is not None
    assert judge_record(b"other", record()) is None
    assert judge_any(b"key", b"neither") is None


@settings(max_examples=200)
@given(st.data())
def test_one_flipped_bit_is_found(data: st.DataObject) -> None:
    value = record()
    at = data.draw(st.integers(0, len(value) * 8 - 1))
    changed = bytearray(value)
    changed[at // 8] ^= 1 << at % 8
    judged = judge_record(b"key", bytes(changed))
    if judged is not None:
        assert judged.signer is not None
        # Which of two keys to try is a hint, no part of what was signed: decision 0005.
        hint = value.index(b"shoal/dht/record") - 3
        assert verify_signed(judged.signer, judged.signed) == (at == 8 * hint)


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=64))
def test_no_bytes_make_a_judge_raise(value: bytes, key: bytes) -> None:
    judge_any(key, value)
    read_record(value)
    assert (judge_content(key, value) is None) == (content_key(value) != key)


def test_a_record_can_be_read_back() -> None:
    read = read_record(record(5))
    assert read is not None
    assert read[0] == NodeId(SIGNER)
    assert (read[1].key, read[1].number, read[1].payload) == (b"key", 5, b"payload")
