"""Sealing: what went in comes out, under the same key and associated data only."""

from __future__ import annotations

import pickle

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import DecryptionFailed, IdentityError
from shoal.identity import CIPHER_KEY_BYTES, SEAL_OVERHEAD_BYTES, Cipher, SeededEntropy

KEY = bytes(range(CIPHER_KEY_BYTES))
CIPHER = Cipher(KEY)


def seal(plaintext: bytes, associated: bytes, seed: int = 1) -> bytes:
    return CIPHER.seal(plaintext, associated, SeededEntropy(seed))


@given(st.binary(), st.binary())
def test_what_is_sealed_can_be_opened(plaintext: bytes, associated: bytes) -> None:
    sealed = seal(plaintext, associated)
    assert len(sealed) == len(plaintext) + SEAL_OVERHEAD_BYTES
    assert CIPHER.open(sealed, associated) == plaintext


def test_a_known_vector() -> None:
    # McGrew and Viega, "The Galois/Counter Mode of Operation", test case 16 (AES-256).
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308")
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    associated = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    plaintext = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    sealed = bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        "76fc6ece0f4e1768cddf8853bb2d551b"
    )
    assert Cipher(key).open(nonce + sealed, associated) == plaintext


def test_the_nonce_comes_from_the_entropy_port_and_goes_in_front() -> None:
    nonce = SeededEntropy(5).token(12)
    assert seal(b"text", b"id", seed=5) == nonce + AESGCM(KEY).encrypt(nonce, b"text", b"id")


def test_equal_texts_are_sealed_differently() -> None:
    entropy = SeededEntropy(1)
    assert CIPHER.seal(b"text", b"", entropy) != CIPHER.seal(b"text", b"", entropy)


@given(st.binary(max_size=50), st.data())
def test_any_changed_bit_is_noticed(plaintext: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(plaintext, b"id"))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecryptionFailed):
        CIPHER.open(bytes(sealed), b"id")


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_any_other_bytes_fail_in_one_way(sealed: bytes, associated: bytes) -> None:
    with pytest.raises(DecryptionFailed):
        CIPHER.open(sealed, associated)


def test_other_associated_data_or_another_key_fails() -> None:
    sealed = seal(b"text", b"message 1")
    with pytest.raises(DecryptionFailed):
        CIPHER.open(sealed, b"message 2")
    with pytest.raises(DecryptionFailed):
        Cipher(KEY[::-1]).open(sealed, b"message 1")


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33, 64])
def test_a_key_has_32_bytes(size: int) -> None:
    with pytest.raises(IdentityError, match=f"32 bytes, this has {size}"):
        Cipher(bytes(size))


def test_the_key_is_neither_shown_nor_pickled() -> None:
    assert repr(CIPHER) == "Cipher(AES-256-GCM)"
    with pytest.raises(TypeError):
        pickle.dumps(CIPHER)
