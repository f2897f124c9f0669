"""DAG-CBOR in its one canonical form: every value has one encoding, and no other is read.

Null, booleans, integers, bytes, text, lists, maps with text keys, and links (tag 42). Lengths and
integers are as short as can be; keys ascend by length, then by bytes. No floats, no indefinite
lengths, no other tags, nothing behind the value.

Why not cbor2: what comes off a link must be refused unless it is canonical. cbor2 reads all of CBOR
(bignums, dates, regular expressions, shared references, ...), so strictness would mean to decode,
encode again and compare, and to trust that none of the rest can be reached or raise something
else. Reading only the canonical form takes a hundred lines, and the rule is in them: decision 0012.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shoal.base.errors import MalformedMessage, UsageError
from shoal.identity.topics.cid import BLOCK_BYTES_MAX, DEPTH_MAX, Cid, cid_of_bytes


class Link(msgspec.Struct, frozen=True, gc=False):
    """A link to another block; a bare Cid would be mere bytes here."""

    cid: Cid


Value: TypeAlias = "bool | int | bytes | str | Link | list[Value] | dict[str, Value] | None"

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP, _TAG, _SIMPLE = range(8)
_FALSE, _TRUE, _NULL = 0xF4, 0xF5, 0xF6
_SIMPLE_VALUES = {_FALSE: False, _TRUE: True, _NULL: None}
_ENCODED_SIMPLE = {value: bytes([byte]) for byte, value in _SIMPLE_VALUES.items()}

_LINK_TAG = 42
# Tag 42 holds 37 bytes: a zero (the multibase prefix of raw bytes) and the CID.
LINK_HEAD = bytes.fromhex("d82a582500")
_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
_ARGUMENTS = [(short, size, 1 << 8 * size) for short, size in _ARGUMENT_BYTES.items()]


# Encoding: for our own values


def encode(value: Value) -> bytes:
    """The canonical bytes; UsageError for what has none."""
    parts: list[bytes] = []
    _write(value, parts, DEPTH_MAX)
    return b"".join(parts)


def _write(value: Value, parts: list[bytes], depth: int) -> None:
    if isinstance(value, bytes):
        parts.append(encode_bytes(value))
    elif isinstance(value, str):
        parts.append(encode_text(value))
    elif isinstance(value, Link):
        parts += LINK_HEAD, value.cid
    elif value is None or isinstance(value, bool):
        parts.append(_ENCODED_SIMPLE[value])
    elif isinstance(value, int):
        parts.append(_head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value))
    elif depth == 0:
        raise UsageError(f"this nests deeper than {DEPTH_MAX} levels: make it flatter")
    elif isinstance(value, dict):
        parts.append(_head(_MAP, len(value)))
        for key, encoded in _in_order(tuple(value)):
            parts.append(encoded)
            _write(value[key], parts, depth - 1)
    elif isinstance(value, list):
        parts.append(_head(_LIST, len(value)))
        for item in value:
            _write(item, parts, depth - 1)
    else:
        raise UsageError(f"{value!r} has no canonical form: write text, bytes or whole numbers")


def _in_order(keys: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    # An encoded key begins with its length: to compare bytes is to compare lengths first.
    encoded = [(key, encode_text(key)) for key in keys]
    return tuple(sorted(encoded, key=lambda each: each[1]))


def encode_bytes(raw: bytes) -> bytes:
    """One item of bytes."""
    return _head(_BYTES, len(raw)) + raw


def encode_text(text: str) -> bytes:
    """One item of text."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} holds half a character: write whole ones") from None
    return _head(_TEXT, len(raw)) + raw


def _head(major: int, argument: int) -> bytes:
    if argument < _SHORT:
        return _SHORT_HEADS[major * _SHORT + argument]  # nearly all of them
    return _long_head(major, argument)


def _long_head(major: int, argument: int) -> bytes:
    first = major << 5
    if argument < 24:
        return bytes((first | argument,))
    for short, size, end in _ARGUMENTS:
        if argument < end:
            return bytes((first | short,)) + argument.to_bytes(size, "big")
    raise UsageError(f"{argument} does not fit 64 bits: write it as bytes")


_SHORT = 256
_SHORT_HEADS = [_long_head(major, argument) for major in range(8) for argument in range(_SHORT)]


