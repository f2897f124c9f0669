"""A reader of history on a fake host, and storage nodes that tell the truth or do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shoal.base.ids import NodeId, StreamId
from shoal.identity.message_body import Position, decode_body
from shoal.kernel.effects import Verify
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.inputs import Verified
from shoal.kernel.machine import Machine
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import (
    HistoryEnded,
    HistoryPage,
    ReadHistory,
    ReadMore,
    StopReading,
    What,
)
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.messages import (
    EVERYTHING,
    Counted,
    CountKept,
    Heads,
    Heard,
    Keep,
    Kept,
    LogRow,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
)
from shoal.protocols.streams.history.read_plan import cursor_of
from shoal.protocols.streams.messages import FindStorage, StorageNodes
from shoal.protocols.streams.wire import HistoryCodec
from tests.support.streams import (
    ME,
    NOW_MS,
    NOW_NS,
    STREAM,
    TRACKER,
    body_of,
    contact,
    is_signed,
    message_id,
    node,
    signed_by,
)

ONE, TWO = node(101), node(102)
"""Storage nodes; this reader asks the first of them first."""
LOG = bytes(range(16))
CODEC = HistoryCodec()


def history(count: int, **id: Any) -> list[bytes]:
    """Signed messages of one chain, a millisecond apart."""
    made = []
    previous: Position | None = None
    for number in range(count):
        here = message_id(timestamp_ms=NOW_MS - 10_000 + number, **id)
        body = body_of(here, b"%d" % number, previous)
        made.append(signed_by(here.publisher, body))
        previous = Position(here.timestamp_ms, here.sequence)
    return made


class Keeper:
    """A storage node that keeps messages and answers with what it has, a page at a time."""

    def __init__(self, messages: Sequence[bytes] = (), page_rows: int = 10) -> None:
        self.messages = sorted(messages, key=lambda signed: cursor_of(decode_body(signed).id))
        self.log = list(messages)
        self.page_rows = page_rows
        self.asked: list[Any] = []
        self.kept: list[bytes] = []
        self.speaks_for: Callable[[NodeId], int] = lambda _: EVERYTHING
        """Up to when it has what another storage node has."""
        self.unaware: tuple[NodeId, ...] = ()
        """It says of these that they may claim to be complete without what it keeps now."""

    def answer(self, question: Any) -> Any:
        """The truth."""
        self.asked.append(question)
        match question:
            case Keep(request, signed):
                self.kept.append(signed)
                return Kept(request, self.unaware)
            case CountKept():
                count = len([m for m in self.messages if _in(question, m)])
                return Counted(question.request, count, self.unaware)
            case ReadHeads(request):
                return Heads(request, LOG, ())
            case ReadLog():
                return self._log(question)
        found = [signed for signed in self.messages if _matches(question, signed)]
        if isinstance(question, ReadLast):
            found = found[-question.count :]
        rows = found[: min(question.rows_max, self.page_rows)]
        more = len(rows) < len(found)
        return Rows(
            question.request,
            tuple(rows),
            cursor_of(decode_body(rows[-1]).id) if more else None,
        )

    def _log(self, question: ReadLog) -> LogRows | Refused:
        if question.log != LOG:
            return Refused(question.request, "no-such-log")
        begin, end = question.after_seq, question.after_seq + self.page_rows
        rows = [LogRow(begin + i + 1, 0, signed) for i, signed in enumerate(self.log[begin:end])]
        return LogRows(question.request, tuple(rows), 1, len(self.log), own=True)


def _in(question: CountKept, signed: bytes) -> bool:
    id = decode_body(signed).id
    chain = (question.stream, question.partition, question.publisher, question.chain)
    here = Position(id.timestamp_ms, id.sequence)
    return (id.stream, id.partition, id.publisher, id.chain) == chain and (
        question.begin <= here <= question.end
    )


def _matches(question: ReadRange | ReadLast, signed: bytes) -> bool:
    id = decode_body(signed).id
    if (id.stream, id.partition) != (question.stream, question.partition):
        return False
    if question.publisher not in (None, id.publisher):
        return False
    if isinstance(question, ReadLast):
        return True
    here = Position(id.timestamp_ms, id.sequence)
    return (
        question.chain in (None, id.chain)
        and (question.begin is None or question.begin <= here)
        and (question.end is None or here <= question.end)
        and (question.after is None or question.after < cursor_of(id))
    )


class Silent(Keeper):
    """Takes questions and says nothing."""

    def answer(self, question: Any) -> Any:
        self.asked.append(question)


class Refusing(Keeper):
    """Says no."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def answer(self, question: Any) -> Any:
        self.asked.append(question)
        return Refused(question.request, self.reason)


