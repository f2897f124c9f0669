"""The key exchange of a node: asks others for group keys (`finding.py`), and answers those who ask
(`answering.py`)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from shoal.base.containers import RateLimit
from shoal.base.errors import DecryptionFailed, InvariantViolated, MalformedMessage, UsageError
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.identity.entropy import Entropy
from shoal.identity.group_key import GroupKey, unwrap_key, wrap_key
from shoal.identity.keys import PrivateKey, PublicKey
from shoal.kernel.access import Permission
from shoal.kernel.effects import (
    CancelTimer,
    CheckAccess,
    CloseLink,
    Effect,
    Notify,
    OpenLink,
    Send,
    SetTimer,
)
from shoal.kernel.inputs import (
    AccessChecked,
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
    TimerFired,
)
from shoal.kernel.peer_requests import Desk, DeskLimits, Question
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import FindKey, KeyFound, KeyNotFound
from shoal.protocols.streams.config import ExchangeConfig
from shoal.protocols.streams.keys.key_ring import KeyRing
from shoal.protocols.streams.member.stream_node import Vicinity
from shoal.protocols.streams.messages import Expect, FindHolders, KeyAnswer, KeyHolders, KeyRequest


class KeyExchange:
    """One node's side of it."""

    accepts: tuple[type, ...] = (KeyRequest, KeyAnswer, KeyHolders, Expect)

    def __init__(
        self,
        key: PrivateKey,
        ring: KeyRing,
        vicinity: Vicinity,
        entropy: Entropy,
        config: ExchangeConfig | None = None,
    ) -> None:
        self.ring = ring
        self.config = config or ExchangeConfig()
        self._finds = Finds(key, ring, vicinity, self.config)
        self._answers = Answers(key.address, ring, vicinity, entropy, self.config)

    @property
    def met(self) -> dict[NodeId, PublicKey]:
        """Public keys of those who were given a key: a publisher can wrap for them."""
        return self._answers.met

    def streams_of(self, peer: NodeId) -> list[StreamId]:
        """In which streams a tracker has told us of somebody who is no neighbour."""
        return self._finds.streams_of(peer) + self._answers.streams_of(peer)

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """The one entry point."""
        match event:
            case MessageReceived(peer, message):
                return self._received(peer, message, now_ns)
            case CommandIssued(FindKey() as command, token):
                return self._finds.begin(command, token, now_ns)
            case AccessChecked():
                return self._answers.checked(event)
            case LinkOpened(peer, purpose) if purpose != READER:
                return self._finds.link_opened(peer)
            case LinkClosed(peer, purpose) | LinkFailed(peer, purpose) if purpose != READER:
                return self._finds.link_lost(peer, now_ns)
            case TimerFired(key):
                return self._timer(key, now_ns)
            case CommandIssued(command):
                raise UsageError(f"{command!r} is no command of a key exchange")
        return []

    def _received(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        match message:
            case KeyRequest():
                return self._answers.requested(peer, message, now_ns)
            case KeyAnswer():
                return self._finds.answered(peer, message, now_ns)
            case KeyHolders():
                return self._finds.named(peer, message, now_ns)
            case _:
                return self._answers.expect(peer, message)

    def _timer(self, key: Any, now_ns: int) -> list[Effect]:
        name, of = key
        if name == READER:
            return self._answers.expect_no_longer(of)
        return self._finds.timer(name, of, now_ns)

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        self._finds.check_invariants()
        self._answers.check_invariants()


# Asking others for a group key.
#
#     NEIGHBOURS --none has it--> TRACKER --KeyHolders--> HOLDERS --none has it--> a second later,
#         |                                                  |                     from the
#             beginning
#         +----------------- the key -----------------------+--> told           for ten seconds
#
# Whoever may read a stream and has a key may hand it on: a key's id proves that it is the right
# one, so nobody needs to be believed. Neighbours of the overlay are asked first, the publisher
# before all others. If none of them has it, the tracker of the stream names the publisher, wherever
# it is, and a few others who may read, and tells these to expect us (`introducing.py`). One is
# asked at a time, over a service link of its own, outside the degree; to a neighbour it is up
# already.


PURPOSE = "keys"  # of the claims on links
KEY, HOLDERS = "key", "holders"  # kinds of questions, beside their number

Pair = tuple[StreamId, NodeId]  # a stream and a publisher in it


class _Find(msgspec.Struct, eq=False):
    """A key that is looked for. Its number is the request's."""

    number: int
    command: FindKey
    token: Hashable
    asked: dict[NodeId, None] = {}
    """In this round."""


class _Naming(msgspec.Struct, eq=False):
    """A question to trackers, and the searches that wait for its answer."""

    trackers: list[Contact]
    """Not asked yet."""
    finds: dict[int, None] = {}


class _Named(msgspec.Struct, frozen=True):
    """Whom a tracker named, and until when they are asked before it is."""

    contacts: tuple[Contact, ...]
    until_ns: int


class Finds:
    """All keys that a node looks for."""

    def __init__(
        self, key: PrivateKey, ring: KeyRing, vicinity: Vicinity, config: ExchangeConfig
    ) -> None:
        self._key = key
        self._ring = ring
        self._vicinity = vicinity
        self._config = config
        limits = DeskLimits(
            config.dial_ns, config.ask_ns, config.idle_ns, config.questions_per_peer_max
        )
        self._desk = Desk(PURPOSE, limits)
        self._numbers = 0
        self._finds: dict[int, _Find] = {}
        self._namings: dict[Pair, _Naming] = {}
        self._named: dict[Pair, _Named] = {}

    def begin(self, command: FindKey, token: Hashable, now_ns: int) -> list[Effect]:
        """Look for a key."""
        if len(self._finds) >= self._config.finds_max:
            return [Notify(KeyNotFound(token))]
        find = _Find(self._next_number(), command, token)
        self._finds[find.number] = find
        deadline = SetTimer(("until", find.number), self._config.patience_ns)
        return [deadline, *self._next(find, now_ns)]

    def streams_of(self, peer: NodeId) -> list[StreamId]:
        """In which streams a tracker named somebody to us."""
        return [
            stream
            for (stream, _), named in self._named.items()
            if any(contact.node == peer for contact in named.contacts)
        ]

    # What others say

    def answered(self, peer: NodeId, answer: KeyAnswer, now_ns: int) -> list[Effect]:
        """Somebody gives us a key, or none."""
        question, effects = self._desk.settle(peer, (KEY, answer.request))
        if question is None:
            return [Rejected(peer, "unasked-key")]
        find = self._finds.get(question.owner)
        if find is None:
            return effects  # it was given up meanwhile
        if answer.sealed is not None:
            wanted = find.command
            try:
                key = unwrap_key(
                    wanted.stream, wanted.publisher, wanted.key, answer.sealed, self._key
                )
                self._ring.add(key)
            except DecryptionFailed:
                effects.append(Rejected(peer, "wrong-key"))
        return [*effects, *self._next(find, now_ns)]

    def named(self, tracker: NodeId, holders: KeyHolders, now_ns: int) -> list[Effect]:
        """A tracker names whom to ask."""
        question, effects = self._desk.settle(tracker, (HOLDERS, holders.request))
        if question is None:
            return [Rejected(tracker, "unasked-holders")]
        return [*effects, *self._go_on(question.owner, holders.contacts, now_ns)]

    # Links and timers

    def link_opened(self, peer: NodeId) -> list[Effect]:
        """Ask what waited for it."""
        return self._desk.opened(peer)

    def link_lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """Whoever was to be asked over it is passed over."""
        questions, effects = self._desk.lost(peer)
        return effects + self._unanswered(questions, now_ns)

    def timer(self, name: str, key: Any, now_ns: int) -> list[Effect]:
        """One of the timers of searches, or of their questions."""
        if name == "idle":
            return self._desk.give_back(key)
        if name == "dial":
            questions, effects = self._desk.give_up_dialling(key)
            return effects + self._unanswered(questions, now_ns)
        if name == "ask":
            questions, effects = self._desk.timed_out(key)
            return effects + self._unanswered(questions, now_ns)
        find = self._finds.get(key)
        if find is None:
            return []
        return self._end(find) if name == "until" else self._next(find, now_ns)

    # Steps

    def _next(self, find: _Find, now_ns: int) -> list[Effect]:
        """Ask the next one; nobody is being asked."""
        wanted = find.command
        if self._ring.get(wanted.key) is not None:  # it may have been announced meanwhile
            return self._end(find)
        neighbours = self._vicinity.neighbours(wanted.stream)
        for peer in sorted(neighbours, key=lambda peer: peer != wanted.publisher):
            if peer not in find.asked:
                return self._ask(find, Contact(peer))
        pair = wanted.stream, wanted.publisher
        named = self._named.get(pair)
        if named is None or named.until_ns <= now_ns:
            return self._ask_trackers(pair, find, now_ns)
        for contact in named.contacts:
            if contact.node not in find.asked:
                return self._ask(find, contact)
        find.asked.clear()
        return [SetTimer(("again", find.number), self._config.again_ns)]

    def _ask(self, find: _Find, contact: Contact) -> list[Effect]:
        find.asked[contact.node] = None
        wanted, public_key = find.command, self._key.public.to_bytes()
        request = KeyRequest(find.number, wanted.stream, wanted.key, public_key)
        return self._desk.ask((KEY, find.number), find.number, contact, request)

    def _ask_trackers(self, pair: Pair, find: _Find, now_ns: int) -> list[Effect]:
        """Have holders named, unless that is under way for another key of the publisher."""
        naming = self._namings.get(pair)
        if naming is not None:
            naming.finds[find.number] = None
            return []
        trackers = list(self._vicinity.trackers(pair[0]))
        self._namings[pair] = _Naming(trackers, {find.number: None})
        return self._ask_next_tracker(pair, now_ns)

    def _ask_next_tracker(self, pair: Pair, now_ns: int) -> list[Effect]:
        trackers = self._namings[pair].trackers
        if not trackers:
            return self._go_on(pair, (), now_ns)
        number = self._next_number()
        question = FindHolders(number, *pair)
        return self._desk.ask((HOLDERS, number), pair, trackers.pop(0), question)

    def _go_on(self, pair: Pair, contacts: tuple[Contact, ...], now_ns: int) -> list[Effect]:
        """It is known whom to ask, perhaps nobody."""
        config = self._config
        good_ns = config.named_ns if contacts else config.again_ns
        self._named.pop(pair, None)
        self._named[pair] = _Named(contacts, now_ns + good_ns)
        if len(self._named) > config.named_max:
            del self._named[next(iter(self._named))]
        effects: list[Effect] = []
        for number in self._namings.pop(pair).finds:
            find = self._finds.get(number)
            if find is not None:
                effects.extend(self._next(find, now_ns))
        return effects

    def _unanswered(self, questions: list[Question], now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for question in questions:
            if isinstance(question.owner, tuple):
                effects.extend(self._ask_next_tracker(question.owner, now_ns))
                continue
            find = self._finds.get(question.owner)
            if find is not None:
                effects.extend(self._next(find, now_ns))
        return effects

    def _end(self, find: _Find) -> list[Effect]:
        """It is here, or nobody gave it to us in time."""
        del self._finds[find.number]
        self._desk.drop((KEY, find.number))
        found = self._ring.get(find.command.key) is not None
        told = KeyFound(find.token) if found else KeyNotFound(find.token)
        timers = [CancelTimer((name, find.number)) for name in ("until", "again")]
        return [*timers, Notify(told)]

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        config = self._config
        if len(self._finds) > config.finds_max or len(self._named) > config.named_max:
            raise InvariantViolated("more is looked for, or remembered, than there may be")
        if self._desk.question_count() > 2 * config.finds_max:
            raise InvariantViolated("more questions than searches could have asked")


# Answering those who ask for a group key.
#
# A key is handed to neighbours in the overlay, and to those whom the tracker of the stream has told
# us to expect; in either case only if they may read the stream now, as the registry says, and
# wrapped for their public key: a link is authentic, but need not be secret. Whoever comes by itself
# gets nothing.


READER = "reader"  # the purpose of links to those who are expected, and of their timers


class _Asked(msgspec.Struct, frozen=True):
    """A request that waits for the registry's word."""

    request: int
    key: GroupKey
    reader: PublicKey


class Answers:
    """All requests that a node is asked for keys with."""

    def __init__(
        self,
        node: NodeId,
        ring: KeyRing,
        vicinity: Vicinity,
        entropy: Entropy,
        config: ExchangeConfig,
    ) -> None:
        self.met: dict[NodeId, PublicKey] = {}
        """Public keys of those who were given a key, the newest."""
        self._node = node
        self._ring = ring
        self._vicinity = vicinity
        self._entropy = entropy
        self._config = config
        self._expected: dict[NodeId, dict[StreamId, None]] = {}
        self._checks: dict[tuple[StreamId, NodeId], list[_Asked]] = {}
        self._checks_count = 0
        self._limit = RateLimit(config.requests_burst, config.request_ns, config.request_peers_max)

    # Who is expected

    def expect(self, tracker: NodeId, message: Expect) -> list[Effect]:
        """The tracker has told a reader to ask us. It dials us, and we dial it: one of the two may
        be where it cannot be dialled."""
        stream, reader = message.stream, message.reader.node
        if self._vicinity.tracker(stream) != tracker:
            return [Rejected(tracker, "not-my-tracker")]
        if reader == self._node:
            return [Rejected(tracker, "expects-myself")]
        timer = SetTimer((READER, reader), self._config.expected_ns)
        streams = self._expected.get(reader)
        if streams is not None:
            streams[stream] = None
            return [timer]
        if len(self._expected) >= self._config.expected_max:
            return [Rejected(reader, "too-many-readers")]
        self._expected[reader] = {stream: None}
        return [timer, OpenLink(message.reader, READER)]

    def streams_of(self, peer: NodeId) -> list[StreamId]:
        """In which streams somebody is expected."""
        return list(self._expected.get(peer, ()))

    def expect_no_longer(self, reader: NodeId) -> list[Effect]:
        """Its time is over."""
        del self._expected[reader]
        return [CloseLink(reader, READER)]

    # Requests

    def requested(self, peer: NodeId, request: KeyRequest, now_ns: int) -> list[Effect]:
        """Somebody asks for a key."""
        stream = request.stream
        is_neighbour = peer in self._vicinity.neighbours(stream)
        if not is_neighbour and stream not in self._expected.get(peer, ()):
            return [Rejected(peer, "not-introduced")]
        if not self._limit.allow(peer, now_ns):
            return [Rejected(peer, "too-many-key-requests")]
        try:
            reader = PublicKey.from_bytes(request.public_key)
        except MalformedMessage:
            return [Rejected(peer, "no-public-key")]
        if reader.address != peer:
            return [Rejected(peer, "another-public-key")]
        key = self._ring.get(request.key)
        full = self._checks_count >= self._config.checks_max
        if key is None or key.stream != stream or full:
            return [Send(KeyAnswer(request.request, None), (peer,))]
        waiting = self._checks.setdefault((stream, peer), [])
        waiting.append(_Asked(request.request, key, reader))
        self._checks_count += 1
        return [CheckAccess(stream, peer)] if len(waiting) == 1 else []

    def checked(self, checked: AccessChecked) -> list[Effect]:
        """The registry says what somebody may do."""
        peer = checked.who
        waiting = self._checks.pop((checked.stream, peer), [])
        self._checks_count -= len(waiting)
        if waiting and checked.verdict.allows(Permission.SUBSCRIBE):
            self._meet(peer, waiting[0].reader)
            return [
                Send(
                    KeyAnswer(
                        asked.request, wrap_key(asked.key, asked.reader, self._entropy).sealed
                    ),
                    (peer,),
                )
                for asked in waiting
            ]
        effects: list[Effect] = [Send(KeyAnswer(asked.request, None), (peer,)) for asked in waiting]
        if waiting and not checked.verdict.problem:
            effects.append(Rejected(peer, "key-not-permitted"))
        return effects

    def _meet(self, peer: NodeId, public: PublicKey) -> None:
        self.met.pop(peer, None)
        self.met[peer] = public
        if len(self.met) > self._config.met_max:
            del self.met[next(iter(self.met))]

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        if self._checks_count != sum(map(len, self._checks.values())):
            raise InvariantViolated(f"{self._checks_count} checks are counted, others are there")
        if self._checks_count > self._config.checks_max:
            raise InvariantViolated(f"{self._checks_count} requests wait for the registry")
        if len(self._expected) > self._config.expected_max:
            raise InvariantViolated(f"{len(self._expected)} readers are expected")
