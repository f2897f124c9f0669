"""Peer ids: libp2p's own vectors, there and back."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, UsageError
from shoal.identity import (
    PEER_ID_BYTES,
    PeerId,
    PrivateKey,
    PublicKey,
    parse_peer_id,
    peer_id,
    peer_id_of_bytes,
    show_peer_id,
)
from shoal.identity.peer_id import peer_id_of_point

from .strategies import private_key, private_keys

# libp2p specs, peer-ids, "Test vectors": the secp256k1 key pair as protobuf messages. The text is
# what the tests of several libp2p implementations expect for it.
SPEC_SECRET = 0x53DADF1D5A164D6B4ACDB15E24AA4C5B1D3461BDBD42ABEDB0A4404D56CED8FB
SPEC_PUBLIC_MESSAGE = "08021221037777e994e452c21604f91de093ce415f5432f701dd8cd1a7a6fea0e630bfca99"
SPEC_TEXT = "16Uiu2HAmLhLvBoYaoZfaMUKuibM6ac163GwKY74c5kiSLg5KvLpY"
# The test key of the AEA framework, and the peer id that its go-libp2p node logs for it.
AEA_SECRET = 0x54562EB807D2F80DF8151DB0A394CAC72E16435A5F64275C277CAE70308E8B24
AEA_TEXT = "16Uiu2HAmMC2tJMRaRTeWSESv8mArbq6jipJCD4adSBcBLsbc7cSL"


def test_the_vector_of_the_specification() -> None:
    public = private_key(SPEC_SECRET).public
    assert public.peer_id.hex() == "0025" + SPEC_PUBLIC_MESSAGE
    assert show_peer_id(public.peer_id) == SPEC_TEXT
    assert PublicKey.from_peer_id(parse_peer_id(SPEC_TEXT)) == public


def test_a_second_known_pair() -> None:
    assert show_peer_id(private_key(AEA_SECRET).public.peer_id) == AEA_TEXT


@given(private_keys)
def test_a_peer_id_leads_back_to_the_key(key: PrivateKey) -> None:
    peer = key.public.peer_id
    text = show_peer_id(peer)
    assert len(peer) == PEER_ID_BYTES
    assert text.startswith("16Uiu2HA")
    assert parse_peer_id(text) == peer
    assert peer_id_of_bytes(bytes(peer)) == peer
    assert PublicKey.from_peer_id(peer).address == key.address


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(39),
        bytes.fromhex("0025" + SPEC_PUBLIC_MESSAGE)[:-1],
        bytes.fromhex("0025" + SPEC_PUBLIC_MESSAGE) + b"\0",
        bytes.fromhex("0025" + SPEC_PUBLIC_MESSAGE.replace("0802", "0801", 1)),  # Ed25519
        bytes.fromhex("1220" + "00" * 37),  # a sha256 multihash
    ],
)
def test_other_bytes_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        peer_id_of_bytes(raw)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x7e5f4552091a69125d5dfcb7b8c2659029395bdf",
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",  # an RSA peer: hashed
        "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq",  # an Ed25519 peer
        SPEC_TEXT[:-1],
        SPEC_TEXT + "1",
        "1" + SPEC_TEXT,
        SPEC_TEXT.replace("A", "0"),
        "1" * 1_000_000,
    ],
)
def test_other_text_is_named_in_the_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a secp256k1 peer id") as caught:
        parse_peer_id(text)
    assert repr(text[:40])[:-1] in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_well_wrapped_peer_id_may_still_hold_no_key() -> None:
    peer = peer_id_of_bytes(bytes.fromhex("002508021221") + b"\x02" + bytes(31) + b"\x05")
    with pytest.raises(MalformedMessage, match="no point"):
        PublicKey.from_peer_id(peer)
    with pytest.raises(MalformedMessage):
        PublicKey.from_peer_id(PeerId(b""))


def test_only_compressed_points_are_wrapped() -> None:
    with pytest.raises(UsageError, match="33 bytes, not 65"):
        peer_id_of_point(bytes(65))


# draft-msporny-base58, "Test Vectors"
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"Hello World!", "2NEpo7TZRRrLZSi2U"),
        (
            b"The quick brown fox jumps over the lazy dog.",
            "USm3fpXnKG5EUBx2ndxBDMPVciP5hGey2Jh4NDv6gmeo1LkMeiKrLJUUBk6Z",
        ),
        (bytes.fromhex("0000287fb4cd"), "11233QC4"),
        (b"", ""),
        (b"\0", "1"),
        (b"\0\0\0", "111"),
    ],
)
def test_known_base58(raw: bytes, text: str) -> None:
    assert peer_id.encode(raw) == text
    assert peer_id.decode(text) == raw


@given(st.binary(max_size=80))
def test_base58_survives_the_round_trip(raw: bytes) -> None:
    assert peer_id.decode(peer_id.encode(raw)) == raw


@given(st.text(max_size=150))
def test_any_text_is_base58_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert peer_id.encode(peer_id.decode(text)) == text
