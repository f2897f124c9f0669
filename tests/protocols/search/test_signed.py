"""Address records and bubble headers: who signed them, and that no bit of them can change."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import RemoteError, UsageError
from shoal.base.ids import Contact
from shoal.identity import SIGNATURE_BYTES, PrivateKey, SeededEntropy, verify_signed
from shoal.protocols.search.messages import BubbleCast, ClientHello
from shoal.protocols.search.signed_records import BubbleHeader, bubble_id, sign_address, sign_header
from shoal.protocols.search.wire import SearchCodec
from tests.support.search_messages import HEADER, HOME, KEY, PAYLOAD, RECORD

OTHER_KEY = PrivateKey.generate(SeededEntropy("another"))
CAST = BubbleCast(None, 9, 100, 3, 6, 7, HEADER, PAYLOAD)


def changed(struct: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(struct, **fields)


def flipped(raw: bytes, bit: int) -> bytes:
    return (int.from_bytes(raw) ^ 1 << bit).to_bytes(len(raw))


def header_holds(cast: BubbleCast) -> bool:
    return verify_signed(cast.header.origin.node, cast.signed)


def test_a_record_is_signed_by_whom_it_names() -> None:
    assert (RECORD.node, RECORD.made_ms) == (KEY.address, 1_700_000_000_000)
    assert RECORD.contact == Contact(KEY.address, (HOME,))
    assert RECORD.signed == RECORD.signature + RECORD.body
    assert verify_signed(RECORD.node, RECORD.signed)
    assert not verify_signed(OTHER_KEY.address, RECORD.signed)


def test_what_is_signed_is_written_out() -> None:
    record = changed(RECORD, node=b"\x11" * 20, addresses=("ws://h:1",), made_ms=300)
    assert record.body.hex() == (
        "94"
        + ("b6" + b"shoal/search/address/1".hex())
        + ("c414" + "11" * 20)
        + ("91a8" + b"ws://h:1".hex())
        + "cd012c"
    )
    header = BubbleHeader(record, b"nonce--8", 200, b"\x22" * 65)
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # sha256, FIPS 180-2
    assert header.signed(7, 100, b"abc").hex() == (
        "22" * 65
        + "98"
        + ("b5" + b"shoal/search/header/1".hex())
        + ("07" + "64" + "ccc8" + "c408" + b"nonce--8".hex() + "c420" + abc)
        + ("91a8" + b"ws://h:1".hex() + "cd012c")
    )


def test_no_bit_of_a_record_can_change_on_its_way() -> None:
    codec = SearchCodec()
    frame = codec.encode(ClientHello(RECORD))
    v_bit = 0  # the last bit of the frame says which key to try first: a hint, not a statement
    for bit in range(8 * len(frame)):
        try:
            hello = codec.decode(flipped(frame, bit))
        except RemoteError:
            continue
        assert isinstance(hello, ClientHello)
        assert verify_signed(hello.record.node, hello.record.signed) == (bit == v_bit), bit


def test_a_record_of_another_says_nothing() -> None:
    stolen = changed(RECORD, node=OTHER_KEY.address)
    assert not verify_signed(stolen.node, stolen.signed)


def test_a_header_is_signed_by_the_origin() -> None:
    assert header_holds(CAST)
    # What each hop changes is not part of it.
    assert header_holds(changed(CAST, size=4, start=0, end=1))


@pytest.mark.parametrize(
    "other",
    [
        changed(CAST, total=101),
        changed(CAST, kind=8),
        changed(CAST, payload=PAYLOAD + b" "),
        changed(CAST, payload=b""),
        changed(CAST, header=changed(HEADER, expires_ms=HEADER.expires_ms + 1)),
        changed(CAST, header=changed(HEADER, nonce=b"nonce--9")),
        changed(CAST, header=changed(HEADER, origin=sign_address(KEY, (HOME,), 0))),
        changed(CAST, header=changed(HEADER, origin=sign_address(KEY, ("ws://1.2.3.4:5",), 0))),
        changed(CAST, header=changed(HEADER, origin=sign_address(OTHER_KEY, (HOME,), 0))),
    ],
)
def test_a_relay_cannot_change_what_the_origin_said(other: BubbleCast) -> None:
    assert not header_holds(other)


def test_no_bit_that_the_origin_signed_can_change() -> None:
    codec = SearchCodec()
    frame = codec.encode(CAST)
    size, slices = range(14, 18), range(22, 30)  # bytes that each hop writes anew
    record_signature = frame.index(RECORD.signature)
    free = {*size, *slices, *range(record_signature, record_signature + SIGNATURE_BYTES)}
    accepted = 0
    for bit in range(8 * len(frame)):
        try:
            cast = codec.decode(flipped(frame, bit))
        except RemoteError:
            continue
        assert isinstance(cast, BubbleCast)
        place = len(frame) - 1 - bit // 8
        accepted += 1
        assert header_holds(cast) == (place in free or bit == 0), (place, bit)
    assert accepted > 1000


def test_only_the_origin_signs_its_headers() -> None:
    said: dict[str, Any] = {"kind": 1, "total": 1, "nonce": bytes(8), "expires_ms": 1}
    with pytest.raises(UsageError, match="sign with its key"):
        sign_header(OTHER_KEY, RECORD, payload=b"", **said)


def test_a_bubble_id_is_the_same_for_all_parts_of_a_bubble_and_no_other() -> None:
    ids = [
        CAST.id,
        changed(CAST, total=101).id,
        changed(CAST, kind=8).id,
        changed(CAST, payload=b"").id,
        changed(CAST, header=changed(HEADER, nonce=bytes(8))).id,
        changed(CAST, header=changed(HEADER, origin=sign_address(OTHER_KEY, (), 0))).id,
    ]
    assert len(set(ids)) == len(ids)
    assert {len(id) for id in ids} == {16}
    assert changed(CAST, size=4, start=0, end=1).id == CAST.id
    assert bubble_id(KEY.address, 7, 100, b"nonce--8", PAYLOAD) == CAST.id


@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 2**31 - 1), st.binary(max_size=99))
def test_every_header_that_can_be_made_holds(kind: int, total: int, payload: bytes) -> None:
    said: dict[str, Any] = {"nonce": bytes(8), "expires_ms": 1}
    header = sign_header(KEY, RECORD, kind=kind, total=total, payload=payload, **said)
    assert header_holds(BubbleCast(None, 1, total, 0, 1, kind, header, payload))
