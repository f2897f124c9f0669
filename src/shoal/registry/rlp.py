"""RLP, how Ethereum writes down nested lists of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from shoal.base.errors import MalformedMessage

Item: TypeAlias = "bytes | Sequence[Item]"

_TEXT, _LIST, _SHORT_MAX = 0x80, 0xC0, 55


def encode(item: Item) -> bytes:
    """The one encoding of bytes, or of a list."""
    if isinstance(item, bytes):
        if len(item) == 1 and item[0] < _TEXT:
            return item
        return _length(_TEXT, len(item)) + item
    body = b"".join(encode(part) for part in item)
    return _length(_LIST, len(body)) + body


def number(value: int) -> bytes:
    """A number, without zeros in front."""
    return value.to_bytes((value.bit_length() + 7) // 8)


def decode_list(data: bytes) -> list[bytes]:
    """The items of one flat list, lists inside it as they are written; MalformedMessage if it is
    anything else. Transactions are read by comparing what they encode to: see transactions.py."""
    first, end = _extent(data, 0)
    if data[0] < _LIST or end != len(data):
        raise MalformedMessage("not one list")
    items = []
    while first < end:
        start, stop = _extent(data, first)
        items.append(data[first:stop] if data[first] >= _LIST else data[start:stop])
        first = stop
    return items


def _length(base: int, count: int) -> bytes:
    if count <= _SHORT_MAX:
        return bytes([base + count])
    size = number(count)
    return bytes([base + _SHORT_MAX + len(size)]) + size


def _extent(data: bytes, at: int) -> tuple[int, int]:
    """Where the content of an item begins and ends."""
    if at >= len(data):
        raise MalformedMessage("an item is missing")
    mark = data[at]
    if mark < _TEXT:
        return at, at + 1
    base = _TEXT if mark < _LIST else _LIST
    start = at + 1
    if mark <= base + _SHORT_MAX:
        count = mark - base
    else:
        size = mark - base - _SHORT_MAX
        count, start = int.from_bytes(data[start : start + size]), start + size
    if start + count > len(data):
        raise MalformedMessage("an item goes beyond the end")
    return start, start + count
