"""The storage machine: keeps messages, and answers whoever asks for them.

Theory of operation. What the local subscriber hears (KeepMessage) and what publishers send (Keep,
once its signature is good) goes to the disk by Store; Kept is said after Stored, and not before.
A question goes to the disk as the key of a Load, and the answer that comes back goes to the asker:
nothing is remembered of a reader but which of its questions wait. Those of one that does not read
its answers wait until it does. All that waits is bounded; above the bounds peers are told "busy",
and messages of the own subscriber are counted and left to anti-entropy.

An answer says up to when it speaks for the other storage nodes of the stream. A reader who wants
the whole, and asks for messages newer than that, waits: the stream is compared with those that can
be reached, then the disk is asked again. While they have more than could be had in time, the reader
is told that we are behind. Of a stream that this node never heard of it says "not kept"; of one of
which rows are on its disk, and which it does not keep now, "not served": that is not "nothing".

Askers dial. Their link is claimed softly at the first question, and given back when they have been
quiet for a while. Retention is a question to the disk, too: one step at a time, now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.errors import InvariantViolated, MalformedMessage, UsageError
from shoal.base.ids import Contact, MessageId, NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.identity.message_body import Position, decode_body
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import (
    CancelTimer,
    CloseLink,
    Effect,
    Load,
    Notify,
    OpenLink,
    Send,
    SetTimer,
    Store,
)
from shoal.kernel.effects import Store as StoreEffect
from shoal.kernel.effects import Verify as VerifyEffect
from shoal.kernel.inputs import (
    AccessChanged,
    AccessChecked,
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    Loaded,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
    Started,
    Stored,
    StoreFailed,
    TimerFired,
    Verified,
)
from shoal.kernel.records import Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import CompareStream, StreamsCompared
from shoal.protocols.streams.config import LATE_MS, STORAGE_NODES_MAX, StorageConfig
from shoal.protocols.streams.history.anti_entropy import Replica
from shoal.protocols.streams.history.disk_requests import (
    DISK_BEHIND,
    DISK_FAILED,
    STORE_GONE,
    FindLast,
    FindMissing,
    MessageKey,
    Retain,
    Retained,
    decode_answer,
    encode,
)
from shoal.protocols.streams.history.messages import (
    BEHIND,
    EVERYTHING,
    QUESTIONS,
    Counted,
    CountKept,
    Cursor,
    Heard,
    Keep,
    Kept,
    LogRows,
    ReadHeads,
    ReadLast,
    ReadLog,
    ReadRange,
    Refused,
    Rows,
)
from shoal.protocols.streams.history.stored_gaps import StoredGaps
from shoal.protocols.streams.messages import STORAGE_MESSAGES, KeepStreams, NewStream
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.protocols.streams.stream_quota import NameQuota

PURPOSE = "storage"
IDLE = "idle"
RETAIN = "retain"
GAPS = "gaps"
PUBLISH, SUBSCRIBE = int(Permission.PUBLISH), int(Permission.SUBSCRIBE)
EITHER = PUBLISH | SUBSCRIBE

Question = ReadRange | ReadLast | ReadLog | ReadHeads | CountKept


class KeepMessage(msgspec.Struct, frozen=True, gc=False):
    """Command: the local subscriber heard a message of a stream that is kept."""

    message: VerifiedMessage


class StreamWanted(msgspec.Struct, frozen=True, gc=False):
    """Told: a publisher wants this stream kept, or a tracker says that there is one, as its
    settings allow."""

    stream: StreamId


class StorageNode:
    """Keeps the streams that `keeps` says yes to."""

    accepts = (*QUESTIONS, *STORAGE_MESSAGES, StreamsCompared)

    def __init__(
        self,
        node: NodeId,
        keeps: Callable[[StreamId], bool],
        config: StorageConfig | None = None,
        access: AccessTable | None = None,
        is_behind: Callable[[StreamId, int], bool] = lambda stream, now_ns: False,
        missed: Callable[[StreamId, int], None] = lambda stream, now_ns: None,
        took: Callable[[MessageId], None] = lambda id: None,
        is_tracker: Callable[[NodeId], bool] = lambda node: False,
        is_kept: Callable[[StreamId], bool] = lambda stream: False,
        quota: NameQuota | None = None,
        holds: Callable[[StreamId], bool] | None = None,
        replicas: Callable[[StreamId, int], tuple[Replica, ...]] = lambda stream, now_ns: (),
        is_unserved: Callable[[StreamId], bool] = lambda stream: False,
        unaware: Callable[[StreamId, int], tuple[NodeId, ...]] = lambda stream, timestamp_ms: (),
    ) -> None:
        """Without a table, everybody may read and publish: there is no registry. `missed` hears of
        streams of which the disk did not take a message, `took` of messages that it took. Trackers
        are believed that there is a stream. `holds` says which of the streams that may be kept this
        node has heard of: all of them, unless it is given. `is_unserved` says whether rows of any
        other one are on the disk. `unaware` names the other storage nodes of a stream that may
        speak for this one, up to a message time, without a message that it takes now."""
        self.node = node
        self.config = config or StorageConfig()
        self.stored = 0
        """Messages that the disk has taken since the start, known ones among them."""
        self.let_go = 0
        """Messages that retention has removed since the start."""
        self.gaps = StoredGaps(self.config)
        """What is missing in the chains that were stored."""
        self._chained = self.gaps.stored
        self.replaced = False
        """Another node goes on under our key, and may have what is not here: we speak for nobody,
        and not for that one."""
        self._keeps = keeps
        self._is_behind = is_behind
        self._missed = missed
        self._holds = keeps if holds is None else holds
        self._replicas = replicas
        self._is_unserved = is_unserved
        self._unaware = unaware
        self._comparing: dict[StreamId, list[Asked]] = {}  # questions that wait for it
        self.wall = WallClock() if access is None else access.wall
        self._took = took
        self._is_tracker = is_tracker
        self._is_kept = is_kept
        self.quota = quota or NameQuota(self.config.quotas, lambda: 0)
        """Whose made-up streams are kept here."""
        self._now_ns = 0
        self._peers: dict[NodeId, AskingPeer] = {}
        self._waiting: dict[ToKeep, None] = {}
        self._waiting_bytes = 0
        self._access = access
        self._undecided: dict[tuple[StreamId, NodeId], list[Undecided]] = {}
        config = self.config
        self._rates = RateLimit(
            config.questions_burst, config.questions_refill_ns, config.peers_max
        )

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        self._now_ns = now_ns
        match event:  # first what comes with each message
            case Stored(token):
                return self._stored(token)
            case CommandIssued(command):
                return self._command(command)
            case MessageReceived(peer, Keep() as keep):
                return self._keep(peer, keep, now_ns)
            case MessageReceived(peer, StreamsCompared(streams)):
                return self._compared(streams) if peer == self.node else []
            case MessageReceived(peer, KeepStreams(streams)):
                return self._noticed(peer, streams)
            case MessageReceived(peer, question):
                return self._ask(peer, question, now_ns)
            case Loaded(token, value) if token is RETAIN:
                return self._retained(value)
            case Loaded(FindMissing() as question, value):
                self.gaps.looked_up(question, None if value is None else decode_answer(value))
                return self._look_for_gaps()
            case Loaded(token, value):
                return self._loaded(token, value)
            case Verified(token, valid):
                return self._verified(token, valid, now_ns)
            case AccessChecked():
                return self._access_checked(event, now_ns)
            case AccessChanged() if self._access is not None:
                self._access.changed(event)
            case StoreFailed(token, reason):
                return self._store_failed(token, reason)
            case TimerFired(key) if key is GAPS:
                self.gaps.begin(now_ns)
                return [SetTimer(GAPS, self.config.gaps_ns), *self._look_for_gaps()]
            case TimerFired(key) if key is RETAIN:
                return [Load(encode(Retain()), RETAIN)]
            case TimerFired(Asked() as asked):
                return self._not_compared(asked)
            case TimerFired():
                return [*self._part_with_idle(now_ns), SetTimer(IDLE, self.config.idle_ns)]
            case Started():
                return [
                    SetTimer(IDLE, self.config.idle_ns),
                    SetTimer(RETAIN, self.config.retain_step_ns),
                    SetTimer(GAPS, self.config.gaps_ns),
                ]
            case LinkClosed(peer) | LinkFailed(peer):
                self._peers.pop(peer, None)
            case SendQueueHigh(peer) | SendQueueLow(peer) if peer in self._peers:
                entry = self._peers[peer]
                entry.congested = isinstance(event, SendQueueHigh)
                return [] if entry.congested else self._go_on(peer, entry)
        return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        size_bytes = sum(len(keeping.signed) for keeping in self._waiting)
        if size_bytes != self._waiting_bytes:
            raise InvariantViolated(f"{size_bytes} bytes wait, not {self._waiting_bytes}")
        if len(self._waiting) > self.config.waiting_messages_max:
            raise InvariantViolated(f"{len(self._waiting)} messages wait for the disk")
        for peer in self._peers.values():
            if not 0 <= peer.in_flight <= self.config.questions_in_flight_max:
                raise InvariantViolated(f"{peer.in_flight} questions of one peer wait")

    @property
    def waiting(self) -> int:
        """Messages whose signature is being checked, or that wait for the disk."""
        return len(self._waiting)

    # Questions

    def _ask(self, peer: NodeId, question: Question, now_ns: int) -> list[Effect]:
        counts = isinstance(question, CountKept)
        held = self._keeps if counts else self._holds
        asked, effects = self._admit(peer, question.request, question.stream, held, now_ns)
        if asked is None:
            return effects
        wants_whole = isinstance(question, ReadRange | ReadLast) and question.whole
        if wants_whole and self._is_behind(question.stream, now_ns):
            return effects + self._answer(asked, Refused(asked.request, BEHIND))
        if isinstance(question, CountKept):
            asked.question = question
        elif isinstance(question, ReadRange | ReadLast | ReadLog):
            asked.question = question
            asked.since_ns = question.since_ns if 0 < question.since_ns <= now_ns else now_ns
        # Publishers count what of their own is kept, and need not be subscribers.
        kinds = EITHER if counts else SUBSCRIBE
        undecided = Undecided(asked, kinds, Load(encode(question), asked))
        if asked.entry.congested:
            asked.entry.held.append(Held(question.stream, undecided))
            return effects
        return effects + self._decide(question.stream, peer, undecided, now_ns)

    def _loaded(self, token: Any, value: bytes | None) -> list[Effect]:
        asked: Asked = token
        if value is None:
            return self._answer(asked, Refused(asked.request, DISK_FAILED))
        answer = decode_answer(value)
        if isinstance(answer, FindLast) and self._peers.get(asked.peer) is asked.entry:
            return [Load(value, asked)]  # behind what others have asked meanwhile
        question = asked.question
        if isinstance(question, CountKept):
            if isinstance(answer, Counted):
                unaware = self._unaware(question.stream, question.begin.timestamp_ms)
                answer = msgspec.structs.replace(answer, unaware=unaware)
        elif question is not None and isinstance(answer, Rows | LogRows):
            return self._vouch(asked, question, answer)
        return self._answer(asked, answer)

    # What an answer says of other storage nodes

    def _vouch(
        self, asked: Asked, question: ReadRange | ReadLast | ReadLog, answer: Rows | LogRows
    ) -> list[Effect]:
        """Up to when is it the answer of all of them? If that is too early, and may be changed, the
        question waits."""
        replicas = self._replicas(question.stream, self._now_ns)
        is_of_all = not isinstance(answer, LogRows) or answer.own
        newest_ms = newest_ms_of(question, answer.next if isinstance(answer, Rows) else None)
        if self.replaced:
            heard = tuple([Heard(node, 0) for node in (self.node, *(r.node for r in replicas))])
            return self._answer(
                asked, msgspec.structs.replace(answer, heard=heard[:STORAGE_NODES_MAX])
            )
        if question.whole and is_of_all and self._lacks(asked, replicas, newest_ms):
            self._comparing.setdefault(question.stream, []).append(asked)
            compare = CompareStream(question.stream, asked.since_ns)
            wait_ns = self.config.compare_ns
            return [Send(compare, (self.node,)), SetTimer(asked, wait_ns)]
        heard = tuple(
            [
                Heard(
                    replica.node,
                    EVERYTHING
                    if is_of_all and replica.compared_ns >= asked.since_ns
                    else replica.until_ms,
                )
                for replica in replicas[:STORAGE_NODES_MAX]
            ]
        )
        asked_ns = asked.since_ns if question.whole else 0
        return self._answer(asked, msgspec.structs.replace(answer, heard=heard, asked_ns=asked_ns))

    def _lacks(self, asked: Asked, replicas: tuple[Replica, ...], newest_ms: int) -> bool:
        """Whether one that can be compared with may have messages of a range that are not here."""
        return any(
            replica.answers
            and max(replica.compared_ns, replica.tried_ns) < asked.since_ns
            and newest_ms > replica.until_ms - LATE_MS
            for replica in replicas
        )

    def _compared(self, streams: tuple[StreamId, ...]) -> list[Effect]:
        """Those whose question waits for nothing any more are answered, from the disk as it is."""
        effects: list[Effect] = []
        for stream in streams:
            replicas = self._replicas(stream, self._now_ns)
            waiting = self._comparing.pop(stream, [])
            left = [asked for asked in waiting if self._lacks(asked, replicas, EVERYTHING)]
            if left:
                self._comparing[stream] = left
            for asked in waiting:
                if asked not in left:
                    effects += [CancelTimer(asked), Load(encode(asked.question), asked)]
        return effects

    def _not_compared(self, asked: Asked) -> list[Effect]:
        """Not in time: another storage node may be faster."""
        assert asked.question is not None  # or it would not have waited
        stream = asked.question.stream
        waiting = self._comparing.get(stream, [])
        if asked not in waiting:
            return []  # its answer is on the way
        waiting.remove(asked)
        if not waiting:
            del self._comparing[stream]
        return self._answer(asked, Refused(asked.request, BEHIND))

    def _admit(
        self,
        peer: NodeId,
        request: int,
        stream: StreamId,
        keeps: Callable[[StreamId], bool],
        now_ns: int,
    ) -> tuple[Asked | None, list[Effect]]:
        """A question counts until it is answered; or it is refused."""
        entry = self._peers.get(peer)
        if entry is None and len(self._peers) >= self.config.peers_max:
            return None, _refuse(peer, request, "busy", "too-many-peers")
        if not self._rates.allow(peer, now_ns):
            return None, _refuse(peer, request, "busy", "too-many-questions")
        if not keeps(stream):
            reason = "not-served" if self._is_unserved(stream) else "not-kept"
            return None, _refuse(peer, request, reason, reason)
        effects: list[Effect] = []
        if entry is None:
            entry = self._peers[peer] = AskingPeer(now_ns)
            effects.append(OpenLink(Contact(peer), PURPOSE, soft=True))
        entry.asked_ns = now_ns
        if entry.in_flight >= self.config.questions_in_flight_max:
            return None, [*effects, *_refuse(peer, request, "busy", "too-many-questions")]
        entry.in_flight += 1
        return Asked(peer, entry, request), effects

    # Permissions

    def _decide(
        self, stream: StreamId, who: NodeId, undecided: Undecided, now_ns: int
    ) -> list[Effect]:
        """Do what was asked for if it is permitted; it waits until that is known. There are no more
        that wait than questions may be under way."""
        if self._access is None or who == self.node:
            return self._permit(undecided)
        verdict = self._access.look(stream, who, now_ns)
        if verdict is None:
            self._undecided.setdefault((stream, who), []).append(undecided)
            return self._access.ask(stream, who)
        return self._judge(undecided, verdict)

    def _access_checked(self, event: AccessChecked, now_ns: int) -> list[Effect]:
        assert self._access is not None  # who else has asked
        verdict = self._access.checked(event, now_ns)
        effects: list[Effect] = []
        for undecided in self._undecided.pop((event.stream, event.who), ()):
            effects.extend(self._judge(undecided, verdict))
        return effects

    def _judge(self, undecided: Undecided, verdict: Verdict) -> list[Effect]:
        if verdict.allows(undecided.kinds):
            return self._permit(undecided)
        if undecided.keeping is not None:
            self._done(undecided.keeping)
            self._forget_name(undecided.keeping.id.stream)
        reason = "permission-unknown" if verdict.problem else "no-permission"
        said = f"{reason}: {verdict.problem}" if verdict.problem else reason
        refused = self._answer(undecided.asked, Refused(undecided.asked.request, said[:200]))
        return [Rejected(undecided.asked.peer, reason), *refused]

    def _permit(self, undecided: Undecided) -> list[Effect]:
        keeping = undecided.keeping
        wanted = [] if keeping is None else self._tell_wanted(keeping.id.stream)
        return [*wanted, undecided.work]

    def _answer(self, asked: Asked, answer: Any) -> list[Effect]:
        asked.entry.in_flight -= 1
        if self._peers.get(asked.peer) is not asked.entry:
            return []  # its link is gone, and what it asked over it
        return [Send(answer, (asked.peer,)), *self._go_on(asked.peer, asked.entry)]

    def _go_on(self, peer: NodeId, entry: AskingPeer) -> list[Effect]:
        """The next question that waited: one after the other, while the peer reads the answers."""
        if entry.congested or not entry.held:
            return []
        stream, undecided = entry.held.popleft()
        return self._decide(stream, peer, undecided, self._now_ns)

    def _part_with_idle(self, now_ns: int) -> list[Effect]:
        idle = [
            peer
            for peer, entry in self._peers.items()
            if not entry.in_flight and now_ns - entry.asked_ns >= self.config.idle_ns
        ]
        for peer in idle:
            del self._peers[peer]
        return [CloseLink(peer, PURPOSE) for peer in idle]

    def _retained(self, value: bytes | None) -> list[Effect]:
        """One step of retention is done: go on at once, or rest."""
        step = None if value is None else decode_answer(value)
        self.let_go += step.removed if isinstance(step, Retained) else 0
        if isinstance(step, Retained) and step.more:
            return [SetTimer(RETAIN, self.config.retain_step_ns)]
        failed = [] if step is not None else [Rejected(self.node, "retention-failed")]
        return [*failed, SetTimer(RETAIN, self.config.retain_ns)]

    def _look_for_gaps(self) -> list[Effect]:
        question = self.gaps.question(self._now_ns)
        return [] if question is None else [Load(encode(question), question)]

    # Messages to keep

    def _keep(self, peer: NodeId, keep: Keep, now_ns: int) -> list[Effect]:
        try:
            body = decode_body(keep.signed)
        except MalformedMessage:
            return _refuse(peer, keep.request, "malformed", "malformed-body")
        id = body.id
        asked, effects = self._admit(peer, keep.request, id.stream, self._keeps, now_ns)
        if asked is None:
            return effects
        if id.timestamp_ms * MS_NS - self.wall.read(now_ns) > self.config.future_ns:
            return [*effects, *self._decline(asked, "from-the-future")]
        # Before the name takes any room, on the disk or elsewhere.
        if not self._is_kept(id.stream) and not self.quota.admit(id.stream, peer):
            return [*effects, *self._decline(asked, "too-many-streams")]
        keeping = ToKeep(id, keep.signed, body.previous, asked)
        if not self._wait(keeping):
            self._forget_name(id.stream)
            return [*effects, *self._decline(asked, "busy")]
        return [*effects, VerifyEffect(id.publisher, keep.signed, keeping)]

    def _verified(self, token: Any, valid: bool, now_ns: int) -> list[Effect]:
        keeping: ToKeep = token
        asked = keeping.asked
        assert asked is not None  # our own subscriber's were checked before
        if valid:
            undecided = Undecided(asked, PUBLISH, self._store(keeping), keeping)
            return self._decide(keeping.id.stream, keeping.id.publisher, undecided, now_ns)
        self._done(keeping)
        self._forget_name(keeping.id.stream)
        return self._decline(asked, "bad-signature")

    def _command(self, command: Any) -> list[Effect]:
        if not isinstance(command, KeepMessage):
            raise UsageError(f"{command!r} is no command of a storage node")
        message = command.message
        keeping = ToKeep(message.id, message.signed, message.previous)
        if not self._wait(keeping):
            self._missed(keeping.id.stream, self._now_ns)
            return [Rejected(self.node, DISK_BEHIND)]
        return [self._store(keeping)]

    def _stored(self, token: Any) -> list[Effect]:
        keeping: ToKeep = token
        del self._waiting[keeping]  # as _done: this comes with each message
        self._waiting_bytes -= len(keeping.signed)
        self.stored += 1
        id, asked = keeping.id, keeping.asked
        self._took(id)
        self._chained(id, keeping.previous, self._now_ns)
        if asked is None:
            return []
        return self._answer(asked, Kept(asked.request, self._unaware(id.stream, id.timestamp_ms)))

    def _store_failed(self, token: Any, reason: str) -> list[Effect]:
        keeping: ToKeep = token
        self._done(keeping)
        if reason in (DISK_FAILED, STORE_GONE):
            self._missed(keeping.id.stream, self._now_ns)
        if keeping.asked is not None:
            return self._decline(keeping.asked, reason)
        return [Rejected(self.node, "disk-" + reason)]

    def _store(self, keeping: ToKeep) -> StoreEffect:
        return StoreEffect(encode(MessageKey(keeping.id)), keeping.signed, keeping)

    def _wait(self, keeping: ToKeep) -> bool:
        """Take the message among those that wait, if there is room."""
        size_bytes = self._waiting_bytes + len(keeping.signed)
        full = len(self._waiting) >= self.config.waiting_messages_max
        if full or size_bytes > self.config.waiting_bytes_max:
            return False
        self._waiting[keeping] = None
        self._waiting_bytes = size_bytes
        return True

    def _done(self, keeping: ToKeep) -> None:
        del self._waiting[keeping]
        self._waiting_bytes -= len(keeping.signed)

    def _decline(self, asked: Asked, reason: str) -> list[Effect]:
        refused = self._answer(asked, Refused(asked.request, reason))
        return [Rejected(asked.peer, reason), *refused]

    def _noticed(self, peer: NodeId, streams: tuple[NewStream, ...]) -> list[Effect]:
        """A tracker says that somebody is in these streams."""
        if not self._is_tracker(peer):
            return [Rejected(peer, "not-my-tracker")]
        effects: list[Effect] = []
        for new in streams:
            if self._is_kept(new.stream):
                continue
            if not self._keeps(new.stream):
                effects.append(Rejected(peer, "not-kept"))
            elif new.by is None or self.quota.admit_from(new.stream, new.by, new.prefix):
                effects.append(Notify(StreamWanted(new.stream)))
            else:
                effects.append(Rejected(new.by, "too-many-streams"))
        return effects

    def _tell_wanted(self, stream: StreamId) -> list[Effect]:
        return [] if self._is_kept(stream) else [Notify(StreamWanted(stream))]

    def _forget_name(self, stream: StreamId) -> None:
        """Nothing came of a message of a stream that is new here."""
        if not self._is_kept(stream):
            self.quota.release(stream)


def newest_ms_of(question: ReadRange | ReadLast | ReadLog, next: Cursor | None) -> int:
    """Up to which message time an answer must be whole: where its page ends, if there is another
    one. Which the last messages are, and where a log ends, depends on all that there are."""
    if not isinstance(question, ReadRange):
        return EVERYTHING
    if next is not None:
        return next.timestamp_ms
    return EVERYTHING if question.end is None else question.end.timestamp_ms


def _refuse(peer: NodeId, request: int, reason: str, counted: str) -> list[Effect]:
    return [Rejected(peer, counted), Send(Refused(request, reason), (peer,))]


# What a storage node remembers of whoever asks it, and of what it was asked.


class AskingPeer(msgspec.Struct, eq=False):
    """Whoever asks."""

    asked_ns: int
    in_flight: int = 0
    congested: bool = False
    held: deque[Held] = msgspec.field(default_factory=deque)
    """Questions that wait until it has read the answers before them."""


class Held(NamedTuple):
    """A question that is not looked at yet."""

    stream: StreamId
    undecided: Undecided


class Asked(msgspec.Struct, eq=False):
    """A question without an answer; the token of a Load."""

    peer: NodeId
    entry: AskingPeer
    request: int
    question: ReadRange | ReadLast | ReadLog | CountKept | None = None
    """If its answer says something of other storage nodes, too."""
    since_ns: int = 0
    """A comparison that began then or later will do."""


class ToKeep(msgspec.Struct, eq=False):
    """The token of a Verify, then of a Store; nobody asked if it is our own subscriber's."""

    id: MessageId
    signed: bytes
    previous: Position | None
    """The message before it in its chain."""
    asked: Asked | None = None


class Undecided(msgspec.Struct, eq=False):
    """What is done once it is known that one of these kinds of permission is there."""

    asked: Asked
    kinds: int
    work: Load | Store
    keeping: ToKeep | None = None
    """Of a Store."""