class Twisted(Keeper):
    """Tells the truth for so many pages, and then what somebody made of it."""

    def __init__(
        self, messages: Sequence[bytes], honest: int, twist: Callable[[Any], Any], **settings: Any
    ) -> None:
        super().__init__(messages, **settings)
        self.honest = honest
        self.twist = twist

    def answer(self, question: Any) -> Any:
        truth = super().answer(question)
        return truth if len(self.asked) <= self.honest else self.twist(truth)


class Library:
    """A reader and the world around it. Storage nodes that are None cannot be reached."""

    def __init__(
        self,
        *keepers: Keeper | None,
        config: ClientConfig | None = None,
        beside: Sequence[Machine] = (),
        partitions: int = 1,
        named: Sequence[NodeId] = (),
    ) -> None:
        """`named` are the storage nodes in the settings of the reader."""
        trackers = (contact(TRACKER),)
        contacts = tuple(contact(id) for id in named)
        self.client = HistoryClient(
            ME, lambda _: trackers, config, lambda _: partitions, named=lambda _: contacts
        )
        self.tracker_answers = True
        self.host = FakeHost(ME, [self.client, *beside])
        self.host.time_ns = NOW_NS
        self.keepers = dict(zip((ONE, TWO), keepers, strict=False))
        self.tracker_is_up = True
        self.storage: tuple[NodeId, ...] = tuple(self.keepers)
        self.host.start()

    # Reading

    def read(self, what: What, token: str = "read", **filters: Any) -> None:
        stream: StreamId = filters.pop("stream", STREAM)
        partition = filters.pop("partition", 0)
        self.command(ReadHistory(stream, partition, what, **filters), token)

    def command(self, command: Any, token: Any = "read") -> None:
        self.host.command(self.client, command, token)
        self.settle()

    def more(self, token: str = "read") -> None:
        self.command(ReadMore(), token)

    def stop(self, token: str = "read") -> None:
        self.command(StopReading(), token)

    def read_all(self, what: What, patience_s: int = 60, **filters: Any) -> list[bytes]:
        """Everything, with a ReadMore for each page; the end is in `ended`."""
        token = filters.get("token", "read")
        seen, over = len(self.pages), len(self.ended)
        self.read(what, **filters)
        for _ in range(patience_s * 10):
            if len(self.ended) > over:
                break
            if len(self.pages) > seen:
                seen = len(self.pages)
                self.more(token)
            else:
                self.advance(100_000_000)
        return self.rows

    @property
    def pages(self) -> list[HistoryPage]:
        return [event for event in self.host.notified if isinstance(event, HistoryPage)]

    @property
    def rows(self) -> list[bytes]:
        return [row.message.signed for page in self.pages for row in page.rows]

    @property
    def ended(self) -> list[HistoryEnded]:
        return [event for event in self.host.notified if isinstance(event, HistoryEnded)]

    @property
    def rejected(self) -> list[tuple[NodeId, str]]:
        records = [record for record in self.host.records if isinstance(record, Rejected)]
        return [(record.peer, record.reason) for record in records]

    # The world

    def advance(self, duration_ns: int) -> None:
        """Let time pass, a tick at a time, and everybody answer."""
        end_ns = self.host.time_ns + duration_ns
        while self.host.time_ns < end_ns:
            self.host.advance(min(100_000_000, end_ns - self.host.time_ns))
            self.settle()

    def settle(self) -> None:
        """Let all that needs no time happen."""
        host = self.host
        while host.dialled or host.sent or host.slow_work:
            if host.dialled:
                self._dial(host.dialled.pop(0).node)
            elif host.sent:
                self._deliver(*host.sent.pop(0))
            else:
                slot, work = host.slow_work.popleft()
                assert isinstance(work, Verify)
                host.feed(slot, Verified(work.token, is_signed(work)))
            self.client.check_invariants()

    def _dial(self, peer: NodeId) -> None:
        up = self.tracker_is_up if peer == TRACKER else self.keepers.get(peer) is not None
        self.host.link_opened(peer) if up else self.host.dial_failed(peer, "refused")

    def _deliver(self, peer: NodeId, message: Any) -> None:
        if isinstance(message, FindStorage) and not self.tracker_answers:
            return
        if isinstance(message, FindStorage):
            # This reader's number is odd: it begins at the second of two.
            contacts = tuple(contact(id) for id in reversed(self.storage))
            self.host.received(peer, StorageNodes(message.stream, contacts))
            return
        assert CODEC.decode(CODEC.encode(message)) == message
        keeper = self.keepers[peer]
        assert keeper is not None
        answer = keeper.answer(message)
        if isinstance(answer, Rows | LogRows) and not answer.heard:
            others = [id for id in self.storage if id != peer]
            heard = tuple([Heard(id, keeper.speaks_for(id)) for id in others])
            answer = replaced(answer, heard=heard)
        if answer is not None:
            assert CODEC.decode(CODEC.encode(answer)) == answer
            self.host.received(peer, answer)


def replaced(answer: Any, **fields: Any) -> Any:
    """An answer, but for some fields."""
    return msgspec.structs.replace(answer, **fields)
