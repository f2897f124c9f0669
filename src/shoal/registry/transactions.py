"""Transactions with a fee market (EIP-1559), signed and read again."""

from __future__ import annotations

import msgspec

from shoal.base.errors import BadSignature, MalformedMessage
from shoal.base.ids import NODE_ID_BYTES, NodeId
from shoal.identity import PrivateKey, keccak256, recover
from shoal.registry import rlp
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
    signature = key.sign(_TYPE + rlp.encode(body))
    r, s = (int.from_bytes(signature[at : at + _WORD_BYTES]) for at in (0, _WORD_BYTES))
    raw = _TYPE + rlp.encode([*body, rlp.number(signature[64]), rlp.number(r), rlp.number(s)])
    return Signed(raw, keccak256(raw))


def read(raw: bytes) -> tuple[Transaction, NodeId]:
    """A transaction and who signed it; MalformedMessage or BadSignature if it is none of ours."""
    if raw[:1] != _TYPE:
        raise MalformedMessage("not a transaction of type 2")
    fields = rlp.decode_list(raw[1:])
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
    body = _TYPE + rlp.encode(_body(transaction))
    # A second way to write the same would be a second hash of one transaction.
    if raw != _TYPE + rlp.encode([*_body(transaction), v, r, s]):
        raise MalformedMessage("a transaction is written in another way than the one there is")
    signature = r.rjust(_WORD_BYTES, b"\0") + s.rjust(_WORD_BYTES, b"\0") + v.rjust(1, b"\0")
    return transaction, recover(body, signature)


def _body(transaction: Transaction) -> list[rlp.Item]:
    return [
        rlp.number(transaction.chain_id),
        rlp.number(transaction.nonce),
        rlp.number(transaction.tip_max),
        rlp.number(transaction.fee_max),
        rlp.number(transaction.gas),
        b"" if transaction.to is None else bytes(transaction.to),
        b"",  # value
        transaction.data,
        [],  # access list
    ]
