"""Anti-entropy: the storage nodes of a stream follow each other's logs.

Theory of operation. Each peer is asked every few seconds which logs it holds and how far (heads).
The own disk is asked the same; a log of which the peer has more is a `Tail`, and is followed page
by page: names of rows, then the messages that are lacking, then one Store, which appends the rows
to our replica of that log, and to our own log what was new here. So after an outage everything
comes back, and (log, seq) come with it (`Round`).

Storage nodes also tell each other which streams they hold: one that was never told of a stream
learns of it so, and follows it from then on (`StreamListed`). Only those streams are told that name
both nodes. From the heads it is known how many copies there are (`CopyLedger`).

A log is followed with its owner, or, if that is away for long, with whoever has it (`Followed`).
Peers are believed about the order of their logs, for it is theirs; never about messages, whose
signatures are checked. One that lies is not asked about that log for a while; the others are.

Until all who are there were gone through once, this node is `Behind`, which its readers are told.
When a peer was last compared with, and nothing was left over, is in `Comparisons`: up to then an
answer of this node speaks for that peer, too. For a reader who waits, a stream is compared at once.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import MS_NS
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
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    Loaded,
    MessageReceived,
    Started,
    Stored,
    StoreFailed,
    TimerFired,
    Verified,
)
from shoal.kernel.records import Rejected
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import CompareStream, StreamsCompared
from shoal.protocols.streams.config import LATE_MS, STORAGE_NODES_MAX, SyncConfig
from shoal.protocols.streams.history.comparison_round import Round
from shoal.protocols.streams.history.disk_requests import (
    DISK_FAILED,
    Compared,
    ComparedKey,
    FindCompared,
    FindGranted,
    Granted,
    GrantedKey,
    decode_answer,
    encode,
)
from shoal.protocols.streams.history.log_entries import Permits, is_topic
from shoal.protocols.streams.history.log_follower import Place
from shoal.protocols.streams.history.messages import (
    NOT_KEPT,
    SYNC_MESSAGES,
    SYNC_QUESTIONS,
    AskHeads,
    AskStreams,
    SyncRefused,
    TellHeads,
    TellStreams,
)
from shoal.protocols.streams.history.replica_set import (
    Behind,
    Comparisons,
    CopyCounts,
    Followed,
    Peer,
)

PURPOSE = "sync"
OWN_HEADS = "own-heads"
REPLACED = "replaced"


class FollowStream(msgspec.Struct, frozen=True, gc=False):
    """Command: this stream, or topic, is kept here, and its other storage nodes are followed; once
    more when others are named."""

    stream: StreamId


class UnfollowStream(msgspec.Struct, frozen=True, gc=False):
    """Command: this stream is not kept here any more."""

    stream: StreamId


class FollowNodes(msgspec.Struct, frozen=True, gc=False):
    """Command: these keep the same streams as this node, also those that it has not heard of: they
    are asked which ones there are."""

    contacts: tuple[Contact, ...]


class StreamListed(msgspec.Struct, frozen=True, gc=False):
    """Told: another storage node holds this stream, and says that this node keeps it, too."""

    stream: StreamId


class Replica(msgspec.Struct, frozen=True, gc=False):
    """Another storage node of a stream, as this one knows it."""

    node: NodeId
    compared_ns: int
    """When all that it had of the stream was last found to be here, too; 0 for never."""
    until_ms: int
    """The same as the time of day."""
    answers: bool
    """It can be compared with now."""
    tried_ns: int
    """When it was last compared with in vain: it has more, and does not give it."""


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far this node is with what another storage node has."""

    node: NodeId
    linked: bool
    catching_up: bool
    """It is there, and not all that it has was gone through since it is."""
    streams: int
    """That both keep."""
    uncompared: int
    """Of which it was never found that all is here."""
    rows_behind: int
    """Of those logs that are being followed now."""


class _Answering(msgspec.Struct, eq=False):
    """The token of a Load for a peer."""

    peer: NodeId
    request: int
    untold: tuple[int, ...] = ()
    until_ms: int = 0


class _Finding(msgspec.Struct, eq=False):
    """The token of a Load of what was noted of a peer."""

    peer: NodeId


