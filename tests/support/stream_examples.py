"""One of each message of the streams protocol, with every field at a value of its own."""

from __future__ import annotations

from typing import Any

from shoal.base.ids import INT63_MAX, Contact, MessageId, StreamId
from shoal.identity import SIGNATURE_BYTES
from shoal.identity.message_body import Body, Position, encode_body
from shoal.protocols.streams.messages import (
    Announce,
    AskTime,
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
    KeepStreams,
    KeyHolders,
    Leave,
    Left,
    NewStream,
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
    TellTime,
    Want,
)
from tests.support.streams import ALICE, BOB, CAROL, NOW_MS, STREAM

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
    "ask time": AskTime(7),
    "tell time": TellTime(INT63_MAX, 1_767_225_600_000),
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
    "keep-streams": KeepStreams(
        (NewStream(STREAM), NewStream(StreamId("straße"), ALICE, "203.0.113.0/24"))
    ),
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
