"""Bytes of the streams protocol: round trips, golden encodings, and bytes that are no message."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError
from shoal.base.ids import INT63_MAX, STREAM_ID_CHARS_MAX, MessageId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.stream_message import Body, Position, decode_body, encode_body, split_signed
from shoal.kernel.contact import ADDRESS_CHARS_MAX, ADDRESSES_MAX, Contact
from shoal.kernel.inputs import Started
from shoal.kernel.records import Delivered, Rejected
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import (
    DEGREE_MAX,
    FRAME_BYTES_MAX,
    HOLDERS_MAX,
    RTT_US_MAX,
    STORAGE_NODES_MAX,
    NodeConfig,
)
from shoal.protocols.streams.messages import (
    NODE_MESSAGES,
    REASON_CHARS_MAX,
    SIGNAL_BYTES_MAX,
    TRACKER_MESSAGES,
    Announce,
    Close,
    Expect,
    Feed,
    Fill,
    FillDone,
    FindHolders,
    FindStorage,
    Flood,
    Heads,
    Instruction,
    Join,
    JoinRefused,
    KeyHolders,
    Leave,
    Left,
    Open,
    Ping,
    Pong,
    Probe,
    Probed,
    Report,
    Rtt,
    Signal,
    Signalled,
    Status,
    StorageNodes,
    Want,
)
from shoal.protocols.streams.random_policy import RandomPolicy
from shoal.protocols.streams.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from tests.strategies import BY_TYPE, bodies, signatures, stream_messages
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    EVE,
    ME,
    NOW_MS,
    OTHER_STREAM,
    STREAM,
    TRACKER,
    Bench,
    body_of,
    contact,
    flood_of,
    instruction,
    linked_node,
    message_id,
    node,
    of_kind,
    sent,
)

CODEC = StreamsCodec()
GOLDEN = Path(__file__).parents[2] / "golden" / "streams-messages-v1.json"

# One of each, with every field at a value of its own.
SIGNATURE = bytes(range(SIGNATURE_BYTES))
BODY = Body(
    MessageId(StreamId("0xaa/straße"), 99, NOW_MS, 3, CAROL, "c0ffee"),
    Position(NOW_MS - 1, 0),
    2,
    b"\x00content\xff",
)
LATER = Position(NOW_MS + 1000, 2)
EXAMPLES: dict[str, Any] = {
    "flood": Flood(7, 123_456, INT63_MAX, SIGNATURE + encode_body(BODY)),
    "open": Open(STREAM, True),
    "close": Close(STREAM, False),
    "ping": Ping(0),
    "pong": Pong(INT63_MAX),
    "join": Join(STREAM, Contact(ALICE, ("wss://a.example:443", "ws://[::1]:7")), 5, 6, (BOB,)),
    "join-without-address": Join(STREAM, Contact(ALICE), 0, 0, ()),
    "leave": Leave(STREAM),
    "status": Status(STREAM, NOW_MS, 65_536, (ALICE, BOB)),
    "report": Report(STREAM, (Rtt(ALICE, 1500, 70), Rtt(BOB, 0)), (CAROL,), (ALICE,), 45),
    "instruction": Instruction(STREAM, NOW_MS, 1, (Contact(ALICE, ("ws://a:1",)), Contact(BOB))),
    "left": Left(STREAM),
    "join-refused": JoinRefused(STREAM, True, "the chain is away"),
    "signal": Signal(STREAM, BOB, b"call me"),
    "signalled": Signalled(STREAM, ALICE, b"call me"),
    "find-holders": FindHolders(7, STREAM, CAROL),
    "key-holders": KeyHolders(7, (Contact(ALICE, ("ws://a:1",)), Contact(BOB))),
    "expect": Expect(STREAM, Contact(ALICE, ("ws://a:1",))),
    "find-storage": FindStorage(STREAM),
    "storage-nodes": StorageNodes(STREAM, (Contact(ALICE, ("ws://a:1",)), Contact(BOB))),
    "heads": Heads(STREAM, (((ALICE, 0, "c"), (NOW_MS, 1)), ((BOB, 99, "d"), (NOW_MS + 5, 0)))),
    "fill": Fill(STREAM, CAROL, 1, "c0ffee", Position(NOW_MS, 0), LATER),
    "fill-done": FillDone(STREAM, CAROL, 1, "c0ffee", 17),
    "feed": Feed(STREAM, ((ALICE, 0, "c"), (BOB, 99, "d")), True),
    "announce": Announce(STREAM, ((ALICE, 2, "c"), (NOW_MS, 1))),
    "want": Want(STREAM, ((BOB, 99, "d"), (NOW_MS, 3))),
    "probe": Probe(STREAM, (Contact(ALICE, ("ws://a:1",)), Contact(BOB))),
    "probed": Probed(STREAM, (Rtt(ALICE, 1500, 70), Rtt(BOB, 0))),
}
FIRST_BODY = Body(MessageId(STREAM, 0, 0, 0, ALICE, "c"), None, 0, b"")
BODIES = {"body": BODY, "first-body": FIRST_BODY}
# As the first nodes said it, without what was added since.
OLDER: dict[str, Any] = {
    "report-older": Report(STREAM, (Rtt(ALICE, 1500), Rtt(BOB, 0)), (CAROL,), (ALICE,)),
}


# Round trips and golden bytes


@pytest.mark.parametrize("kind", CODEC.messages, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was(kind: type) -> None:
    @given(BY_TYPE[kind])
    def round_trip(message: Any) -> None:
        frame = CODEC.encode(message)
        assert CODEC.decode(frame) == message
        assert type(CODEC.decode(frame)) is kind

    round_trip()


@given(signatures, bodies)
def test_every_body_comes_back_as_it_was(signature: bytes, body: Body) -> None:
    signed = signature + encode_body(body)
    assert decode_body(signed) == body
    assert split_signed(signed) == (signature, encode_body(body))


def test_every_message_type_has_a_golden_encoding() -> None:
    assert {type(message) for message in EXAMPLES.values()} == set(CODEC.messages)
    assert set(golden()) == {*EXAMPLES, *OLDER, *BODIES}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_is_the_bytes_it_always_was(name: str) -> None:
    frame = bytes.fromhex(golden()[name])
    assert CODEC.decode(frame) == EXAMPLES[name]
    assert CODEC.encode(EXAMPLES[name]).hex() == frame.hex()


@pytest.mark.parametrize("name", OLDER)
def test_what_earlier_nodes_said_is_understood(name: str) -> None:
    assert CODEC.decode(bytes.fromhex(golden()[name])) == OLDER[name]


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_the_bytes_that_were_always_signed(name: str) -> None:
    encoded = bytes.fromhex(golden()[name])
    assert decode_body(SIGNATURE + encoded) == BODIES[name]
    assert encode_body(BODIES[name]).hex() == encoded.hex()


def golden() -> dict[str, str]:
    text: dict[str, str] = json.loads(GOLDEN.read_text())
    return text


WIDE = "\U0001f41f"  # a character of four bytes, as long as they come
WIDEST = StreamId(WIDE * STREAM_ID_CHARS_MAX)
CROWD = tuple(node(number) for number in range(DEGREE_MAX))
FAR = tuple(Contact(n, (WIDE * ADDRESS_CHARS_MAX,) * ADDRESSES_MAX) for n in CROWD)


@pytest.mark.parametrize(
    "message",
    [
        Join(WIDEST, FAR[0], INT63_MAX, INT63_MAX, CROWD),
        Status(WIDEST, INT63_MAX, INT63_MAX, CROWD),
        Report(
            WIDEST,
            tuple(Rtt(n, RTT_US_MAX, RTT_US_MAX) for n in CROWD),
            CROWD,
            CROWD,
            RTT_US_MAX,
        ),
        Instruction(WIDEST, INT63_MAX, INT63_MAX, FAR),
        StorageNodes(WIDEST, FAR[:STORAGE_NODES_MAX]),
        KeyHolders(INT63_MAX, FAR[:HOLDERS_MAX]),
        Expect(WIDEST, FAR[0]),
        JoinRefused(WIDEST, False, WIDE * REASON_CHARS_MAX),
        Signalled(WIDEST, ALICE, bytes(SIGNAL_BYTES_MAX)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_largest_of_its_kind_fits_a_frame(message: Any) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


# What is no message


def array(*items: Any) -> bytes:
    """A msgpack array that need not be any message of ours."""
    return msgspec.msgpack.encode(items)


def raw(*parts: bytes) -> bytes:
    """An array of items that are encoded already."""
    return bytes([0x90 + len(parts)]) + b"".join(parts)


LONG_ARRAY = b"\xdd\xff\xff\xff\xff"
LONG_TEXT = b"\xdb\xff\xff\xff\xff"
LONG_BYTES = b"\xc6\xff\xff\xff\xff"
TEXT_S = b"\xa1s"
NO_MESSAGES = {
    "nothing": b"",
    "one-byte": b"\xc1",
    "a-number": b"\x01",
    "a-map": msgspec.msgpack.encode({"type": 4, "nonce": 1}),
    "no-fields": array(),
    "unknown-number": array(12, 1),
    "number-zero": array(0, 1),
    "negative-number": array(-1, 1),
    "number-as-text": array("4", 1),
    "number-as-float": array(4.0, 1),
    "too-few-fields": array(4),
    "two-messages": array(4, 1) + array(4, 1),
    "negative-count": array(4, -1),
    "count-of-64-bits": array(4, 2**63),
    "count-of-64-ones": array(4, 2**64 - 1),
    "count-as-float": array(4, 1.0),
    "count-as-nan": raw(b"\x04", b"\xcb" + struct.pack(">d", float("nan"))),
    "count-as-bool": array(4, True),
    "count-as-nil": array(4, None),
    "count-as-time": raw(b"\x04", b"\xd6\xff\x00\x00\x00\x00"),
    "flag-as-number": array(2, "s", 1),
    "empty-stream": array(2, "", False),
    "long-stream": array(2, "s" * 257, False),
    "stream-as-bytes": array(2, b"s", False),
    "stream-not-utf8": raw(b"\x02", b"\xa2\xff\xfe", b"\xc2"),
    "stream-half-a-surrogate": raw(b"\x02", b"\xa3\xed\xa0\x80", b"\xc2"),
    "stream-overlong-utf8": raw(b"\x02", b"\xa2\xc0\xaf", b"\xc2"),
    "short-node": array(8, "s", 0, 0, [b"n" * 19]),
    "long-node": array(8, "s", 0, 0, [b"n" * 21]),
    "empty-node": array(8, "s", 0, 0, [b""]),
    "node-as-text": array(8, "s", 0, 0, ["n" * 20]),
    "too-many-neighbours": array(8, "s", 0, 0, [b"n" * 20] * (DEGREE_MAX + 1)),
    "too-many-contacts": array(10, "s", 0, 0, [[b"n" * 20, []]] * (DEGREE_MAX + 1)),
    "too-many-round-trips": array(9, "s", [[b"n" * 20, 1]] * (DEGREE_MAX + 1), [], []),
    "too-many-addresses": array(6, "s", [b"n" * 20, ["a"] * 9], 0, 0, []),
    "long-address": array(6, "s", [b"n" * 20, ["a" * 257]], 0, 0, []),
    "too-many-holders": array(26, 1, [[b"n" * 20, []]] * (HOLDERS_MAX + 1)),
    "too-many-hops": array(1, 256, 0, 0, b"s" * 66),
    "signature-without-body": array(1, 0, 0, 0, b"s" * 65),
    "endless-array": LONG_ARRAY + b"\x02" + TEXT_S + b"\xc2",
    "endless-neighbours": raw(b"\x08", TEXT_S, b"\x00", b"\x00", LONG_ARRAY),
    "endless-text": raw(b"\x02", LONG_TEXT, b"\xc2"),
    "endless-bytes": raw(b"\x01", b"\x00", b"\x00", b"\x00", LONG_BYTES),
    "deep-arrays": raw(b"\x02", b"\x91" * 400_000),
    "deep-maps": raw(b"\x02", b"\x81\x01" * 200_000),
    "deep-arrays-behind-a-message": raw(b"\x02", TEXT_S, b"\xc2", b"\x91" * 400_000),
    "endless-array-behind-a-message": raw(b"\x02", TEXT_S, b"\xc2", LONG_ARRAY + b"\xc0" * 400_000),
}


@pytest.mark.parametrize("frame", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_bytes_that_are_no_message_are_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        CODEC.decode(frame)


def test_a_frame_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(OversizedMessage):
        CODEC.decode(b"\xc1" * (FRAME_BYTES_MAX + 1))
    with pytest.raises(MalformedMessage):
        CODEC.decode(b"\xc1" * FRAME_BYTES_MAX)


def test_a_later_version_may_say_more() -> None:
    assert CODEC.decode(array(4, 1, "more", {"of": "it"})) == Ping(1)


def body_bytes(
    *id: Any, tag: Any = "shoal/stream/1", rest: tuple[Any, ...] = (None, 0, b"")
) -> bytes:
    return SIGNATURE + msgspec.msgpack.encode([tag, list(id), *rest])


ID = ("s", 0, 0, 0, b"n" * 20, "c")
NO_BODIES = {
    "nothing": SIGNATURE,
    "less-than-a-signature": b"s",
    "a-number": SIGNATURE + b"\x01",
    "another-tag": body_bytes(*ID, tag="shoal/stream/2"),
    "no-tag": SIGNATURE + msgspec.msgpack.encode([list(ID), None, 0, b""]),
    "empty-stream": body_bytes("", *ID[1:]),
    "partition-over": body_bytes("s", 101, *ID[2:]),
    "partition-below": body_bytes("s", -1, *ID[2:]),
    "negative-timestamp": body_bytes("s", 0, -1, *ID[3:]),
    "timestamp-of-64-bits": body_bytes("s", 0, 2**63, *ID[3:]),
    "sequence-of-64-bits": body_bytes("s", 0, 0, 2**63, *ID[4:]),
    "short-publisher": body_bytes("s", 0, 0, 0, b"n" * 19, "c"),
    "long-publisher": body_bytes("s", 0, 0, 0, b"n" * 21, "c"),
    "empty-chain": body_bytes("s", 0, 0, 0, b"n" * 20, ""),
    "long-chain": body_bytes("s", 0, 0, 0, b"n" * 20, "c" * 33),
    "short-id": body_bytes(*ID[:5]),
    "previous-as-number": body_bytes(*ID, rest=(1, 0, b"")),
    "previous-negative": body_bytes(*ID, rest=([-1, 0], 0, b"")),
    "content-type-over": body_bytes(*ID, rest=(None, 256, b"")),
    "content-as-text": body_bytes(*ID, rest=(None, 0, "")),
    "two-bodies": SIGNATURE + 2 * encode_body(BODY),
    "deep": SIGNATURE + b"\x91" * 400_000,
}


@pytest.mark.parametrize("signed", NO_BODIES.values(), ids=NO_BODIES)
def test_bytes_that_are_no_body_are_malformed(signed: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_body(signed)


@pytest.mark.parametrize("depth", [0, 1, 700])
def test_every_hop_reads_a_body_the_same_way(depth: int) -> None:
    # A body with more in it than we know is read by whoever has stack left for what is nested in
    # there, and is an offence of its honest sender to whoever has not.
    more = b"\x91" * depth + b"\x01"
    encoded = encode_body(FIRST_BODY)
    signed = SIGNATURE + bytes([encoded[0] + 1]) + encoded[1:] + more

    def deeper(levels: int) -> bool:
        if levels:
            return deeper(levels - 1)
        try:
            decode_body(signed)
        except MalformedMessage:
            return False
        return True

    verdicts = {deeper(levels) for levels in (0, sys.getrecursionlimit() // 2)}
    assert verdicts == {False}


# Fuzzing: a message or a RemoteError, whatever the bytes


def decodes(frame: bytes) -> bool:
    try:
        message = CODEC.decode(frame)
    except RemoteError:
        return False
    assert type(message) in CODEC.messages
    assert CODEC.decode(CODEC.encode(message)) == message
    return True


@given(st.binary(max_size=300))
@example(b"\xc1")
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    decodes(frame)


@given(st.integers(0, 12), st.binary(max_size=200), st.integers(0, 7))
def test_any_bytes_behind_a_message_number_are_a_message_or_refused(
    number: int, rest: bytes, fields: int
) -> None:
    decodes(bytes([0x90 + fields, number]) + rest)


@given(stream_messages, st.data())
def test_a_truncated_message_is_refused(message: Any, data: st.DataObject) -> None:
    frame = CODEC.encode(message)
    assert not decodes(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(stream_messages, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), min_size=1))
def test_flipped_bits_are_a_message_or_refused(
    message: Any, flips: list[tuple[float, int]]
) -> None:
    frame = bytearray(CODEC.encode(message))
    for where, bit in flips:
        frame[min(int(where * len(frame)), len(frame) - 1)] ^= 1 << bit
    decodes(bytes(frame))


@given(signatures, bodies, st.data())
def test_a_changed_body_is_a_body_or_refused(
    signature: bytes, body: Body, data: st.DataObject
) -> None:
    signed = bytearray(signature + encode_body(body))
    at = data.draw(st.integers(SIGNATURE_BYTES, len(signed) - 1))
    signed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessage):
        decode_body(bytes(signed[: data.draw(st.integers(0, len(signed)))]))


def test_no_frame_takes_long_whatever_it_declares(seed: int) -> None:
    """No length that a frame declares, and no nesting, costs more than reading its bytes."""
    rng = Random(seed)
    heads = [CODEC.encode(message)[:-1] for message in EXAMPLES.values()]
    fillers = [b"\x91", b"\xdd\xff\xff\xff\xff", b"\x81\xa1k", b"\xc0", b"\xc4\x02xx", b"\xcf" * 9]
    size = FRAME_BYTES_MAX // 8
    slowest_s = 0.0
    for _ in range(300):
        head, filler = rng.choice(heads), rng.choice(fillers)
        cut = rng.randrange(1, len(head) + 1)
        frame = bytes([0x9F]) + head[1:cut] + filler * (size // len(filler))
        start_s = perf_counter()
        decodes(frame)
        slowest_s = max(slowest_s, perf_counter() - start_s)
    assert slowest_s < 1  # a millisecond, in fact; the rest is for a busy machine


def test_a_flood_of_real_size_goes_through(seed: int) -> None:
    content = Random(seed).randbytes(100_000)
    flood = flood_of(body_of(message_id(), content))
    assert CODEC.decode(CODEC.encode(flood)) == flood
    assert decode_body(flood.signed).content == content


# Fuzzing on: what still is a message goes to a machine, which must take it

FRAMES = 5000


def mutate(rng: Random, frame: bytes, other: bytes) -> bytes:
    """A frame with a few things wrong with it, or none."""
    changed = bytearray(frame)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(6):
            case 0 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at : at + rng.randrange(1, 4)]
            case 3:
                changed[at:at] = rng.randbytes(rng.randrange(1, 4))
            case 4:
                start = rng.randrange(len(other))
                changed[at : at + 8] = other[start : start + 8]
            case _:
                changed[at : at + 9] = b"\xcf" + rng.choice([b"\x7f" + b"\xff" * 7, b"\0" * 8])
    return bytes(changed)


def hostile_frames(rng: Random, pool: list[Any], kinds: tuple[type, ...]) -> Iterator[Any]:
    """Thousands of mutated frames; those that are a message which such a machine gets."""
    frames = [CODEC.encode(message) for message in pool]
    for _ in range(FRAMES):
        frame = mutate(rng, rng.choice(frames), rng.choice(frames))
        try:
            message = CODEC.decode(frame)
        except RemoteError:
            continue  # the link counts it
        if type(message) in kinds:
            yield message


def test_no_frame_of_a_peer_harms_a_node(seed: int) -> None:
    rng = Random(seed)
    bench = linked_node(ALICE, BOB, config=NodeConfig(offences_max=100))
    floods = [flood_of(body_of(message_id(n), chain_content(n))) for n in range(40)]
    pool = [
        *floods,
        *(Open(STREAM, answered) for answered in (True, False)),
        *(Close(STREAM, answer) for answer in (True, False)),
        Open(OTHER_STREAM, False),
        Ping(1),
        *(Pong(nonce) for nonce in range(4)),
        instruction(2, EVE),
        Left(STREAM),
    ]
    taken, rejected = 0, 0
    for message in hostile_frames(rng, pool, NODE_MESSAGES):
        effects = bench.receive(rng.choice((ALICE, BOB, EVE)), message)
        effects += bench.answer_verifies(effects)
        taken += 1
        rejected += len(of_kind(effects, Rejected))
        if rng.random() < 0.1:
            bench.link_up(rng.choice((ALICE, BOB)))
        if rng.random() < 0.02:
            bench.link_down(rng.choice((ALICE, BOB)))
        if rng.random() < 0.05:
            bench.advance(rng.randrange(3 * S_NS))
    assert taken > FRAMES // 4
    assert rejected > FRAMES // 20
    # The tracker still rules, and messages still flow.
    for counter, peers in ((2, ()), (3, (ALICE, BOB))):
        bench.receive(TRACKER, instruction(counter, *peers))
        for peer in peers:
            bench.link_up(peer)
            bench.receive(peer, Open(STREAM, True))
        bench.advance(10 * S_NS)
    id = message_id(99, timestamp_ms=bench.now_ns // MS_NS, chain="after")
    effects = bench.flood(ALICE, flood_of(body_of(id)))
    assert [record.message for record in of_kind(effects, Delivered)] == [id]
    assert sent(effects, Flood)[0][1] == (BOB,)


def chain_content(number: int) -> bytes:
    return b"%d" % number


def test_no_frame_of_its_tracker_crashes_a_node(seed: int) -> None:
    rng = Random(seed)
    bench = linked_node(ALICE, BOB)
    pool = [
        *(instruction(n, *peers) for n, peers in enumerate(((ALICE,), (BOB, EVE), (), (ME,)))),
        instruction(1, ALICE, stream=OTHER_STREAM),
        Left(STREAM),
    ]
    for message in hostile_frames(rng, pool, NODE_MESSAGES):
        bench.receive(TRACKER, message)
        bench.link_up(rng.choice((ALICE, BOB, EVE)))
        if rng.random() < 0.1:
            bench.advance(rng.randrange(3 * S_NS))
    assert bench.command(JoinStream(OTHER_STREAM))


def test_no_frame_harms_a_tracker(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(Tracker(lambda stream: RandomPolicy(4, Random(seed))))
    bench.feed(Started())
    members = [node(number) for number in range(100, 112)]
    for peer in members:
        bench.receive(peer, Join(STREAM, contact(peer), 0, 0, ()))
        bench.link_up(peer)
    tracker = bench.machine
    taken, rejected = 0, 0
    pool: list[Any] = []
    for counter in range(1, 40):
        some = tuple(rng.sample(members, 4))
        pool.append(Status(STREAM, tracker.epoch, counter, some))
        pool.append(Report(STREAM, (Rtt(some[0], 1000),), some[1:2], some[2:3]))
        pool.append(Join(STREAM, contact(some[0]), tracker.epoch, counter, some[1:]))
    pool += [
        FindStorage(STREAM),
        FindHolders(1, STREAM, members[0]),
        FindHolders(2, OTHER_STREAM, ALICE),
        Leave(STREAM),
        Leave(OTHER_STREAM),
        Join(OTHER_STREAM, contact(ALICE), 0, 0, ()),
    ]
    for message in hostile_frames(rng, pool, TRACKER_MESSAGES):
        peer = rng.choice((*members, ALICE, EVE))
        if isinstance(message, Join) and rng.random() < 0.5:
            peer = message.contact.node  # a node may well name itself
        effects = bench.receive(peer, message)
        taken += 1
        rejected += len(of_kind(effects, Rejected))
        bench.link_up(peer)
        if rng.random() < 0.03:
            bench.link_down(rng.choice(members))
        if rng.random() < 0.05:
            bench.advance(rng.randrange(3 * S_NS))
    assert taken > FRAMES // 4
    assert rejected > FRAMES // 20
    bench.advance(60 * S_NS)
    [(order, _)] = [
        (message, peers)
        for message, peers in sent(
            bench.receive(CAROL, Join(STREAM, contact(CAROL), 0, 0, ())), Instruction
        )
        if peers == (CAROL,)
    ]
    assert order.stream == STREAM