class _FindingGranted(msgspec.Struct, eq=False):
    """The token of a Load of up to when a peer may speak for us, at most."""

    peer: NodeId


class _NotingGranted(msgspec.Struct, eq=False):
    """The token of a Store of it."""

    peer: NodeId
    until_ms: int


class _Noting(msgspec.Struct, eq=False):
    """The token of a Store of it."""


class StorageSync:
    """Keeps what is kept here the same as at the other storage nodes of each stream."""

    accepts = (*SYNC_MESSAGES, CompareStream)

    def __init__(
        self,
        node: NodeId,
        peers_of: Callable[[StreamId], tuple[Contact, ...]],
        rng: Random,
        config: SyncConfig | None = None,
        *,
        closed: bool = False,
        permits: Permits = lambda _: False,
        has_damage: Callable[[], bool] = lambda: False,
        is_unserved: Callable[[StreamId], bool] = lambda stream: False,
    ) -> None:
        """Closed: only a stream's storage nodes are answered. Others read, if they may. `permits`
        judges the events of topics that are followed; without it there are none. `has_damage` says
        whether the disk has met rows that it cannot read, `is_unserved` whether it has rows of a
        stream that is not followed: others are told, and copy them."""
        self.node = node
        self.config = config or SyncConfig()
        self.replicated = 0
        """Rows of other nodes' logs that were stored since the start."""
        self._peers_of = peers_of
        self._rng = rng
        self._closed = closed
        self._permits = permits
        self._has_damage = has_damage
        self._is_unserved = is_unserved
        self.replaced = False
        """Another node goes on under our key: what is here is not all that it has."""
        self._streams: dict[StreamId, None] = {}
        self.wall = WallClock()
        self._followed = Followed(self.config, self.wall)
        self._behind = Behind(self.config)
        self._comparisons = Comparisons(self.wall)
        self._granted_ms: dict[NodeId, int] = {}  # up to when each may speak for us, at most
        self._granted_most_ms = 0  # the latest of these
        # On disk: none of these is later. None: nothing is on disk; not there: that is not known.
        self._limit_ms: dict[NodeId, int | None] = {}
        self._noting: dict[NodeId, None] = {}  # such limits, on their way to the disk
        self._remembered: dict[NodeId, None] = {}  # they were on disk at our start
        self._noted_ns: dict[NodeId, int] = {}  # when comparisons were last written to disk
        self._wanted: dict[NodeId, dict[StreamId, None]] = {}  # to be compared at once
        self._tried_ns: dict[tuple[NodeId, StreamId], int] = {}  # in vain
        self._due: dict[NodeId, None] = {}  # their time has come while they were busy
        self._rounds: dict[NodeId, Round] = {}
        self._answering: dict[NodeId, int] = {}

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        match event:
            case MessageReceived(peer, CompareStream() as wanted):
                if peer != self.node:  # of this node's storage machine, and of nobody else's
                    return [Rejected(peer, "not-mine")]
                return self._compare(wanted, now_ns)
            case MessageReceived(peer, message):
                if isinstance(message, SYNC_QUESTIONS):
                    return self._question(peer, message, now_ns)
                return self._answered(peer, message, now_ns)
            case Loaded(token, value) if token is OWN_HEADS:
                return self._looked_at_own(value)
            case Loaded(_Answering() as asked, value):
                return self._answer(asked, value)
            case Loaded(_Finding(peer), value):
                self._found(peer, value, now_ns)
                return []
            case Stored(_Noting()) | StoreFailed(_Noting()):
                return []
            case Loaded(_FindingGranted(peer), value):
                self._found_granted(peer, value)
                return []
            case Stored(_NotingGranted(peer, until_ms)):
                self._limit_ms[peer] = until_ms
                self._noting.pop(peer, None)
                return []
            case StoreFailed(_NotingGranted(peer)):
                self._noting.pop(peer, None)
                return []
            case Loaded() | Verified() | Stored() | StoreFailed():
                return self._worked(event, now_ns)
            case TimerFired(key):
                return self._timer(key, now_ns)
            case LinkOpened(node):
                return self._link_opened(node, now_ns)
            case LinkClosed(node) | LinkFailed(node):
                return self._link_lost(node, now_ns)
            case CommandIssued(CompareStream() as wanted):
                return self._compare(wanted, now_ns)
            case CommandIssued(command):
                return self._follow(command, now_ns)
            case Started():
                self._followed.since_ns = now_ns
                return [SetTimer((OWN_HEADS, self.node), self.config.poll_ns)]
        return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        under_way: dict[Any, Peer] = {}
        for round in self._rounds.values():
            pages = () if round.page is None else (round.page.tail,)
            for tail in (*round.tails, *pages):
                if tail.key in under_way:
                    raise InvariantViolated(f"log {tail.key} is followed twice")
                under_way[tail.key] = round.peer
        if under_way != self._followed.logs:
            raise InvariantViolated("logs are followed that no round knows of")

    def missed(self, stream: StreamId, now_ns: int) -> None:
        """The own disk did not take a message of a stream: others may have it."""
        for node, peer in self._followed.peers.items():
            if peer.linked and stream in peer.streams:
                self._behind.opened(node, (stream,), now_ns)
                round = self._rounds.get(node)
                if round is not None:
                    round.left[stream] = None  # it may have begun before

    @property
    def stored(self) -> Callable[[Place], None]:
        """To be called for each message that the own disk took and that did not come by
        anti-entropy."""
        return self._followed.copies.stored

    def copies(self) -> CopyCounts:
        """How much of the own log is held by others, too."""

        def peers_of(stream: StreamId) -> list[NodeId]:
            return [node for node, peer in self._followed.peers.items() if stream in peer.streams]

        return self._followed.copies.count(peers_of)

    def lacking(self, stream: StreamId, partition: int, first: int, last: int) -> int:
        """So many rows of our log, from first to last, no other storage node has, as far as it is
        known."""
        return self._followed.copies.lacking((stream, partition), first, last)

    def is_behind(self, stream: StreamId, now_ns: int) -> bool:
        """Whether another storage node of a stream may have what has not come here yet."""
        return self._behind.is_behind(stream, now_ns)

    def replicas(self, stream: StreamId, now_ns: int) -> tuple[Replica, ...]:
        """The other storage nodes of a stream, and up to when this one has what they have."""
        return tuple(
            [
                Replica(
                    contact.node,
                    self._comparisons.at_ns(contact.node, stream),
                    self._comparisons.until_ms(contact.node, stream),
                    self._answers(contact.node, stream, now_ns),
                    self._tried_ns.get((contact.node, stream), 0),
                )
                for contact in self._peers_of(stream)
                if contact.node != self.node
            ]
        )

    def unaware(self, stream: StreamId, timestamp_ms: int) -> tuple[NodeId, ...]:
        """The other storage nodes of a stream that may say that they have all that we had of this
        message time, whatever we take from now on."""
        until_ms = timestamp_ms + LATE_MS
        if until_ms > max(self._granted_most_ms, self._began_ms):
            return ()  # as for all messages that are not late
        return tuple(
            [
                contact.node
                for contact in self._peers_of(stream)
                if contact.node != self.node and self._may_speak_ms(contact.node) >= until_ms
            ]
        )[:STORAGE_NODES_MAX]

    def progress(self) -> tuple[Progress, ...]:
        """How far this node is with each other storage node."""
        found = []
        for node, peer in self._followed.peers.items():
            known = sum(self._comparisons.at_ns(node, stream) > 0 for stream in peer.streams)
            round = self._rounds.get(node)
            rows = 0 if round is None else round.rows_behind
            missing = len(peer.streams) - known
            late = peer.linked and not peer.met and not peer.silent
            found.append(Progress(node, peer.linked, late, len(peer.streams), missing, rows))
        return tuple(found)

    def _answers(self, node: NodeId, stream: StreamId, now_ns: int) -> bool:
        peer = self._followed.peers.get(node)
        if peer is None or not peer.linked or stream not in peer.streams or peer.silent:
            return False
        return not peer.asked_ns or now_ns - peer.asked_ns < self.config.silent_ns

    # Peers

    def _follow(self, command: Any, now_ns: int) -> list[Effect]:
        if isinstance(command, FollowNodes):
            return self._follow_nodes(command.contacts)
        if isinstance(command, UnfollowStream):
            return self._unfollow(command.stream)
        if not isinstance(command, FollowStream):
            raise UsageError(f"{command!r} is no command of anti-entropy")
        effects: list[Effect] = []
        peers = self._followed.peers
        self._streams[command.stream] = None
        for contact in self._peers_of(command.stream):
            node = contact.node
            if node == self.node:
                continue
            if node not in peers:
                peers[node] = Peer(contact, {})
                effects.extend(self._find(node))
                effects.append(OpenLink(contact, PURPOSE))
            elif peers[node].linked and node not in self._rounds:
                effects.append(self._poll_soon(node))
            peers[node].contact = contact  # it may have moved
            if command.stream not in peers[node].streams:
                peers[node].streams[command.stream] = None
                self._followed.copies.unknown(command.stream, node)
                self._behind.followed(command.stream, node, now_ns)
        return effects

    def _unfollow(self, stream: StreamId) -> list[Effect]:
        self._streams.pop(stream, None)
        for node, peer in self._followed.peers.items():
            if peer.streams.pop(stream, 0) is None:
                self._behind.met(node, (stream,))
                self._followed.copies.done(stream, node)
        return []

    def _follow_nodes(self, contacts: tuple[Contact, ...]) -> list[Effect]:
        effects: list[Effect] = []
        peers = self._followed.peers
        for contact in contacts:
            if contact.node == self.node:
                continue
            if contact.node not in peers:
                peers[contact.node] = Peer(contact, {})
                effects.extend(self._find(contact.node))
                effects.append(OpenLink(contact, PURPOSE))
            peers[contact.node].named = True
        return effects

    def _link_opened(self, node: NodeId, now_ns: int) -> list[Effect]:
        peer = self._followed.peers[node]
        peer.linked, peer.silent, peer.asked_ns, peer.met = True, False, 0, False
        peer.listed = 0  # what was refused for want of room may find some now
        self._followed.copies.forget(node)
        for stream in peer.streams:
            self._followed.copies.unknown(stream, node)
        self._behind.opened(node, peer.streams, now_ns)
        return [self._poll_soon(node)]

    def _poll_soon(self, node: NodeId) -> SetTimer:
        # Both ends have a reason at once: they need not ask each other at once, too.
        return SetTimer(("poll", node), self._rng.randrange(self.config.poll_ns // 4))

    def _link_lost(self, node: NodeId, now_ns: int) -> list[Effect]:
        waiting = self._waited_for(node)
        self._end(node)
        self._due.pop(node, None)
        peer = self._followed.peers[node]
        peer.resting = True
        self._parted(peer)
        wait_ns = self.config.retry_ns + self._rng.randrange(self.config.retry_ns)
        return [
            CancelTimer(("answer", node)),
            CancelTimer(("poll", node)),
            SetTimer(("dial", node), wait_ns),
            *self._note(node, now_ns),
            *self._tell_compared(waiting),
        ]

    def _parted(self, peer: Peer) -> None:
        peer.linked = False
        self._behind.lost(peer.node)

    # Rounds

    def _timer(self, key: Any, now_ns: int) -> list[Effect]:
        name, node = key
        if name == OWN_HEADS:
            return self._look_at_own()
        peer = self._followed.peers[node]
        if name == "dial":
            peer.resting = False
            return [OpenLink(peer.contact, PURPOSE)]
        if name == "answer":
            round = self._rounds.get(node)
            if round is not None and round.is_listing:
                round.done = True
                return [Rejected(node, "no-answer"), *self._moved(round, [], now_ns)]
            waiting = self._waited_for(node)
            self._end(node)
            peer.silent, peer.asked_ns = True, 0
            return [
                Rejected(node, "no-answer"),
                SetTimer(("poll", node), self.config.poll_ns),
                *self._tell_compared(waiting),
            ]
        if node in self._rounds:
            self._due[node] = None  # readers have come first
            return []
        return self._begin(node, None, now_ns)

    def _begin(
        self, node: NodeId, streams: tuple[StreamId, ...] | None, now_ns: int
    ) -> list[Effect]:
        peer = self._followed.peers[node]
        round = Round(
            peer,
            self._followed,
            self._permits,
            self._has_damage,
            streams,
            is_open=not self._closed,
            is_wanted=lambda: node in self._wanted,
        )
        self._rounds[node] = round
        return self._moved(round, round.begin(now_ns), now_ns)

    def _compare(self, wanted: CompareStream, now_ns: int) -> list[Effect]:
        """A reader waits."""
        stream, effects = wanted.stream, list[Effect]()
        for node, peer in self._followed.peers.items():
            if not peer.linked or stream not in peer.streams:
                continue
            if self._comparisons.at_ns(node, stream) >= wanted.since_ns:
                continue
            self._wanted.setdefault(node, {})[stream] = None
            if node not in self._rounds:
                effects += self._begin_wanted(node, now_ns)
        return effects

    def _begin_wanted(self, node: NodeId, now_ns: int) -> list[Effect]:
        streams = tuple(self._wanted.pop(node))
        return self._begin(node, streams, now_ns)

    def _waited_for(self, node: NodeId) -> tuple[StreamId, ...]:
        """Streams that readers want to be compared with a peer, which is given up."""
        round = self._rounds.get(node)
        begun = () if round is None or round.full else round.streams
        return tuple(dict.fromkeys([*begun, *self._wanted.pop(node, ())]))

    def _tell_compared(self, streams: tuple[StreamId, ...]) -> list[Effect]:
        if not streams:
            return []
        compared = StreamsCompared(streams)
        return [Send(compared, (self.node,)), Notify(compared)]

    def _answered(self, node: NodeId, message: Any, now_ns: int) -> list[Effect]:
        round = self._rounds.get(node)
        if round is None:
            return [Rejected(node, "unasked-answer")]
        return self._moved(round, round.answered(message, now_ns), now_ns)

    def _worked(self, event: Loaded | Verified | Stored | StoreFailed, now_ns: int) -> list[Effect]:
        token: Any = event.token
        round: Round = token
        if self._rounds.get(round.peer.node) is not round:
            return []  # it was given up meanwhile
        if isinstance(event, Loaded):
            effects = round.loaded(event.value, now_ns)
        elif isinstance(event, Verified):
            effects = round.verified(event.valid, now_ns)
        elif isinstance(event, Stored):
            effects = round.stored(now_ns)
            self._behind.moved(round.peer.node, now_ns)
        else:
            effects = round.store_failed(event.reason, now_ns)
        return self._moved(round, effects, now_ns)

    def _moved(self, round: Round, effects: list[Effect], now_ns: int) -> list[Effect]:
        """After any step of a round: is it over?"""
        self.replicated, round.replicated = self.replicated + round.replicated, 0
        effects = effects + self._listed(round)
        if not round.done:
            return effects
        node = round.peer.node
        self._end(node)
        compared = round.compared
        self._comparisons.compared(node, compared)
        effects = [*effects, *self._note_now_and_then(node, now_ns)]
        for stream in round.streams:
            if stream in compared:
                self._tried_ns.pop((node, stream), None)
            elif not round.full:
                self._tried_ns[node, stream] = now_ns
        if not round.full:
            return [*effects, *self._tell_compared(round.streams), *self._go_on(node, now_ns)]
        round.peer.met |= not round.left
        self._behind.met(node, round.through)
        if round.left:
            self._behind.opened(node, round.left, now_ns)
        if round.nothing_kept and not round.peer.named:
            self._parted(round.peer)
            wait_ns = self.config.not_kept_ns
            waiting = tuple(self._wanted.pop(node, ()))
            self._due.pop(node, None)
            return [
                *effects,
                CloseLink(node, PURPOSE),
                SetTimer(("dial", node), wait_ns),
                *self._tell_compared(waiting),
            ]
        effects.append(SetTimer(("poll", node), self.config.poll_ns))
        return effects + self._go_on(node, now_ns)

    def _go_on(self, node: NodeId, now_ns: int) -> list[Effect]:
        """A round is over: is there a reason for the next one? All streams have their turn between
        those that readers wait for."""
        if self._due.pop(node, 0) is None:
            return self._begin(node, None, now_ns)
        return self._begin_wanted(node, now_ns) if node in self._wanted else []

    # What is known after a restart

    def _find(self, node: NodeId) -> list[Effect]:
        """What was noted of a peer?"""
        return [
            Load(encode(FindCompared(node)), _Finding(node)),
            Load(encode(FindGranted(node)), _FindingGranted(node)),
        ]

    def _found_granted(self, node: NodeId, value: bytes | None) -> None:
        note = None if value is None else decode_answer(value)
        if not isinstance(note, Granted) or node in self._limit_ms:
            return
        self._limit_ms[node] = note.until_ms
        if note.until_ms is not None:
            self._remembered[node] = None
            self._granted_ms[node] = note.until_ms
            self._granted_most_ms = max(self._granted_most_ms, note.until_ms)

    def _limit(self, node: NodeId, time_ms: int) -> list[Effect]:
        """The disk knows ahead of time up to when a peer may speak for us."""
        ahead_ms = self.config.granted_ahead_ns // MS_NS
        limit_ms = self._limit_ms[node] or 0
        if node in self._noting or limit_ms - time_ms > ahead_ms // 2:
            return []
        until_ms = max(limit_ms, time_ms + ahead_ms)
        self._noting[node] = None
        work = _NotingGranted(node, until_ms)
        return [Store(encode(GrantedKey(node)), encode(Granted(until_ms)), work)]

    def _found(self, node: NodeId, value: bytes | None, now_ns: int) -> None:
        note = None if value is None else decode_answer(value)
        if isinstance(note, Compared):
            self._comparisons.noted(node, note, now_ns)

    def _note_now_and_then(self, node: NodeId, now_ns: int) -> list[Effect]:
        if now_ns - self._noted_ns.get(node, 0) < self.config.noted_ns:
            return []
        return self._note(node, now_ns)

    def _note(self, node: NodeId, now_ns: int) -> list[Effect]:
        self._noted_ns[node] = now_ns
        note = self._comparisons.note(node)
        if not note.at_ns:
            return []
        return [Store(encode(ComparedKey(node)), encode(note), _Noting())]

    def _look_at_own(self) -> list[Effect]:
        """How long is our own log where it has grown? A message may have been stored twice."""
        again = SetTimer((OWN_HEADS, self.node), self.config.poll_ns)
        grown = self._followed.copies.grown(self.config.polled_streams_max)
        if not grown:
            return [again]
        return [again, Load(encode(AskHeads(0, grown, 0)), OWN_HEADS)]

    def _looked_at_own(self, value: bytes | None) -> list[Effect]:
        held = None if value is None else decode_answer(value)
        if not isinstance(held, TellHeads):
            return []  # the disk fails: perhaps not the next time
        for place in held.places:
            own = next((head for head in place.logs if head.log == held.own), None)
            if own is not None:
                at = (place.stream, place.partition)
                self._followed.copies.looked_at(at, own.first, own.last)
        return []

    def _listed(self, round: Round) -> list[Effect]:
        """Streams that a peer holds, and that we do not follow yet."""
        listed, round.listed = round.listed, []
        told: list[Effect] = []
        for stream in listed:
            if stream in self._streams or is_topic(stream):
                continue
            if len(self._streams) >= self.config.streams_max:
                return [*told, Rejected(round.peer.node, "too-many-streams")]
            told.append(Notify(StreamListed(stream)))
        return told

    def _end(self, node: NodeId) -> None:
        round = self._rounds.pop(node, None)
        if round is not None:
            self._followed.release(round.peer)
            round.peer.asked_ns = 0

    # Questions of others

    def _question(self, node: NodeId, question: Any, now_ns: int) -> list[Effect]:
        """Whoever asks is answered, unless it takes permissions to read."""
        until_ms, noted = 0, list[Effect]()
        if self._answering.get(node, 0) >= self.config.answers_in_flight_max:
            return _refuse(node, question.request, "busy")
        untold: tuple[int, ...] = ()
        if isinstance(question, AskStreams):
            # Which streams there are is told to those alone who are named for some of ours.
            kept: tuple[StreamId, ...] = ()
            if node not in self._followed.peers:
                return _refuse(node, question.request, NOT_KEPT)
        elif isinstance(question, AskHeads) and self.replaced:
            return _refuse(node, question.request, REPLACED)
        elif isinstance(question, AskHeads):
            until_ms, noted = self._grant(node, question.time_ms, now_ns)
            asked = question.streams
            kept = tuple([s for s in asked if self._is_for(s, node)])
            if kept:
                begin = question.from_partition if kept[0] == asked[0] else 0
                question = AskHeads(question.request, kept, begin)
                # Of a stream that is not followed here nothing is held: that is an answer, too.
                named = [not self._closed or self._is_named(s, node) for s in asked]
                untold = tuple([at for at, may in enumerate(named) if not may])
        else:
            kept = (question.stream,) if self._is_for(question.stream, node) else ()
        if not kept and not isinstance(question, AskStreams):
            return [*_refuse(node, question.request, NOT_KEPT, until_ms), *noted]
        self._answering[node] = self._answering.get(node, 0) + 1
        work = Load(encode(question), _Answering(node, question.request, untold, until_ms))
        return [work, *noted, *self._back(node)]

    def _grant(self, node: NodeId, time_ms: int, now_ns: int) -> tuple[int, list[Effect]]:
        """Up to which time of day a peer that asks now may speak for us, once it has what we have.
        From then on we know that it may: neither its clock nor ours has to be right."""
        if node not in self._followed.peers or not time_ms:
            return 0, []
        if node not in self._limit_ms:
            return 0, [Load(encode(FindGranted(node)), _FindingGranted(node))]
        limit_ms = self._limit_ms[node]
        time_ms = max(0, min(time_ms, self.wall.earliest(now_ns) // MS_NS))
        granted_ms = time_ms if limit_ms is None else min(time_ms, limit_ms)
        self._granted_ms[node] = max(granted_ms, self._granted_ms.get(node, 0))
        self._granted_most_ms = max(self._granted_most_ms, granted_ms)
        return granted_ms, self._limit(node, time_ms)

    def _may_speak_ms(self, node: NodeId) -> int:
        """Up to when a peer may speak for us, at most."""
        granted_ms = self._granted_ms.get(node, 0)
        if node in self._remembered:
            return granted_ms
        return max(granted_ms, self._began_ms)  # what it was told before is not known

    @property
    def _began_ms(self) -> int:
        """When this node started, as the clock says now."""
        return self.wall.read(self._followed.since_ns) // MS_NS

    def _back(self, node: NodeId) -> list[Effect]:
        """A peer that was away asks: its link is up."""
        peer = self._followed.peers.get(node)
        if peer is None or not peer.resting:
            return []
        peer.resting = False
        return [CancelTimer(("dial", node)), OpenLink(peer.contact, PURPOSE)]

    def _is_for(self, stream: StreamId, node: NodeId) -> bool:
        if stream not in self._streams and not self._is_unserved(stream):
            return False
        return not self._closed or self._is_named(stream, node)

    def _is_named(self, stream: StreamId, node: NodeId) -> bool:
        return any(contact.node == node for contact in self._peers_of(stream))

    def _is_named_for(self, stream: StreamId, node: NodeId) -> bool:
        return not is_topic(stream) and self._is_named(stream, node)

    def _answer(self, asked: _Answering, value: bytes | None) -> list[Effect]:
        left = self._answering.pop(asked.peer) - 1
        if left:
            self._answering[asked.peer] = left
        answer = SyncRefused(asked.request, DISK_FAILED) if value is None else decode_answer(value)
        if isinstance(answer, TellHeads) and asked.untold:
            answer = msgspec.structs.replace(answer, untold=asked.untold)
        if isinstance(answer, TellHeads):
            answer = msgspec.structs.replace(answer, until_ms=asked.until_ms)
        if isinstance(answer, TellStreams):
            streams = tuple([s for s in answer.streams if self._is_named_for(s, asked.peer)])
            answer = msgspec.structs.replace(answer, streams=streams)
        return [Send(answer, (asked.peer,))]


def _refuse(node: NodeId, request: int, reason: str, until_ms: int = 0) -> list[Effect]:
    refused = SyncRefused(request, reason, until_ms)
    return [Rejected(node, "sync-" + reason), Send(refused, (node,))]
