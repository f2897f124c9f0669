"""Key pairs: Ethereum's addresses, the encodings taken, and a secret that stays where it is."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import IdentityError, MalformedMessage
from shoal.base.ids import show_node_id
from shoal.identity import PrivateKey, PublicKey, SeededEntropy

from .strategies import GROUP_ORDER, private_key, private_keys

GENERATOR = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"


@pytest.mark.parametrize(
    ("scalar", "address"),
    [
        (1, "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf"),
        (2, "0x2B5AD5c4795c026514f8317c7a215E218DcCD6cF"),
        # EIP-155's example key
        (int("46" * 32, 16), "0x9d8A62f656a8d1615C1294fd71e9CFb3E4855A4F"),
    ],
)
def test_the_address_is_ethereums(scalar: int, address: str) -> None:
    key = private_key(scalar)
    assert show_node_id(key.address) == address.lower()
    assert key.public.address == key.address


def test_the_key_1_is_the_generator() -> None:
    assert private_key(1).public.to_bytes().hex() == GENERATOR


@given(private_keys)
def test_keys_survive_their_encodings(key: PrivateKey) -> None:
    again = PrivateKey.from_bytes(key.secret_bytes())
    assert again.public == key.public
    assert PublicKey.from_bytes(key.public.to_bytes()) == key.public
    assert hash(PublicKey.from_bytes(key.public.to_bytes())) == hash(key.public)


def test_both_encodings_of_a_point_are_one_key() -> None:
    y = "483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"
    full = PublicKey.from_bytes(bytes.fromhex("04" + GENERATOR[2:] + y))
    assert full == private_key(1).public
    assert full != private_key(2).public


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        bytes(33),
        bytes(65),
        bytes.fromhex(GENERATOR)[:-1],
        bytes.fromhex(GENERATOR) + b"\0",
        b"\x04" + bytes.fromhex(GENERATOR)[1:],  # the prefix of the other length
        b"\x02" + b"\xff" * 32,  # x beyond the field
        b"\x02" + bytes(31) + b"\x05",  # 5 is the x of no point
        # the hybrid encoding of the generator: right, but a second spelling
        bytes.fromhex("06" + GENERATOR[2:])
        + bytes.fromhex("483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"),
    ],
)
def test_other_bytes_are_no_public_key(encoded: bytes) -> None:
    with pytest.raises(MalformedMessage):
        PublicKey.from_bytes(encoded)


@given(st.binary(max_size=70))
def test_bytes_from_a_peer_are_a_key_or_malformed(encoded: bytes) -> None:
    with suppress(MalformedMessage):
        assert len(PublicKey.from_bytes(encoded).address) == 20


@pytest.mark.parametrize(
    "secret",
    [b"", bytes(31), bytes(32), bytes(33), GROUP_ORDER.to_bytes(32, "big"), b"\xff" * 32],
)
def test_other_bytes_are_no_private_key_and_are_not_shown(secret: bytes) -> None:
    with pytest.raises(IdentityError) as caught:
        PrivateKey.from_bytes(secret)
    assert not secret or secret.hex() not in str(caught.value)
    assert caught.value.__cause__ is None


def test_generated_keys_come_from_the_entropy_port() -> None:
    first, again = SeededEntropy(1), SeededEntropy(1)
    assert PrivateKey.generate(first).public == PrivateKey.generate(again).public
    assert PrivateKey.generate(first).public != PrivateKey.generate(SeededEntropy(1)).public


def test_a_source_that_gives_only_zeros_is_an_error() -> None:
    class Broken:
        def token(self, size: int) -> bytes:
            return bytes(size)

    with pytest.raises(IdentityError, match="Broken gives no usable bytes"):
        PrivateKey.generate(Broken())


def test_the_secret_is_not_shown() -> None:
    key = private_key(0xC0FFEE)
    for text in (repr(key), str(key), f"{key}", repr([key]), repr({"key": key})):
        assert "c0ffee" not in text.lower()
        assert str(0xC0FFEE) not in text
        assert show_node_id(key.address) in text


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_secret_is_not_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="create_keystore"):
        pickle.dumps({"node": private_key(1)}, protocol)


def test_the_secret_is_not_copied() -> None:
    with pytest.raises(TypeError, match="create_keystore"):
        copy.deepcopy([private_key(1)])


def test_public_keys_are_pickled_and_shown() -> None:
    public = private_key(1).public
    assert pickle.loads(pickle.dumps(public)) == public
    assert repr(public) == f"PublicKey({GENERATOR})"
