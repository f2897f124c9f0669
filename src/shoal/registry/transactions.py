"""Transactions with a fee market (EIP-1559), signed and read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from shoal.base.errors import BadSignature, MalformedMessage
from shoal.base.ids import NODE_ID_BYTES, NodeId
from shoal.identity import PrivateKey, keccak256, recover
from shoal.registry.chain import Signed

_TYPE = b"\x02"
_FIELDS = 12
_WORD_BYTES = 32
_NO_ACCESS_LIST = b"\xc0"


class Transaction(msgspec.Struct, frozen=True):
    """What a key signs. Ours move no money."""

    chain_id: int
    nonce: int
    to: NodeId | None
    """None: it makes a contract."""
    data: bytes
    gas: int
    fee_max: int = 0
    """Wei per unit of gas, in all."""
    tip_max: int = 0
    """Of it for whoever makes the block."""


def sign(transaction: Transaction, key: PrivateKey) -> Signed:
    """The bytes to send, and the hash that they are known by."""
    body = _body(transaction)
    signature = key.sign(_TYPE + encode(body))
    r, s = (int.from_bytes(signature[at : at + _WORD_BYTES]) for at in (0, _WORD_BYTES))
    raw = _TYPE + encode([*body, number(signature[64]), number(r), number(s)])
    return Signed(raw, keccak256(raw))


def read(raw: bytes) -> tuple[Transaction, NodeId]:
    """A transaction and who signed it; MalformedMessage or BadSignature if it is none of ours."""
    if raw[:1] != _TYPE:
        raise MalformedMessage("not a transaction of type 2")
    fields = decode_list(raw[1:])
    if len(fields) != _FIELDS:
        raise MalformedMessage(f"a transaction has {_FIELDS} fields, not {len(fields)}")
    chain_id, nonce, tip_max, fee_max, gas, to, value, data, access, v, r, s = fields
    if len(to) not in (0, NODE_ID_BYTES) or value or access != _NO_ACCESS_LIST:
        raise MalformedMessage("a transaction of ours sends no money and lists no storage")
    if max(len(v), 1) > 1 or max(len(r), len(s)) > _WORD_BYTES:
        raise BadSignature("a signature is r, s and one bit")
    number = int.from_bytes
    transaction = Transaction(
        number(chain_id),
        number(nonce),
        NodeId(to) if to else None,
        data,
        number(gas),
        number(fee_max),
        number(tip_max),
    )
    body = _TYPE + encode(_body(transaction))
    # A second way to write the same would be a second hash of one transaction.
    if raw != _TYPE + encode([*_body(transaction), v, r, s]):
        raise MalformedMessage("a transaction is written in another way than the one there is")
    signature = r.rjust(_WORD_BYTES, b"\0") + s.rjust(_WORD_BYTES, b"\0") + v.rjust(1, b"\0")
    return transaction, recover(body, signature)


def _body(transaction: Transaction) -> list[Item]:
    return [
        number(transaction.chain_id),
        number(transaction.nonce),
        number(transaction.tip_max),
        number(transaction.fee_max),
        number(transaction.gas),
        b"" if transaction.to is None else bytes(transaction.to),
        b"",  # value
        transaction.data,
        [],  # access list
    ]


# RLP, how Ethereum writes down nested lists of bytes.


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
