"""Bytes of the history protocol: round trips, golden encodings, and bytes that are no message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError
from shoal.base.ids import INT63_MAX, STREAM_ID_CHARS_MAX, StreamId
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.message_body import Position
from shoal.protocols.streams.config import FRAME_BYTES_MAX, HISTORY_FRAME_BYTES_MAX, PAGE_BYTES_MAX
from shoal.protocols.streams.history.messages import (
    HEADS_MAX,
    LOGS_MAX,
    PAGE_ROWS_MAX,
    POLLED_STREAMS_MAX,
    AskHeads,
    AskMessages,
    AskRows,
    AskStreams,
    Counted,
    CountKept,
    Cursor,
    Head,
    Heads,
    Heard,
    Keep,
    Kept,
    LogRow,
    LogRows,
    PlaceHeads,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    RowName,
    Rows,
    SeqMessage,
    SyncRefused,
    TellHeads,
    TellMessages,
    TellRows,
    TellStreams,
)
from shoal.protocols.streams.wire import HistoryCodec, StreamsCodec
from shoal.transport.port import TransportLimits
from tests.strategies import (
    chain_names,
    counts,
    node_ids,
    partitions,
    positions,
    signed_bytes,
    stream_ids,
)
from tests.support.streams import ALICE, BOB, NOW_MS, STREAM

CODEC = HistoryCodec()
GOLDEN = Path(__file__).parents[3] / "golden" / "history-messages-v1.json"
LOG, OTHER_LOG = bytes(range(16)), bytes(range(16, 32))
SIGNED = bytes(range(SIGNATURE_BYTES)) + b"body"
NOW_NS = NOW_MS * 1_000_000
CURSOR = Cursor(NOW_MS, 3, ALICE, "c0ffee")
NAME = RowName(7, NOW_NS, NOW_MS, 3, BOB, "chain", bytes(16))

# One of each, with every field at a value of its own.
EXAMPLES: dict[str, Any] = {
    "read-range": ReadRange(
        1,
        STREAM,
        2,
        Position(NOW_MS, 0),
        Position(NOW_MS, 9),
        ALICE,
        "c0ffee",
        CURSOR,
        500,
        True,
        7,
    ),
    "read-everything": ReadRange(0, STREAM, 0, None, None, None, None, None, PAGE_ROWS_MAX),
    "read-last": ReadLast(2, STREAM, 99, 100_000, BOB, 10, True, 8),
    "read-log": ReadLog(3, STREAM, 1, LOG, INT63_MAX, 10, True, 9),
    "read-heads": ReadHeads(4, STREAM, 5),
    "keep": Keep(5, SIGNED),
    "count-kept": CountKept(
        18, STREAM, 2, ALICE, "c0ffee", Position(NOW_MS, 0), Position(NOW_MS, 9)
    ),
    "counted": Counted(19, 500, (BOB,)),
    "rows": Rows(6, (SIGNED, SIGNED + b"2"), CURSOR, (Heard(BOB, NOW_MS),), NOW_NS, True),
    "last-rows": Rows(6, (), None),
    "log-rows": LogRows(
        7,
        (LogRow(11, NOW_NS, SIGNED),),
        10,
        12,
        (9,),
        (Heard(BOB, INT63_MAX),),
        NOW_NS,
        True,
    ),
    "heads": Heads(8, LOG, (Head(LOG, 1, 0), Head(OTHER_LOG, 5, 9))),
    "kept": Kept(INT63_MAX, (ALICE, BOB)),
    "refused": Refused(10, "busy"),
    "ask-heads": AskHeads(11, (STREAM, StreamId("straße")), 7, NOW_MS),
    "tell-heads": TellHeads(
        12,
        LOG,
        (PlaceHeads(STREAM, 1, NOW_MS, (Head(LOG, 1, 2), Head(OTHER_LOG, 3, 4))),),
        True,
        (1,),
        NOW_MS,
    ),
    "ask-rows": AskRows(13, STREAM, 1, OTHER_LOG, 6, NOW_NS, 500),
    "tell-rows": TellRows(14, (NAME,), 7, 8),
    "ask-messages": AskMessages(15, STREAM, 1, LOG, (7, 9)),
    "tell-messages": TellMessages(16, (SeqMessage(7, SIGNED),)),
    "ask-streams": AskStreams(18, LOG, 256),
    "tell-streams": TellStreams(19, OTHER_LOG, (STREAM, StreamId("straße")), 512, True),
    "sync-refused": SyncRefused(17, "not-kept", NOW_MS),
}

logs = st.binary(min_size=16, max_size=16)
rows_max = st.integers(1, PAGE_ROWS_MAX)
reasons = st.text(max_size=200)
heads = st.builds(Head, logs, counts, counts)
cursors = st.builds(Cursor, counts, counts, node_ids, chain_names)
names = st.builds(RowName, counts, counts, counts, counts, node_ids, chain_names, logs)
few_signed = st.lists(signed_bytes(), max_size=3).map(tuple)


def few(strategy: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=least, max_size=4).map(tuple)


heards = few(st.builds(Heard, node_ids, counts))

BY_TYPE: dict[type, st.SearchStrategy[Any]] = {
    ReadRange: st.builds(
        ReadRange,
        counts,
        stream_ids,
        partitions,
        st.none() | positions,
        st.none() | positions,
        st.none() | node_ids,
        st.none() | chain_names,
        st.none() | cursors,
        rows_max,
        st.booleans(),
        counts,
    ),
    ReadLast: st.builds(
        ReadLast,
        counts,
        stream_ids,
        partitions,
        st.integers(1, 100_000),
        st.none() | node_ids,
        rows_max,
        st.booleans(),
        counts,
    ),
    ReadLog: st.builds(
        ReadLog,
        counts,
        stream_ids,
        partitions,
        logs,
        counts,
        rows_max,
        st.booleans(),
        counts,
    ),
    ReadHeads: st.builds(ReadHeads, counts, stream_ids, partitions),
    Keep: st.builds(Keep, counts, signed_bytes()),
    CountKept: st.builds(
        CountKept, counts, stream_ids, partitions, node_ids, chain_names, positions, positions
    ),
    Counted: st.builds(Counted, counts, counts),
    Rows: st.builds(Rows, counts, few_signed, st.none() | cursors, heards, counts, st.booleans()),
    LogRows: st.builds(
        LogRows,
        counts,
        few(st.builds(LogRow, counts, counts, signed_bytes())),
        counts,
        counts,
        few(counts),
        heards,
        counts,
        st.booleans(),
    ),
    Heads: st.builds(Heads, counts, logs, few(heads)),
    Kept: st.builds(Kept, counts),
    Refused: st.builds(Refused, counts, reasons),
    AskHeads: st.builds(AskHeads, counts, few(stream_ids, 1), partitions),
    TellHeads: st.builds(
        TellHeads,
        counts,
        logs,
        few(st.builds(PlaceHeads, stream_ids, partitions, counts, few(heads))),
        st.booleans(),
        few(counts),
    ),
    AskRows: st.builds(AskRows, counts, stream_ids, partitions, logs, counts, counts, rows_max),
    TellRows: st.builds(TellRows, counts, few(names), counts, counts),
    AskMessages: st.builds(AskMessages, counts, stream_ids, partitions, logs, few(counts, 1)),
    TellMessages: st.builds(
        TellMessages, counts, few(st.builds(SeqMessage, counts, signed_bytes()))
    ),
    AskStreams: st.builds(AskStreams, counts, logs, counts),
    TellStreams: st.builds(TellStreams, counts, logs, few(stream_ids), counts, st.booleans()),
    SyncRefused: st.builds(SyncRefused, counts, reasons),
}
messages: st.SearchStrategy[Any] = st.one_of(*BY_TYPE.values())


@pytest.mark.parametrize("kind", CODEC.messages, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was(kind: type) -> None:
    @given(BY_TYPE[kind])
    def round_trip(message: Any) -> None:
        decoded = CODEC.decode(CODEC.encode(message))
        assert decoded == message
        assert type(decoded) is kind

    round_trip()


def test_every_message_type_has_a_golden_encoding() -> None:
    assert {type(message) for message in EXAMPLES.values()} == set(CODEC.messages)
    assert set(golden()) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_is_the_bytes_it_always_was(name: str) -> None:
    frame = bytes.fromhex(golden()[name])
    assert CODEC.decode(frame) == EXAMPLES[name]
    assert CODEC.encode(EXAMPLES[name]).hex() == frame.hex()


def golden() -> dict[str, str]:
    text: dict[str, str] = json.loads(GOLDEN.read_text())
    return text


def test_history_and_streams_have_other_types_and_other_numbers() -> None:
    streams = StreamsCodec()
    assert CODEC.number != streams.number
    assert not set(CODEC.messages) & set(streams.messages)


WIDE = "\U0001f41f"  # a character of four bytes, as long as they come
WIDEST = StreamId(WIDE * STREAM_ID_CHARS_MAX)
LARGEST = bytes(FRAME_BYTES_MAX)
SMALL_ROWS = PAGE_BYTES_MAX // PAGE_ROWS_MAX
FAR = Cursor(INT63_MAX, INT63_MAX, ALICE, WIDE * 32)
FAR_HEAD = Head(LOG, INT63_MAX, INT63_MAX)
FAR_NAME = RowName(INT63_MAX, INT63_MAX, INT63_MAX, INT63_MAX, ALICE, WIDE * 32, LOG)


@pytest.mark.parametrize(
    "message",
    [
        Keep(INT63_MAX, LARGEST),
        Rows(INT63_MAX, (LARGEST,), FAR),
        Rows(INT63_MAX, (bytes(SMALL_ROWS),) * PAGE_ROWS_MAX, FAR),
        LogRows(INT63_MAX, (LogRow(INT63_MAX, INT63_MAX, LARGEST),), INT63_MAX, INT63_MAX),
        LogRows(
            INT63_MAX,
            (LogRow(INT63_MAX, INT63_MAX, bytes(SMALL_ROWS)),) * PAGE_ROWS_MAX,
            INT63_MAX,
            INT63_MAX,
        ),
        Heads(INT63_MAX, LOG, (FAR_HEAD,) * LOGS_MAX),
        AskHeads(INT63_MAX, (WIDEST,) * POLLED_STREAMS_MAX, 99),
        TellHeads(
            INT63_MAX,
            LOG,
            (PlaceHeads(WIDEST, 99, INT63_MAX, (FAR_HEAD,) * (HEADS_MAX // 256)),) * 256,
            True,
        ),
        TellRows(INT63_MAX, (FAR_NAME,) * PAGE_ROWS_MAX, INT63_MAX, INT63_MAX),
        TellMessages(INT63_MAX, (SeqMessage(INT63_MAX, LARGEST),)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_largest_of_its_kind_fits_a_frame(message: Any) -> None:
    frame = CODEC.encode(message)
    assert CODEC.decode(frame) == message
    assert len(frame) <= HISTORY_FRAME_BYTES_MAX < TransportLimits().frame_bytes_max


def array(*items: Any) -> bytes:
    return msgspec.msgpack.encode(items)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        array(),
        array(0, 1),
        array(11, 1),
        array(9, -1),
        array(9, 2**63),
        array(9),
        array(4, 1, "s", 101),
        array(4, 1, "", 0),
        array(3, 1, "s", 0, bytes(15), 0, 1),
        array(3, 1, "s", 0, bytes(16), 0, 0),
        array(3, 1, "s", 0, bytes(16), 0, PAGE_ROWS_MAX + 1),
        array(2, 1, "s", 0, 0, None, 1),
        array(2, 1, "s", 0, 100_001, None, 1),
        array(5, 1, bytes(SIGNATURE_BYTES)),
        array(6, 1, [bytes(66)] * (PAGE_ROWS_MAX + 1), None),
        array(20, 1, [], 0),
        array(20, 1, ["s"] * (POLLED_STREAMS_MAX + 1), 0),
        array(24, 1, "s", 0, bytes(16), []),
        array(24, 1, "s", 0, bytes(16), [1] * (PAGE_ROWS_MAX + 1)),
        array(40, "s", 0, []),  # asked of the own disk, never on a wire
        array(50, ["s", 0, 0, 0, bytes(20), "c"]),
        b"\x92\x09" + b"\x91" * 400_000,
    ],
)
def test_bytes_that_are_no_message_are_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        CODEC.decode(frame)


def test_a_frame_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(OversizedMessage):
        CODEC.decode(b"\xc1" * (HISTORY_FRAME_BYTES_MAX + 1))


@pytest.mark.parametrize("name", ["read-range", "read-everything", "read-last"])
def test_an_earlier_version_does_not_know_of_nodes_that_are_behind(name: str) -> None:
    fields = msgspec.msgpack.decode(CODEC.encode(EXAMPLES[name]))
    assert CODEC.decode(array(*fields[:-2])) == replace(EXAMPLES[name], whole=False, since_ns=0)


def test_a_later_version_may_say_more() -> None:
    assert CODEC.decode(array(9, 1, (), "more", {"of": "it"})) == Kept(1)


@given(st.integers(0, 30), st.binary(max_size=200), st.integers(0, 9))
def test_any_bytes_are_a_message_or_refused(number: int, rest: bytes, fields: int) -> None:
    decodes(bytes([0x90 + fields, number]) + rest)


@given(messages, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1))
def test_flipped_bits_are_a_message_or_refused(
    message: Any, flips: list[tuple[float, int]]
) -> None:
    frame = bytearray(CODEC.encode(message))
    for where, bit in flips:
        frame[min(int(where * len(frame)), len(frame) - 1)] ^= 1 << bit
    decodes(bytes(frame))


def decodes(frame: bytes) -> None:
    try:
        message = CODEC.decode(frame)
    except RemoteError:
        return
    assert type(message) in CODEC.messages
    assert CODEC.decode(CODEC.encode(message)) == message
