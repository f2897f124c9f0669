"""Asking others for a group key.

    NEIGHBOURS --none has it--> TRACKER --KeyHolders--> HOLDERS --none has it--> a second later,
        |                                                  |                     from the beginning
        +----------------- the key -----------------------+--> told           for ten seconds

Whoever may read a stream and has a key may hand it on: a key's id proves that it is the right one,
so nobody needs to be believed. Neighbours of the overlay are asked first, the publisher before all
others. If none of them has it, the tracker of the stream names the publisher, wherever it is, and
a few others who may read, and tells these to expect us (`introducing.py`). One is asked at a time,
over a service link of its own, outside the degree; to a neighbour it is up already.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from shoal.base.errors import DecryptionFailed, InvariantViolated
from shoal.base.ids import NodeId, StreamId
from shoal.identity.keys import PrivateKey
from shoal.identity.wrapped_key import unwrap_key
from shoal.kernel.contact import Contact
from shoal.kernel.effects import CancelTimer, Effect, Notify, SetTimer
from shoal.kernel.records import Rejected
from shoal.protocols.streams.desk import Desk, DeskLimits, Question
from shoal.protocols.streams.keys.commands import FindKey, KeyFound, KeyNotFound
from shoal.protocols.streams.keys.config import ExchangeConfig
from shoal.protocols.streams.keys.messages import KeyAnswer, KeyRequest
from shoal.protocols.streams.keys.ring import KeyRing
from shoal.protocols.streams.keys.vicinity import Vicinity
from shoal.protocols.streams.messages import FindHolders, KeyHolders

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
