"""What is inside bubbles and answers: round trips, limits, and bytes that are neither."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.base.ids import INT63_MAX
from shoal.protocols.search.config import ITEM_BYTES_MAX, PAYLOAD_BYTES_MAX, QUERY_CHARS_MAX
from shoal.protocols.search.documents.document import (
    DIGEST_BYTES,
    DOCUMENT_BYTES_MAX,
    DOCUMENT_ID_BYTES,
)
from shoal.protocols.search.payloads import (
    HITS_MAX,
    LOOKUPS_MAX,
    NOTHING,
    QUESTION_BYTES_MAX,
    WATCH_ID_BYTES,
    BubbleType,
    Hit,
    Holding,
    Item,
    Lookup,
    Payload,
    Put,
    Search,
    Sighting,
    Wanted,
    Watch,
    decode_item,
    decode_payload,
    encode_item,
    encode_payload,
    type_of,
)
from tests.strategies import node_ids
from tests.support.machines import peer_id

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=QUERY_CHARS_MAX)
counts = st.integers(0, INT63_MAX)
watch_ids = st.binary(min_size=WATCH_ID_BYTES, max_size=WATCH_ID_BYTES)
ids = st.binary(min_size=DOCUMENT_ID_BYTES, max_size=DOCUMENT_ID_BYTES)
digests = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)
documents = st.binary(max_size=300) | st.just(bytes(DOCUMENT_BYTES_MAX))
wanted = st.lists(st.builds(Wanted, ids, counts, digests), min_size=1, max_size=LOOKUPS_MAX)
payloads: st.SearchStrategy[Payload] = st.one_of(
    st.builds(Search, texts, st.integers(1, HITS_MAX)),
    st.builds(Put, documents),
    st.builds(Watch, watch_ids, texts, counts),
    st.builds(Lookup, wanted.map(tuple)),
)
items: st.SearchStrategy[Item] = st.one_of(
    st.builds(Hit, documents, st.floats(0, allow_nan=False, allow_infinity=False)),
    st.builds(Sighting, watch_ids, documents),
    st.builds(Holding, ids, digests, node_ids),
)


@given(payloads)
def test_payloads_are_read_again(payload: Payload) -> None:
    raw = encode_payload(payload)
    assert len(raw) <= PAYLOAD_BYTES_MAX
    assert decode_payload(type_of(payload), raw) == payload


@given(items)
def test_items_are_read_again(item: Item) -> None:
    raw = encode_item(item)
    assert len(raw) <= ITEM_BYTES_MAX
    assert decode_item(raw) == item


def test_numbers_are_for_ever() -> None:
    """Others have them in their programs."""
    assert encode_payload(Search("air", 7)) == b"\x93\x03\xa3air\x07"
    assert encode_payload(Put(b"d")) == b"\x92\x04\xc4\x01d"
    assert encode_payload(Watch(b"12345678", "air", 0)) == b"\x94\x05\xc4\x0812345678\xa3air\x00"
    assert encode_payload(Lookup((Wanted(NOTHING, 1, NOTHING),)))[:3] == b"\x92\x06\x91"
    assert encode_item(Hit(b"d", 0.0)) == b"\x93\x01\xc4\x01d\xcb" + bytes(8)
    assert encode_item(Sighting(b"12345678", b"d")) == b"\x93\x02\xc4\x0812345678\xc4\x01d"
    assert encode_item(Holding(NOTHING, NOTHING, peer_id(1)))[:2] == b"\x94\x03"


def test_a_question_of_a_space_is_bytes() -> None:
    question = Search(b"\xff\x00", 7)
    assert encode_payload(question) == b"\x93\x03\xc4\x02\xff\x00\x07"
    assert decode_payload(BubbleType.QUERY, encode_payload(question)) == question


def test_a_payload_belongs_to_one_type_of_bubble() -> None:
    raw = encode_payload(Put(b"d"))
    with pytest.raises(MalformedMessage):
        decode_payload(BubbleType.QUERY, raw)


@pytest.mark.parametrize(
    ("bubble_type", "payload"),
    [
        (BubbleType.QUERY, [3, "air", 0]),
        (BubbleType.QUERY, [3, "air", HITS_MAX + 1]),
        (BubbleType.QUERY, [3, "", 1]),
        (BubbleType.QUERY, [3, "a" * (QUERY_CHARS_MAX + 1), 1]),
        (BubbleType.QUERY, [3, bytes(QUESTION_BYTES_MAX + 1), 1]),
        (BubbleType.QUERY, [3, 5, 1]),
        (BubbleType.QUERY, [3, None, 1]),
        (BubbleType.QUERY, [3, ["air"], 1]),
        (BubbleType.WATCH, [5, bytes(8), 5, 1]),
        (BubbleType.QUERY, [3, "air", 1, "more"]),
        (BubbleType.QUERY, [3, "air"]),
        (BubbleType.DOCUMENT, [4, bytes(DOCUMENT_BYTES_MAX + 1)]),
        (BubbleType.WATCH, [5, bytes(7), "air", 1]),
        (BubbleType.WATCH, [5, bytes(8), "air", -1]),
        (BubbleType.LOOKUP, [6, []]),
        (BubbleType.LOOKUP, [6, [[bytes(16), 1, bytes(16)]] * (LOOKUPS_MAX + 1)]),
        (BubbleType.LOOKUP, [6, [[bytes(16), 1, bytes(15)]]]),
    ],
)
def test_payloads_have_limits(bubble_type: BubbleType, payload: list[Any]) -> None:
    with pytest.raises(MalformedMessage):
        decode_payload(bubble_type, msgspec.msgpack.encode(payload))


@pytest.mark.parametrize(
    "item",
    [
        [1, b"d", -0.5],
        [1, b"d", float("nan")],
        [1, b"d", float("inf")],
        [1, bytes(DOCUMENT_BYTES_MAX + 1), 0.0],
        [2, bytes(9), b"d"],
        [3, bytes(16), bytes(16), bytes(19)],
        [3, bytes(16), bytes(16)],
        [4, b"d"],
    ],
)
def test_items_have_limits(item: list[Any]) -> None:
    with pytest.raises(MalformedMessage):
        decode_item(msgspec.msgpack.encode(item))


def test_more_than_a_bubble_carries_is_not_decoded() -> None:
    with pytest.raises(OversizedMessage):
        decode_payload(BubbleType.QUERY, bytes(PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(OversizedMessage):
        decode_item(bytes(ITEM_BYTES_MAX + 1))


@given(st.sampled_from(BubbleType), st.binary(max_size=100))
def test_any_bytes_are_a_payload_or_malformed(bubble_type: BubbleType, raw: bytes) -> None:
    try:
        payload = decode_payload(bubble_type, raw)
    except MalformedMessage:
        return
    assert payload is not None
    assert type_of(payload) == bubble_type
