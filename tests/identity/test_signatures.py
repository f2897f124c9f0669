"""Signatures: Ethereum's own, recovered and verified; every other form of them refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import coincurve
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import BadSignature
from shoal.base.ids import NodeId, parse_node_id
from shoal.identity import (
    SIGNATURE_BYTES,
    PrivateKey,
    SeededEntropy,
    keccak256,
    recover,
    signatures,
    verify,
)

from .strategies import GROUP_ORDER, bodies, private_key, private_keys

KEY, OTHER = private_key(1), private_key(2)
BODY = b"a body"
SIGNATURE = KEY.sign(BODY)


def spell(r: int, s: int, v: int) -> bytes:
    return r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([v])


def parts(signature: bytes) -> tuple[int, int, int]:
    r, s = signature[:32], signature[32:64]
    return int.from_bytes(r, "big"), int.from_bytes(s, "big"), signature[64]


# EIP-155, "Example": the transaction as signed, under the key 46...46 (its v of 37 is our 0).
EIP_155_BODY = bytes.fromhex(
    "ec098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a764000080018080"
)
EIP_155_SIGNATURE = spell(
    18515461264373351373200002665853028612451056578545711640558177340181847433846,
    46948507304638947509940763649030358759909902576025900602547168820602576006531,
    0,
)
# The web3.js manual, accounts.sign("Some data"), spelled out as EIP-191 (its v of 28 is our 1).
WEB3_KEY = 0x4C0883A69102937D6231471B5DBB6204FE5129617082792AE468D01A3F362318
WEB3_BODY = b"\x19Ethereum Signed Message:\n9Some data"
WEB3_SIGNATURE = bytes.fromhex(
    "b91467e570a6466aa9e9876cbcd013baba02900b8979d43fe208a4a4f339f5fd"
    "6007e74cd82e037b800186422fc2da167c747ef045e5d18a5f5d4300f8e1a029"
    "01"
)


@pytest.mark.parametrize(
    ("key", "address", "body", "signature"),
    [
        (
            private_key(int("46" * 32, 16)),
            "0x9d8A62f656a8d1615C1294fd71e9CFb3E4855A4F",
            EIP_155_BODY,
            EIP_155_SIGNATURE,
        ),
        (
            private_key(WEB3_KEY),
            "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23",
            WEB3_BODY,
            WEB3_SIGNATURE,
        ),
    ],
    ids=["EIP-155", "web3.js"],
)
def test_known_signatures(key: PrivateKey, address: str, body: bytes, signature: bytes) -> None:
    assert key.sign(body) == signature
    assert recover(body, signature) == parse_node_id(address)
    assert verify(parse_node_id(address), body, signature)


@given(private_keys, bodies)
def test_what_a_key_signs_names_that_key(key: PrivateKey, body: bytes) -> None:
    signature = key.sign(body)
    r, s, v = parts(signature)
    assert len(signature) == SIGNATURE_BYTES
    assert 0 < r < GROUP_ORDER
    assert 0 < s <= GROUP_ORDER // 2
    assert v in (0, 1)
    assert signature == key.sign(body), "the same body, the same bytes"
    assert recover(body, signature) == key.address
    assert verify(key.address, body, signature)


@given(private_keys, bodies, bodies)
def test_a_signature_holds_for_its_body_and_signer_only(
    key: PrivateKey, body: bytes, other: bytes
) -> None:
    signature = key.sign(body)
    assert verify(key.address, other, signature) == (body == other)
    assert not verify(NodeId(bytes(20)), body, signature)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 66, 130, 100_000])
def test_other_lengths_are_no_signature(size: int) -> None:
    signature = (SIGNATURE * 2000)[:size]
    with pytest.raises(BadSignature, match=f"65 bytes, not {size}"):
        recover(BODY, signature)
    assert not verify(KEY.address, BODY, signature)


@pytest.mark.parametrize("v", [2, 3, 4, 27, 28, 37, 255])
def test_the_last_byte_has_one_spelling(v: int) -> None:
    with pytest.raises(BadSignature, match=f"0 or 1, not {v}"):
        recover(BODY, SIGNATURE[:64] + bytes([v]))


def test_the_mirror_image_of_a_signature_is_refused() -> None:
    # (r, n - s, 1 - v) satisfies the same equation, and anyone can compute it.
    r, s, v = parts(SIGNATURE)
    mirrored = spell(r, GROUP_ORDER - s, 1 - v)
    raw = coincurve.PublicKey.from_signature_and_message(mirrored, keccak256(BODY), hasher=None)
    assert raw.format() == KEY.public.to_bytes(), "curve arithmetic alone accepts it"
    with pytest.raises(BadSignature, match="upper half"):
        recover(BODY, mirrored)
    assert not verify(KEY.address, BODY, mirrored)


def test_the_other_v_is_the_same_signature() -> None:
    r, s, v = parts(SIGNATURE)
    assert recover(BODY, spell(r, s, 1 - v)) != KEY.address
    assert verify(KEY.address, BODY, spell(r, s, 1 - v))
    assert not verify(KEY.address, BODY, spell(r, s, 2))


@given(st.integers(0, 64), st.integers(1, 255))
def test_the_verdict_does_not_depend_on_who_is_known(index: int, change: int) -> None:
    altered = bytearray(SIGNATURE)
    altered[index] ^= change
    verdicts = []
    for known in (False, True):
        signatures._keys.clear()
        if known:
            assert verify(KEY.address, BODY, SIGNATURE)
        verdicts.append(
            [
                verify(KEY.address, BODY, bytes(altered)),
                verify(OTHER.address, BODY, SIGNATURE),
                verify(KEY.address, BODY + b"!", SIGNATURE),
            ]
        )
    assert verdicts[0] == verdicts[1]
    assert verdicts[0] == [index == 64 and altered[64] <= 1, False, False]


def test_the_memory_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_KEYS_MAX", 3)
    for number in range(10):
        key = PrivateKey.generate(SeededEntropy(f"signer {number}"))
        assert verify(key.address, BODY, key.sign(BODY))
        assert verify(key.address, BODY, key.sign(BODY))
        assert len(signatures._keys) <= 3


def test_half_the_order_is_the_last_s_that_counts() -> None:
    r, _, v = parts(SIGNATURE)
    assert len(recover(BODY, spell(r, GROUP_ORDER // 2, v))) == 20
    with pytest.raises(BadSignature, match="upper half"):
        recover(BODY, spell(r, GROUP_ORDER // 2 + 1, v))


@pytest.mark.parametrize("v", [0, 1])
@pytest.mark.parametrize(
    ("r", "s"),
    [
        (0, 0),
        (0, 1),
        (1, 0),
        (GROUP_ORDER, 1),
        (GROUP_ORDER + 1, 1),
        (2**256 - 1, 1),
        (1, GROUP_ORDER),
        (1, 2**256 - 1),
        (5, 1),  # 5 is the x of no point
    ],
)
def test_numbers_out_of_range_are_no_signature(r: int, s: int, v: int) -> None:
    with pytest.raises(BadSignature):
        recover(BODY, spell(r, s, v))
    assert not verify(KEY.address, BODY, spell(r, s, v))


signature_like = st.one_of(
    st.binary(max_size=140),
    st.binary(min_size=65, max_size=65),
    st.binary(min_size=64, max_size=64).map(lambda raw: raw + b"\0"),
    st.tuples(st.integers(0, 64), st.integers(1, 255)).map(
        lambda flip: bytes(b ^ flip[1] if i == flip[0] else b for i, b in enumerate(SIGNATURE))
    ),
)


@given(bodies, signature_like)
def test_any_bytes_are_a_signature_or_a_bad_one(body: bytes, signature: bytes) -> None:
    assert not verify(KEY.address, body, signature)
    with suppress(BadSignature):
        assert len(recover(body, signature)) == 20


@given(bodies, st.binary(min_size=64, max_size=64), st.integers(0, 1))
def test_recovery_agrees_with_coincurves_own(body: bytes, numbers: bytes, v: int) -> None:
    # recover calls coincurve's C library below its public classes; they remain the reference.
    signature = numbers + bytes([v])
    try:
        point = coincurve.PublicKey.from_signature_and_message(
            signature, keccak256(body), hasher=None
        )
        expected = keccak256(point.format(compressed=False)[1:])[12:]
    except ValueError:
        expected = None
    if parts(signature)[1] > GROUP_ORDER // 2:
        expected = None
    try:
        assert recover(body, signature) == expected
    except BadSignature:
        assert expected is None


def test_threads_share_the_library() -> None:
    bodies = [number.to_bytes(4, "big") for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        signatures = list(pool.map(KEY.sign, bodies))
        assert set(pool.map(recover, bodies, signatures)) == {KEY.address}
