"""The thesis' tables, written out by hand: each line of hex is one line of a table."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.ids import NodeId
from shoal.identity import SIGNATURE_BYTES
from shoal.protocols.search.messages import (
    BreakEdge,
    BubbleCast,
    Cancel,
    ClientDeny,
    ClientHello,
    ClientOk,
    ClientRedirect,
    EdgeClosed,
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
    UserEnd,
    UserRefuse,
)
from shoal.protocols.search.signed_records import AddressRecord, BubbleHeader
from shoal.protocols.search.wire import (
    BREAK_EDGE,
    BUBBLE_CAST,
    CANCEL,
    MASTER_HELLO,
    MERGE_EDGE,
    PING,
    REDIRECT,
    SLAVE_HELLO,
    SPLIT_EDGE,
    BubbleCastFields,
    Code,
    MasterHelloFields,
    NoFields,
    PingFields,
    RemoteFields,
    SearchCodec,
    SlaveHelloFields,
    SplitEdgeFields,
    Table,
)

IP = bytes([10, 171, 14, 140])  # table 2.2

SPLIT_EDGE_HEX = """
5e000080  0aab0e8c  0fa0  fffffffe  7fffffff
"""
MASTER_HELLO_HEX = """
5e000001  00000005  fffffff9  01  0fa0  447a0000 45bb8000 470ca000
"""
REDIRECT_HEX = """
5e000002  0aab0e8c  0fa0  00000011
"""
SLAVE_HELLO_HEX = """
5e000041  00000005  fffffff9  00  0fa0  447a0000 45bb8000 470ca000
"""
CANCEL_HEX = """
5e000043
"""
MERGE_EDGE_HEX = """
5e000042  0aab0e8c  0fa0  80000000
"""
MERGE_WITHOUT_SLAVE_HEX = """
5e000042  00000000  0000  00000000
"""
BREAK_EDGE_HEX = """
5e000003
"""
PING_HEX = """
5e000081  ffffffff  8000000000000000  3f000000 3fc00000 40900000  3e800000
"""
BUBBLE_CAST_HEX = """
5e000082  00000005  0aab0e8c  0fa0  00000009
00000064  00000003  00000006  ffffffff
"""
HELLO_HEX = "68656c6c6f"  # hello: a payload

TABLES: list[tuple[str, int, Table[Any], Any]] = [
    (SPLIT_EDGE_HEX, 18, SPLIT_EDGE, SplitEdgeFields(IP, 4000, -2, 2**31 - 1)),
    (
        *(MASTER_HELLO_HEX, 27, MASTER_HELLO),
        MasterHelloFields(5, -7, 1, 4000, 1000.0, 6000.0, 36000.0),
    ),
    (REDIRECT_HEX, 14, REDIRECT, RemoteFields(IP, 4000, 17)),
    (
        *(SLAVE_HELLO_HEX, 27, SLAVE_HELLO),
        SlaveHelloFields(5, -7, 0, 4000, 1000.0, 6000.0, 36000.0),
    ),
    (CANCEL_HEX, 4, CANCEL, NoFields()),
    (MERGE_EDGE_HEX, 14, MERGE_EDGE, RemoteFields(IP, 4000, -(2**31))),
    (MERGE_WITHOUT_SLAVE_HEX, 14, MERGE_EDGE, RemoteFields(bytes(4), 0, 0)),
    (BREAK_EDGE_HEX, 4, BREAK_EDGE, NoFields()),
    (PING_HEX, 32, PING, PingFields(2**32 - 1, -(2**63), 0.5, 1.5, 4.5, 0.25)),
    (BUBBLE_CAST_HEX, 34, BUBBLE_CAST, BubbleCastFields(5, IP, 4000, 9, 100, 3, 6, -1)),
]


@pytest.mark.parametrize(("text", "size", "table", "fields"), TABLES)
def test_every_table_is_byte_exact(text: str, size: int, table: Table[Any], fields: Any) -> None:
    raw = bytes.fromhex(text)
    assert (table.pack(fields), table.size, len(raw)) == (raw, size, size)
    assert table.unpack(raw) == fields
    assert table.unpack(raw + b"what follows") == fields


@pytest.mark.parametrize(("text", "size", "table", "fields"), TABLES)
def test_less_than_a_table_or_another_one_is_refused(
    text: str, size: int, table: Table[Any], fields: Any
) -> None:
    raw = bytes.fromhex(text)
    for length in range(size):
        with pytest.raises(MalformedMessage, match=f"has {size} bytes"):
            table.unpack(raw[:length])
    with pytest.raises(MalformedMessage, match="from 5f"):
        table.unpack(b"\x5f" + raw[1:])


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        (PING, PingFields(2**32, 0, 0.0, 0.0, 0.0, 0.0)),
        (PING, PingFields(0, 2**63, 0.0, 0.0, 0.0, 0.0)),
        (PING, PingFields(0, 0, 1e39, 0.0, 0.0, 0.0)),
        (SPLIT_EDGE, SplitEdgeFields(IP, 65_536, 0, 0)),
        (REDIRECT, RemoteFields(IP, 1, 2**31)),
    ],
)
def test_a_number_that_does_not_fit_is_ours(table: Table[Any], fields: Any) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        table.pack(fields)


def test_printed_codes_are_the_decimals_beside_them() -> None:
    assert [
        *(Code.SPLIT_EDGE, Code.MASTER_HELLO, Code.REDIRECT, Code.SLAVE_HELLO, Code.CANCEL),
        *(Code.MERGE_EDGE, Code.BREAK_EDGE, Code.PING, Code.BUBBLE_CAST),
    ] == [
        *(1577058432, 1577058305, 1577058306, 1577058369, 1577058371),
        *(1577058370, 1577058307, 1577058433, 1577058434),
    ]


# Whole frames: the same bytes, then what Shoal adds, in msgpack

RECORD = AddressRecord(
    NodeId(b"\x11" * 20), ("ws://10.171.14.140:4000",), 300, b"\x22" * SIGNATURE_BYTES
)
RECORD_HEX = (
    "94"  # an array of four
    + "c414" + "11" * 20
    + "91" "b7 77733a2f2f 31302e3137312e31342e313430 3a34303030"
    + "cd012c"
    + "c441" + "22" * 65
)  # fmt: skip
EDGE, EDGE_HEX = EdgeName(5, -7, True), "93 05 f9 c3"
TOTALS = Totals(1000.0, 6000.0, 36000.0)
HEADER = BubbleHeader(RECORD, b"nonce--8", 200, b"\x33" * SIGNATURE_BYTES)
HEADER_HEX = "94" + RECORD_HEX + "c408 6e6f6e63652d2d38" + "ccc8" + "c441" + "33" * 65

FRAMES: list[tuple[Message, str]] = [
    (SplitEdge(EDGE, RECORD, -2, 2**31 - 1), SPLIT_EDGE_HEX + "92" + EDGE_HEX + RECORD_HEX),
    (SplitEdge(None, RECORD, -2, 2**31 - 1), SPLIT_EDGE_HEX + "92 c0" + RECORD_HEX),
    (MasterHello(5, -7, True, TOTALS, RECORD), MASTER_HELLO_HEX + "91" + RECORD_HEX),
    (SlaveHello(5, -7, TOTALS, RECORD), SLAVE_HELLO_HEX + "91" + RECORD_HEX),
    (Redirect(EDGE, RECORD, 17), REDIRECT_HEX + "92" + EDGE_HEX + RECORD_HEX),
    (Cancel(EDGE), CANCEL_HEX + "91" + EDGE_HEX),
    (MergeEdge(EDGE, RECORD, -(2**31)), MERGE_EDGE_HEX + "92" + EDGE_HEX + RECORD_HEX),
    (MergeEdge(EDGE, None, 0), MERGE_WITHOUT_SLAVE_HEX + "92" + EDGE_HEX + "c0"),
    (BreakEdge(EDGE), BREAK_EDGE_HEX + "91" + EDGE_HEX),
    (
        Ping(EDGE, 2**32 - 1, -(2**63), Totals(0.5, 1.5, 4.5), 0.25),
        PING_HEX + "92" + EDGE_HEX + "90",
    ),
    (
        Ping(None, 2**32 - 1, -(2**63), Totals(0.5, 1.5, 4.5), 0.25, (("s:a", -2.0),)),
        PING_HEX + "92 c0 91 92 a3 733a61 cb c000000000000000",
    ),
    (
        BubbleCast(EDGE, 9, 100, 3, 6, -1, HEADER, b"hello"),
        BUBBLE_CAST_HEX + HELLO_HEX + "92" + EDGE_HEX + HEADER_HEX,
    ),
    # From here on nothing is printed: the codes are ours
    (
        Match(b"\x44" * 16, (b"hello",), False),
        "5e000083 93 c410" + "44" * 16 + "91c405 68656c6c6f c2",
    ),
    (EdgeClosed(EDGE), "5e000084 91" + EDGE_HEX),
    (ClientHello(RECORD), "5e0000c1 91" + RECORD_HEX),
    (ClientOk(TOTALS), "5e0000c2 447a0000 45bb8000 470ca000"),
    (ClientDeny("full"), "5e0000c3 91 a4 66756c6c"),
    (ClientRedirect((RECORD,)), "5e0000c4 91 91" + RECORD_HEX),
    (UserConnect(258, "chat"), "5e0000e1 00000102" + b"BubbleStorm UserConnect/chat \n\n".hex()),
    (UserAccept(258), "5e0000e2 00000102" + b"BubbleStorm OK \n\n".hex()),
    (UserRefuse(258, "busy"), "5e0000e3 00000102 62757379"),
    (UserData(258, b"hello"), "5e0000e4 00000102" + HELLO_HEX),
    (UserEnd(258), "5e0000e5 00000102"),
]


@pytest.mark.parametrize(
    ("message", "text"), FRAMES, ids=[type(message).__name__ for message, _ in FRAMES]
)
def test_every_frame_is_byte_exact(message: Message, text: str) -> None:
    frame = bytes.fromhex(text)
    assert SearchCodec().encode(message).hex() == frame.hex()
    assert SearchCodec().decode(frame) == message


def test_the_payload_of_a_bubble_begins_at_byte_34() -> None:
    frame = SearchCodec().encode(BubbleCast(EDGE, 9, 100, 3, 6, -1, HEADER, b"hello"))
    assert frame[34:39] == b"hello"


def test_every_message_is_written_out_here() -> None:
    assert {type(message) for message, _ in FRAMES} == set(SearchCodec.messages)
    assert len({text.split()[0] for _, text in FRAMES}) == len(Code) == len(SearchCodec.messages)
