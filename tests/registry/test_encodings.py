"""Ethereum's encodings: against eth-abi, against themselves, and what is no encoding."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import eth_abi.abi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import BadSignature, MalformedMessage
from shoal.base.ids import NodeId
from shoal.identity import keccak256
from shoal.registry import abi, transactions
from shoal.registry.transactions import Transaction, read, sign
from tests.registry.stage import ALICE

addresses = st.binary(min_size=20, max_size=20)
numbers = st.integers(0, 2**256 - 1)
texts = st.text(max_size=80)
# The shapes that our contracts use, as the compiler and as eth-abi name them.
TERMS = {
    "type": "tuple",
    "components": [
        {"type": "string"},
        {"type": "uint256"},
        {"type": "address[]"},
    ],
}
SHAPES: list[tuple[dict[str, Any], str, st.SearchStrategy[Any]]] = [
    ({"type": "uint256"}, "uint256", numbers),
    ({"type": "address"}, "address", addresses),
    ({"type": "string"}, "string", texts),
    ({"type": "uint256[]"}, "uint256[]", st.lists(numbers).map(tuple)),
    ({"type": "string[]"}, "string[]", st.lists(texts).map(tuple)),
    (TERMS, "(string,uint256,address[])", st.tuples(texts, numbers, st.just(()))),
    (
        {**TERMS, "type": "tuple[]"},
        "(string,uint256,address[])[]",
        st.lists(st.tuples(texts, numbers, st.lists(addresses).map(tuple))).map(tuple),
    ),
]


@given(st.data())
def test_values_are_encoded_as_everybody_does_and_read_again(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    values = tuple(data.draw(shape[2]) for shape in shapes)
    codec = abi.tuple_of([shape[0] for shape in shapes])
    encoded = codec.encode(values)
    assert encoded == eth_abi.abi.encode([shape[1] for shape in shapes], _spelled(values))
    assert abi.decode(codec, encoded) == values
    assert [abi.type_name(shape[0]) for shape in shapes] == [shape[1] for shape in shapes]


@given(st.sampled_from(SHAPES), st.binary(max_size=400))
def test_any_bytes_are_a_value_or_malformed(shape: tuple[Any, ...], raw: bytes) -> None:
    with suppress(MalformedMessage):
        abi.decode(abi.codec_of(shape[0]), raw)


def test_parts_that_point_at_one_place_do_not_grow_without_end() -> None:
    strings = abi.codec_of({"type": "string[]"})
    count, text = 1000, b"x" * 32_000
    offset = (count * 32).to_bytes(32)
    raw = count.to_bytes(32) + offset * count + len(text).to_bytes(32) + text
    with pytest.raises(MalformedMessage, match="beyond its end"):
        abi.decode(strings, raw)


@given(
    st.builds(
        Transaction,
        chain_id=st.integers(1, 2**52),
        nonce=st.integers(0, 2**32),
        to=st.none() | addresses.map(NodeId),
        data=st.binary(max_size=100),
        gas=st.integers(0, 2**40),
        fee_max=st.integers(0, 2**60),
        tip_max=st.integers(0, 2**60),
    )
)
def test_a_transaction_is_read_as_it_was_signed(transaction: Transaction) -> None:
    signed = sign(transaction, ALICE)
    assert signed.hash == keccak256(signed.raw)
    assert read(signed.raw) == (transaction, ALICE.address)


@given(st.data())
def test_a_changed_transaction_is_not_its_signers(data: st.DataObject) -> None:
    raw = bytearray(sign(Transaction(1, 0, None, b"code", 21_000), ALICE).raw)
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    try:
        _, sender = read(bytes(raw))
    except (MalformedMessage, BadSignature):
        return
    assert sender != ALICE.address


@given(st.binary(max_size=120))
def test_any_bytes_are_a_transaction_or_refused(raw: bytes) -> None:
    with pytest.raises((MalformedMessage, BadSignature)):
        read(b"\x02" + raw)


# From the Ethereum Yellow Paper, appendix B, and the tests that clients share.
@pytest.mark.parametrize(
    ("item", "encoded"),
    [
        (b"", "80"),
        (b"\x00", "00"),
        (b"\x0f", "0f"),
        (b"\x80", "8180"),
        (b"dog", "83646f67"),
        ([b"cat", b"dog"], "c88363617483646f67"),
        ([], "c0"),
        ([[], [[]], [[], [[]]]], "c7c0c1c0c3c0c1c0"),
        (b"Lorem ipsum dolor sit amet, consectetur adipisicing elit",
         "b8384c6f72656d20697073756d20646f6c6f722073697420616d65742c20636f6e7365637465747572206164"
         "69706973696369" "6e6720656c6974"),
    ],
)  # fmt: skip
def test_rlp_is_as_published(item: Any, encoded: str) -> None:
    assert transactions.encode(item).hex() == encoded


def _spelled(value: Any) -> Any:
    """eth-abi takes addresses as text."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return tuple(map(_spelled, value)) if isinstance(value, tuple) else value
