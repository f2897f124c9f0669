"""Whole frames: round trips, and bytes that are no message."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.base.ids import ADDRESS_CHARS_MAX, ADDRESSES_MAX, NodeId
from shoal.kernel.machine import SEARCH, Codec
from shoal.protocols.search.config import (
    EXTRA_NAME_CHARS_MAX,
    EXTRAS_MAX,
    FRAME_BYTES_MAX,
    INT32_MAX,
    ITEM_BYTES_MAX,
    MATCH_ITEMS_MAX,
    OTHERS_MAX,
    PAYLOAD_BYTES_MAX,
    REASON_CHARS_MAX,
    USER_DATA_BYTES_MAX,
)
from shoal.protocols.search.messages import (
    BubbleCast,
    Cancel,
    ClientDeny,
    ClientRedirect,
    EdgeName,
    MasterHello,
    Match,
    MergeEdge,
    Message,
    Ping,
    Redirect,
    SlaveHello,
    SplitEdge,
    Totals,
    UserAccept,
    UserConnect,
    UserData,
    UserRefuse,
)
from shoal.protocols.search.signed_records import AddressRecord
from shoal.protocols.search.wire import SearchCodec
from shoal.transport.port import TransportLimits
from tests.support.search_messages import (
    EDGE,
    EXAMPLES,
    HEADER,
    HOME,
    MESSAGES,
    PAYLOAD,
    RECORD,
    TOTALS,
)

CODEC: Codec = SearchCodec()
FREE_ENDS = (UserData, UserRefuse)  # whatever follows belongs to them

FREE = msgspec.structs.replace(RECORD, addresses=("wss://example.org",))
OTHER = msgspec.structs.replace(RECORD, addresses=("ws://10.171.14.141:4000",))
OTHER_PORT = msgspec.structs.replace(RECORD, addresses=("ws://10.171.14.140:4001",))


def cast(size: int, total: int, start: int, end: int) -> BubbleCast:
    return BubbleCast(EDGE, size, total, start, end, 7, HEADER, PAYLOAD)


def ping(*extras: tuple[str, float]) -> Ping:
    return Ping(EDGE, 1, 1, TOTALS, 1.0, extras)


def patched(message: Message, offset: int, format: str, *values: Any) -> bytes:
    frame = bytearray(CODEC.encode(message))
    struct.pack_into(">" + format, frame, offset, *values)
    return bytes(frame)


def test_the_codec_is_the_fifth_and_knows_every_message() -> None:
    assert CODEC.number == SEARCH == 5
    assert set(CODEC.messages) == set(MESSAGES) == {type(message) for message in EXAMPLES}
    assert set(CODEC.messages) == set(Message.__args__)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_examples_round_trip(message: Message) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_round_trips(kind: type, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    frame = CODEC.encode(message)
    assert CODEC.decode(frame) == message
    assert CODEC.encode(CODEC.decode(frame)) == frame


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_frame_that_ends_early_or_late_is_refused(message: Message) -> None:
    frame = CODEC.encode(message)
    free = isinstance(message, FREE_ENDS)
    for length in range(8 if free else len(frame)):
        with pytest.raises(MalformedMessage):
            CODEC.decode(frame[:length])
    for behind in (b"\0", b"\xc0", b"more") if not free else ():
        with pytest.raises(MalformedMessage):
            CODEC.decode(frame + behind)


@given(st.binary(max_size=300), st.sampled_from(EXAMPLES), st.integers(0, 40))
def test_any_bytes_are_a_message_or_refused(raw: bytes, message: Message, kept: int) -> None:
    for frame in (raw, CODEC.encode(message)[:kept] + raw):
        with contextlib.suppress(MalformedMessage, OversizedMessage):
            assert type(CODEC.decode(frame)) in CODEC.messages


@given(st.sampled_from(EXAMPLES), st.data())
def test_changed_bytes_never_raise_anything_else(message: Message, data: st.DataObject) -> None:
    frame = bytearray(CODEC.encode(message))
    for at in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=3)):
        frame[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessage, OversizedMessage):
        changed = CODEC.decode(bytes(frame))
        assert CODEC.decode(CODEC.encode(changed)) == changed


def test_single_precision_is_all_that_totals_keep() -> None:
    sent = Ping(EDGE, 1, 1, Totals(0.1, 1 / 3, 1e-50), 0.7)
    got = CODEC.decode(CODEC.encode(sent))
    assert got.totals.nodes != 0.1
    assert got.totals.nodes == pytest.approx(0.1, rel=2**-24)
    assert got.totals.degrees == pytest.approx(1 / 3, rel=2**-24)
    assert got.totals.squares == 0.0


# What a table says, the record behind it says too


@pytest.mark.parametrize(
    ("message", "swapped"),
    [
        (SplitEdge(EDGE, RECORD, 1, 1), SplitEdge(EDGE, OTHER, 1, 1)),
        (SplitEdge(EDGE, RECORD, 1, 1), SplitEdge(EDGE, FREE, 1, 1)),
        (SplitEdge(EDGE, FREE, 1, 1), SplitEdge(EDGE, RECORD, 1, 1)),
        (Redirect(EDGE, RECORD, 1), Redirect(EDGE, OTHER_PORT, 1)),
        (MergeEdge(EDGE, RECORD, 1), MergeEdge(EDGE, OTHER, 1)),
        (MergeEdge(EDGE, RECORD, 0), MergeEdge(EDGE, None, 0)),
        (MasterHello(1, 2, False, TOTALS, RECORD), MasterHello(1, 2, False, TOTALS, OTHER_PORT)),
        (SlaveHello(1, 2, TOTALS, RECORD), SlaveHello(1, 2, TOTALS, FREE)),
        (
            cast(9, 9, 0, 9),
            msgspec.structs.replace(
                cast(9, 9, 0, 9), header=msgspec.structs.replace(HEADER, origin=OTHER)
            ),
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_table_that_contradicts_the_record_is_refused(message: Message, swapped: Message) -> None:
    sizes = {SplitEdge: 18, Redirect: 14, MergeEdge: 14, MasterHello: 27, SlaveHello: 27}
    size = sizes.get(type(message), 34 + len(PAYLOAD))
    with pytest.raises(MalformedMessage, match=r"the record behind has|without a slave"):
        CODEC.decode(CODEC.encode(message)[:size] + CODEC.encode(swapped)[size:])


def test_a_record_without_an_ipv4_address_leaves_zeros() -> None:
    message = Redirect(EDGE, FREE, 17)
    frame = CODEC.encode(message)
    assert frame[4:10] == bytes(6)
    assert CODEC.decode(frame) == message


# Numbers that no message has


NO_NUMBERS = [float("nan"), float("inf"), -1.0, -1e-45]


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("column", range(4))
def test_a_ping_carries_finite_numbers_from_0_on(column: int, value: float) -> None:
    with pytest.raises(MalformedMessage, match="finite"):
        CODEC.decode(patched(ping(), 16 + 4 * column, "f", value))


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize(
    ("message", "offset"),
    [(MasterHello(1, 2, True, TOTALS, RECORD), 15), (SlaveHello(1, 2, TOTALS, RECORD), 15)],
)
def test_so_do_the_hellos(message: Message, offset: int, column: int, value: float) -> None:
    with pytest.raises(MalformedMessage, match="finite"):
        CODEC.decode(patched(message, offset + 4 * column, "f", value))


@pytest.mark.parametrize(
    "slice",
    [
        *((9, 100, 3, 3), (9, 100, 6, 3), (9, 100, -1, 6), (9, 100, 3, 10), (9, 8, 3, 6)),
        *((0, 100, 0, 0), (-1, 100, -3, -2), (INT32_MAX, INT32_MAX - 1, 0, 1)),
    ],
)
def test_a_slice_lies_in_its_bubble(slice: tuple[int, int, int, int]) -> None:
    with pytest.raises(MalformedMessage, match="slice"):
        CODEC.decode(CODEC.encode(cast(*slice)))


@pytest.mark.parametrize("length", [-1, -(2**31), 10_000])
def test_a_payload_is_as_long_as_it_says(length: int) -> None:
    with pytest.raises(MalformedMessage, match="payload of"):
        CODEC.decode(patched(cast(9, 9, 0, 9), 4, "i", length))
    for off_by in (-1, 1):
        with pytest.raises(MalformedMessage):
            CODEC.decode(patched(cast(9, 9, 0, 9), 4, "i", len(PAYLOAD) + off_by))


def test_hops_do_not_go_below_0() -> None:
    with pytest.raises(MalformedMessage, match="-1 hops"):
        CODEC.decode(CODEC.encode(SplitEdge(EDGE, RECORD, 1, -1)))


def test_any_byte_but_0_expects_a_slave_and_a_slave_hello_has_none_there() -> None:
    for byte, expected in ((0, False), (1, True), (255, True)):
        got = CODEC.decode(patched(MasterHello(1, 2, False, TOTALS, RECORD), 12, "B", byte))
        assert got.expect_slave is expected
    with pytest.raises(MalformedMessage, match="reserved"):
        CODEC.decode(patched(SlaveHello(1, 2, TOTALS, RECORD), 12, "B", 1))


def test_a_merge_edge_without_a_slave_has_location_0() -> None:
    with pytest.raises(UsageError, match="location 0"):
        CODEC.encode(MergeEdge(EDGE, None, 5))
    with pytest.raises(MalformedMessage, match="zeros"):
        CODEC.decode(patched(MergeEdge(EDGE, None, 0), 10, "i", 5))
    with pytest.raises(MalformedMessage, match="zeros"):
        CODEC.decode(patched(MergeEdge(EDGE, None, 0), 8, "H", 5))


# Limits


@pytest.mark.parametrize(
    "message",
    [
        Cancel(EdgeName(2**31, 0, True)),
        Cancel(EdgeName(0, -(2**31) - 1, True)),
        Redirect(EDGE, msgspec.structs.replace(FREE, node=NodeId(bytes(19))), 1),
        Redirect(EDGE, msgspec.structs.replace(FREE, addresses=("x",) * (ADDRESSES_MAX + 1)), 1),
        Redirect(EDGE, msgspec.structs.replace(FREE, addresses=("x" * 257,)), 1),
        Redirect(EDGE, msgspec.structs.replace(FREE, made_ms=-1), 1),
        Redirect(EDGE, msgspec.structs.replace(FREE, signature=bytes(64)), 1),
        BubbleCast(EDGE, 1, 1, 0, 1, 0, msgspec.structs.replace(HEADER, nonce=bytes(9)), b""),
        BubbleCast(EDGE, 1, 1, 0, 1, 0, msgspec.structs.replace(HEADER, expires_ms=-1), b""),
        BubbleCast(EDGE, 1, 1, 0, 1, 0, msgspec.structs.replace(HEADER, signature=b""), b""),
        ping(*[(f"s:{n}", 0.0) for n in range(EXTRAS_MAX + 1)]),
        ping(("s:" + "n" * (EXTRA_NAME_CHARS_MAX + 1), 0.0)),
        ping(("s:", 0.0)),
        ping(("load", 0.0)),
        ping(("s:load\n", 0.0)),
        ping(("s:a", 0.0), ("s:a", 0.0)),
        ping(("s:a", float("nan"))),
        ping(("min:a", float("inf"))),
        Match(bytes(15), (), True),
        Match(bytes(16), (b"",) * (MATCH_ITEMS_MAX + 1), True),
        Match(bytes(16), (bytes(ITEM_BYTES_MAX + 1),), True),
        ClientDeny("r" * (REASON_CHARS_MAX + 1)),
        ClientRedirect((RECORD,) * (OTHERS_MAX + 1)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_limits_are_checked_while_decoding(message: Message) -> None:
    with pytest.raises(MalformedMessage):
        CODEC.decode(CODEC.encode(message))


def test_the_longest_frames_pass_and_longer_ones_do_not() -> None:
    far = AddressRecord(
        RECORD.node, ("w" * ADDRESS_CHARS_MAX,) * ADDRESSES_MAX, 2**63 - 1, RECORD.signature
    )
    header = msgspec.structs.replace(HEADER, origin=far)
    bubble = BubbleCast(EDGE, 1, 1, 0, 1, 0, header, bytes(PAYLOAD_BYTES_MAX))
    full = Match(bytes(16), (bytes(ITEM_BYTES_MAX),) * 3, False)
    for message in (bubble, full, UserData(1, bytes(USER_DATA_BYTES_MAX))):
        assert CODEC.decode(CODEC.encode(message)) == message
    assert TransportLimits().frame_bytes_max >= FRAME_BYTES_MAX
    with pytest.raises(OversizedMessage, match="the limit is 262144"):
        CODEC.decode(bytes(FRAME_BYTES_MAX + 1))
    longer = msgspec.structs.replace(bubble, payload=bytes(PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(OversizedMessage, match="payload"):
        CODEC.decode(CODEC.encode(longer))
    with pytest.raises(OversizedMessage, match="at once"):
        CODEC.decode(CODEC.encode(UserData(1, bytes(USER_DATA_BYTES_MAX + 1))))
    with pytest.raises(UsageError, match="send several"):
        CODEC.encode(Match(bytes(16), (bytes(ITEM_BYTES_MAX),) * 4, False))


def test_nothing_hides_behind_the_last_field_of_a_part() -> None:
    astuple, pack = msgspec.structs.astuple, msgspec.msgpack.encode
    edge, record, header = (*astuple(EDGE), 0), (*astuple(RECORD), 0), (*astuple(HEADER), 0)
    bubble = CODEC.encode(cast(9, 100, 3, 6))[: 34 + len(PAYLOAD)]
    for start, parts in [
        (b"\x5e\0\0\x43", (edge,)),
        (b"\x5e\0\0\x43", (EDGE, 0)),
        (b"\x5e\0\0\xc1", (record,)),
        (b"\x5e\0\0\xc1", (RECORD, 0)),
        (bubble, (EDGE, header)),
        (bubble, (EDGE, HEADER, 0)),
    ]:
        with pytest.raises(MalformedMessage, match="length"):
            CODEC.decode(start + pack(parts))
    assert CODEC.decode(bubble + pack((EDGE, HEADER))) == cast(9, 100, 3, 6)


# User connections


@pytest.mark.parametrize("type", ["", "two words", "line\n", "ü", "t" * 65])
def test_a_connection_type_is_a_name(type: str) -> None:
    with pytest.raises(UsageError, match="visible ASCII"):
        CODEC.encode(UserConnect(1, type))
    line = f"BubbleStorm UserConnect/{type} \n\n".encode()
    with pytest.raises(MalformedMessage, match="asks for no connection"):
        CODEC.decode(b"\x5e\0\0\xe1\0\0\0\1" + line)


def test_only_the_printed_line_accepts() -> None:
    accept, refuse = b"\x5e\0\0\xe2\0\0\0\1", b"\x5e\0\0\xe3\0\0\0\1"
    assert CODEC.decode(accept + b"BubbleStorm OK \n\n") == UserAccept(1)
    for line in (b"", b"BubbleStorm OK\n\n", b"BubbleStorm OK \n", b"BubbleStorm OK \n\n "):
        with pytest.raises(MalformedMessage, match="accepts no connection"):
            CODEC.decode(accept + line)
        assert CODEC.decode(refuse + line) == UserRefuse(1, line.decode())
    for line in (b"BubbleStorm OK \n\n", b"\xff", b"r" * (REASON_CHARS_MAX + 1)):
        with pytest.raises(MalformedMessage, match="refuses no connection"):
            CODEC.decode(refuse + line)
    for answer in ("BubbleStorm OK \n\n", "zu voll für dich", "r" * (REASON_CHARS_MAX + 1)):
        with pytest.raises(UsageError, match="refuses nothing"):
            CODEC.encode(UserRefuse(1, answer))


def test_home_is_the_address_of_table_2_2() -> None:
    assert CODEC.encode(Redirect(EDGE, RECORD, 1))[4:10].hex() == "0aab0e8c0fa0"
    assert RECORD.addresses == (HOME,)