# Decoding: of what anybody may have sent


def decode(raw: bytes) -> Value:
    """The value; MalformedMessage unless the bytes are exactly what it encodes to."""
    if len(raw) > BLOCK_BYTES_MAX:
        raise MalformedMessage(f"a block has at most {BLOCK_BYTES_MAX} bytes, this has {len(raw)}")
    value, end = _item(raw, 0, DEPTH_MAX)
    if end != len(raw):
        raise MalformedMessage(f"the value ends after {end} bytes, {len(raw) - end} more follow")
    return value


def _item(raw: bytes, at: int, depth: int) -> tuple[Value, int]:
    major, argument, end = _read_head(raw, at)
    if major in (_BYTES, _TEXT):
        return _string(raw, major, argument, end)
    if major == _UNSIGNED:
        return argument, end
    if major == _NEGATIVE:
        return -1 - argument, end
    if major == _SIMPLE:
        return _SIMPLE_VALUES[raw[at]], end
    if major == _TAG:
        return _link(raw, argument, end)
    if depth == 0:
        raise MalformedMessage(f"byte {at} nests deeper than {DEPTH_MAX} levels")
    if major == _LIST:
        return _list(raw, argument, end, depth - 1)
    return _map(raw, argument, end, depth - 1)


def _read_head(raw: bytes, at: int) -> tuple[int, int, int]:
    """Major type, argument, and where the head ends."""
    if at >= len(raw):
        raise MalformedMessage(f"cut off after {len(raw)} bytes")
    major, short = raw[at] >> 5, raw[at] & 31
    if short < 24:
        if major == _SIMPLE and raw[at] not in _SIMPLE_VALUES:
            raise MalformedMessage(f"byte {at} is {raw[at]:02x}: no value of DAG-CBOR")
        return major, short, at + 1
    size = _ARGUMENT_BYTES.get(short)
    if size is None or major == _SIMPLE:
        what = (
            "a float or another simple value"
            if major == _SIMPLE and size
            else "an indefinite length or no CBOR"
        )
        raise MalformedMessage(f"byte {at} is {raw[at]:02x}: {what}")
    end = at + 1 + size
    if end > len(raw):
        raise MalformedMessage(f"cut off after {len(raw)} bytes")
    argument = int.from_bytes(raw[at + 1 : end], "big")
    if argument < (24 if size == 1 else 1 << 4 * size):
        raise MalformedMessage(f"byte {at}: {argument} could be written shorter")
    return major, argument, end


def _string(raw: bytes, major: int, size: int, at: int) -> tuple[bytes | str, int]:
    end = at + size
    if end > len(raw):
        raise MalformedMessage(f"byte {at}: {size} bytes are announced, {len(raw) - at} are there")
    if major == _BYTES:
        return raw[at:end], end
    try:
        return str(raw[at:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"byte {at}: text is no UTF-8: {error}") from None


def _link(raw: bytes, tag: int, at: int) -> tuple[Link, int]:
    if tag != _LINK_TAG:
        raise MalformedMessage(f"tag {tag} at byte {at}: links are the only tag, {_LINK_TAG}")
    major, size, at = _read_head(raw, at)
    value, end = _string(raw, major, size, at) if major == _BYTES else (b"", at)
    if not isinstance(value, bytes) or value[:1] != b"\0":
        raise MalformedMessage(f"byte {at}: a link is bytes that begin with 00, and its CID")
    return Link(cid_of_bytes(value[1:])), end


def _list(raw: bytes, count: int, at: int, depth: int) -> tuple[list[Value], int]:
    items = []
    for _ in range(count):  # however many are announced: bytes that are not there end it
        item, at = _item(raw, at, depth)
        items.append(item)
    return items, at


def _map(raw: bytes, count: int, at: int, depth: int) -> tuple[dict[str, Value], int]:
    items: dict[str, Value] = {}
    before = b""
    for _ in range(count):
        key, end = _item(raw, at, depth)
        if not isinstance(key, str):
            raise MalformedMessage(f"byte {at}: a key is text, not {type(key).__name__}")
        encoded = raw[at:end]
        if encoded <= before:
            raise MalformedMessage(f"byte {at}: key {key!r} twice, or not in canonical order")
        before = encoded
        items[key], at = _item(raw, end, depth)
    return items, at
