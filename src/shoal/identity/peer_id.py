"""Peer ids as libp2p writes them: the public key itself, wrapped, never hashed.

    00 25            identity multihash of 37 bytes
      08 02          protobuf PublicKey, field 1 (type): Secp256k1
      12 21 ...      field 2 (data): the compressed point, 33 bytes

libp2p hashes only keys that serialise to more than 42 bytes (libp2p specs, peer-ids, "Peer Ids"),
so a secp256k1 peer id always leads back to its key. The wrapping has one form only, since libp2p
asks for minimal, ordered protobuf ("Keys"): a fixed prefix is the whole parser.
"""

from __future__ import annotations

from typing import NewType

from shoal.base.errors import MalformedMessage, UsageError

PeerId = NewType("PeerId", bytes)

_PREFIX = bytes.fromhex("002508021221")
_POINT_BYTES = 33
PEER_ID_BYTES = len(_PREFIX) + _POINT_BYTES


def peer_id_of_point(compressed: bytes) -> PeerId:
    """Wrap the 33 bytes of a compressed secp256k1 point."""
    if len(compressed) != _POINT_BYTES:
        raise UsageError(f"a compressed point has {_POINT_BYTES} bytes, not {len(compressed)}")
    return PeerId(_PREFIX + compressed)


def point_of_peer_id(peer: PeerId) -> bytes:
    """The compressed point inside a peer id."""
    return peer[len(_PREFIX) :]


def peer_id_of_bytes(raw: bytes) -> PeerId:
    """Check that bytes from a peer are wrapped as a secp256k1 peer id (not: that a key exists)."""
    if len(raw) != PEER_ID_BYTES or not raw.startswith(_PREFIX):
        raise MalformedMessage(
            f"a secp256k1 peer id has {PEER_ID_BYTES} bytes from {_PREFIX.hex()} on,"
            f" this has {len(raw)}: {raw[:PEER_ID_BYTES].hex()}"
        )
    return PeerId(raw)


def parse_peer_id(text: str) -> PeerId:
    """Read the base58btc text of a secp256k1 peer id."""
    try:
        return peer_id_of_bytes(decode(text))
    except (UsageError, MalformedMessage) as error:
        raise UsageError(
            f"{text[:DIGITS_MAX]!r} is not a secp256k1 peer id (16Uiu2HA...): {error}"
        ) from error


def show_peer_id(peer: PeerId) -> str:
    """The peer id as people write it."""
    return encode(peer)


# base58btc: bytes as text without 0, O, I and l. A leading zero byte is a leading 1.


# Converting takes time quadratic in the length; a peer id has 53 digits, a CID fewer.
DIGITS_MAX = 128

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUE = {digit: value for value, digit in enumerate(_ALPHABET)}


def encode(raw: bytes) -> str:
    """Bytes as base58btc text."""
    number = int.from_bytes(raw, "big")
    digits = []
    while number:
        number, value = divmod(number, 58)
        digits.append(_ALPHABET[value])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(digits))


def decode(text: str) -> bytes:
    """The bytes that encode to this text; UsageError if there are none."""
    if len(text) > DIGITS_MAX:
        raise UsageError(f"base58 text has at most {DIGITS_MAX} digits, this one {len(text)}")
    number = 0
    for digit in text:
        value = _VALUE.get(digit)
        if value is None:
            raise UsageError(f"{digit!r} in {text!r} is no base58 digit")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
