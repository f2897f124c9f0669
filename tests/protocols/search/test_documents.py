"""Signed documents: they travel unchanged, have one spelling, and the newest version wins."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.ids import INT63_MAX
from shoal.base.units import MS_NS
from shoal.identity import SIGNATURE_BYTES, PrivateKey, SeededEntropy, verify_signed
from shoal.protocols.search.documents.document import (
    CONTENT_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    NAME_CHARS_MAX,
    Document,
    Kind,
    Life,
    document_id,
    read_document,
    sign_document,
)

KEY = PrivateKey.generate(SeededEntropy("documents"))
OTHER_KEY = PrivateKey.generate(SeededEntropy("documents of another"))

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=NAME_CHARS_MAX)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
contents = st.dictionaries(st.text(max_size=8), values, max_size=4)


def sign(content: dict[str, Any] | bytes | None = None, **changes: Any) -> Document:
    said: dict[str, Any] = {"version": 1, "life": "managed", "expires_ms": 1000} | changes
    return sign_document(KEY, said.pop("name", "a"), content, **said)


@given(
    name=names,
    content=contents | st.none(),
    version=st.integers(0, INT63_MAX),
    life=st.sampled_from(get_args(Life)),
    expires_ms=st.integers(0, INT63_MAX),
    kind=st.sampled_from(get_args(Kind)),
)
@example("n" * NAME_CHARS_MAX, {"a": "b" * (CONTENT_BYTES_MAX - 8)}, 0, "instant", 0, "event")
@example(
    "\U0001f41f" * NAME_CHARS_MAX, {"a": "b" * (CONTENT_BYTES_MAX - 8)}, 0, "fading", 0, "topic"
)
def test_what_was_signed_is_read_again(
    name: str,
    content: dict[str, Any] | None,
    version: int,
    life: Life,
    expires_ms: int,
    kind: Kind,
) -> None:
    if life == "instant" and content is None:
        content = {}
    document = sign_document(
        KEY, name, content, version=version, life=life, expires_ms=expires_ms, kind=kind
    )
    read = read_document(document.signed)
    assert read == document
    assert len(read.signed) <= DOCUMENT_BYTES_MAX
    assert verify_signed(read.owner, read.signed)
    assert (read.owner, read.name, read.version) == (KEY.address, name, version)
    assert (read.life, read.expires_ns, read.kind) == (life, expires_ms * MS_NS, kind)
    assert read.value == (content or {})
    assert read.deleted == (content is None)


@given(st.binary(max_size=300))
def test_other_bytes_are_no_document(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_document(raw)


@given(st.data())
def test_a_changed_byte_is_no_document_or_has_no_valid_signature(data: st.DataObject) -> None:
    signed = sign({"title": "air", "pm25": 7.1}).signed
    place = data.draw(st.integers(0, len(signed) - 1))
    if place == SIGNATURE_BYTES - 1:  # v is a hint: see signatures.py
        return
    change = data.draw(st.integers(1, 255))
    changed = signed[:place] + bytes([signed[place] ^ change]) + signed[place + 1 :]
    try:
        read = read_document(changed)
    except MalformedMessage:
        return
    assert not verify_signed(read.owner, read.signed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, "shoal/search/address/1"),
        (1, bytes(19)),
        (2, ""),
        (2, "n" * (NAME_CHARS_MAX + 1)),
        (3, -1),
        (3, INT63_MAX + 1),
        (4, "eternal"),
        (5, 2**64 - 1),
        (6, "Person"),
        (6, ""),
        (6, "a" * 33),
        (6, "geo\n"),
        (7, b"[1]"),
        (7, b'{"a": NaN}'),
        (7, b'{"a": 1} '[:-2]),
        (7, b'{"a":' * 20_000 + b"1" + b"}" * 12),
        (7, b'{"\xff": 1}'),
        (7, b'{"a":"' + b"b" * CONTENT_BYTES_MAX + b'"}'),
    ],
)
def test_a_signature_makes_no_document_of_what_is_none(field: int, value: object) -> None:
    body = msgspec.msgpack.decode(sign({"a": 1}).signed[SIGNATURE_BYTES:])
    body[field] = value
    encoded = msgspec.msgpack.encode(body)
    with pytest.raises(MalformedMessage):
        read_document(KEY.sign(encoded) + encoded)


def test_an_instant_document_cannot_be_deleted() -> None:
    with pytest.raises(UsageError, match="nobody keeps"):
        sign(None, life="instant")


def test_a_document_has_one_spelling() -> None:
    """Another spelling would have another digest, and could win against the first."""
    encoded = sign({"a": 1}, version=5).signed[SIGNATURE_BYTES:]
    place = encoded.index(b"\x05", 30)
    longer = encoded[:place] + b"\xcc\x05" + encoded[place + 1 :]
    assert msgspec.msgpack.decode(longer) == msgspec.msgpack.decode(encoded)
    with pytest.raises(MalformedMessage, match="bytes"):
        read_document(KEY.sign(longer) + longer)


def test_the_newest_version_wins_and_of_equal_ones_the_larger_digest() -> None:
    old, new = sign({"a": 1}, version=1), sign({"a": 2}, version=2)
    assert new.rank > old.rank
    assert new.id == old.id == document_id(KEY.address, "a")
    twins = sign({"a": 3}, version=2), sign({"a": 4}, version=2)
    assert (twins[0].rank > twins[1].rank) == (twins[0].digest > twins[1].digest)
    assert sign(None, version=3).rank > new.rank


def test_ids_differ_by_owner_and_name() -> None:
    assert document_id(KEY.address, "a") != document_id(KEY.address, "b")
    assert document_id(KEY.address, "a") != document_id(OTHER_KEY.address, "a")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": ""}, "1 to 128"),
        ({"name": "\ud800"}, "no JSON"),
        ({"version": -1}, "version -1"),
        ({"expires_ms": 2**63}, "expires_ms"),
        ({"life": "eternal"}, "eternal"),
        ({"kind": "Person"}, "Person"),
        ({"kind": "geo"}, "kind 'geo': give a JSON object for .* bytes for a space"),
    ],
)
def test_what_cannot_be_signed_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        sign({"a": 1}, **changes)


@pytest.mark.parametrize("content", [{"a": object()}, {"a": "b" * CONTENT_BYTES_MAX}])
def test_content_that_cannot_be_signed_is_named(content: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="document 'a'"):
        sign(content)


def test_data_of_a_space_is_bytes_that_only_the_space_reads() -> None:
    data = sign(b"\xff no JSON", kind="geo")
    assert (data.space, data.content) == ("geo", b"\xff no JSON")
    assert read_document(data.signed) == data
    assert data.id != sign({"a": 1}).id, "spaces do not share names"
    assert sign({"a": 1}, kind="topic").space == ""
    assert sign(None, kind="geo").deleted


@pytest.mark.parametrize(
    ("content", "kind", "complaint"),
    [
        (b"x", "document", "give a JSON object"),
        (b"", "geo", "no bytes: that would be its deletion"),
        (b"x" * (CONTENT_BYTES_MAX + 1), "geo", "put it in parts"),
    ],
)
def test_data_that_cannot_be_signed_is_named(content: bytes, kind: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        sign(content, kind=kind)
