"""Asking others for a group key, and answering those who ask.

    FINDING --a neighbour--> ASKING --the key--> told
       ^                        |
       |                        +-- none, no answer, a wrong one --> the next neighbour
       +-- 1 s after each round, for 10 s; then it is told that nobody has it

Whoever may read a stream and has a key may hand it on: a key's id proves that it is the right one,
so nobody needs to be believed. It is handed to those only who may read the stream now, as the
registry says, and wrapped for their public key: a link is authentic, but need not be secret.
Neighbours of the overlay are asked, the publisher first if it is one. What is asked for is claimed
as a link of its own (a service link, outside the degree), which is up already in most cases.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import msgspec

from shoal.base.errors import (
    DecryptionFailed,
    InvariantViolated,
    MalformedMessage,
    UsageError,
)
from shoal.base.ids import NodeId, StreamId
from shoal.identity.entropy import Entropy
from shoal.identity.group_key import GroupKey
from shoal.identity.keys import PrivateKey, PublicKey
from shoal.identity.wrapped_key import unwrap_key, wrap_key
from shoal.kernel.access import Permission
from shoal.kernel.contact import Contact
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
from shoal.kernel.rate_limit import RateLimit
from shoal.kernel.records import Rejected
from shoal.protocols.streams.keys.commands import FindKey, KeyFound, KeyNotFound
from shoal.protocols.streams.keys.config import ExchangeConfig
from shoal.protocols.streams.keys.messages import KeyAnswer, KeyRequest
from shoal.protocols.streams.keys.ring import KeyRing

NeighboursOf = Callable[[StreamId], Sequence[NodeId]]


class _Find(msgspec.Struct, eq=False):
    """A key that is looked for. Its number is the request's, and its purpose names its claims."""

    number: int
    command: FindKey
    token: Hashable
    until_ns: int
    asked: dict[NodeId, None] = {}
    peer: NodeId | None = None

    @property
    def purpose(self) -> str:
        return f"key {self.number}"


class _Asked(msgspec.Struct, frozen=True):
    """A request that waits for the registry's word."""

    request: int
    key: GroupKey
    reader: PublicKey


class KeyExchange:
    """One node's side of it."""

    accepts: tuple[type, ...] = (KeyRequest, KeyAnswer)

    def __init__(
        self,
        key: PrivateKey,
        ring: KeyRing,
        neighbours_of: NeighboursOf,
        entropy: Entropy,
        config: ExchangeConfig | None = None,
    ) -> None:
        """`neighbours_of` names who is linked with us in a stream."""
        self.ring = ring
        self.met: dict[NodeId, PublicKey] = {}
        """Public keys of those who were given a key, the newest: a publisher can wrap for them."""
        self.config = config or ExchangeConfig()
        self._key = key
        self._neighbours_of = neighbours_of
        self._entropy = entropy
        self._numbers = 0
        self._finds: dict[int, _Find] = {}
        self._checks: dict[tuple[StreamId, NodeId], list[_Asked]] = {}
        self._checks_count = 0
        limits = self.config
        self._limit = RateLimit(limits.requests_burst, limits.request_ns, limits.request_peers_max)

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """Take one fact."""
        match event:
            case CommandIssued(FindKey() as command, token):
                return self._begin(command, token, now_ns)
            case MessageReceived(peer, KeyRequest() as request):
                return self._requested(peer, request, now_ns)
            case MessageReceived(peer, KeyAnswer() as answer):
                return self._answered(peer, answer, now_ns)
            case AccessChecked():
                return self._checked(event)
            case LinkOpened(peer, purpose):
                return self._opened(peer, purpose)
            case LinkClosed(peer, purpose) | LinkFailed(peer, purpose):
                find = self._of(peer, purpose)
                return [] if find is None else self._next(find, now_ns)
            case TimerFired(int() as number):
                find = self._finds.get(number)
                return [] if find is None else [*self._let_go(find), *self._next(find, now_ns)]
            case CommandIssued(command):
                raise UsageError(f"{command!r} is no command of a key exchange")
        return []

    # Asking

    def _begin(self, command: FindKey, token: Hashable, now_ns: int) -> list[Effect]:
        if len(self._finds) >= self.config.finds_max:
            return [Notify(KeyNotFound(token))]
        self._numbers += 1
        find = _Find(self._numbers, command, token, now_ns + self.config.patience_ns)
        self._finds[find.number] = find
        return self._next(find, now_ns)

    def _next(self, find: _Find, now_ns: int) -> list[Effect]:
        """Ask the next one; nobody is being asked."""
        find.peer = None
        if self.ring.get(find.command.key) is not None:  # it was announced meanwhile
            return self._end(find, KeyFound(find.token))
        if now_ns >= find.until_ns:
            return self._end(find, KeyNotFound(find.token))
        peers = self._neighbours_of(find.command.stream)
        publisher = find.command.publisher
        for peer in sorted(peers, key=lambda peer: peer != publisher):
            if peer not in find.asked:
                find.asked[peer] = None
                find.peer = peer
                return [
                    SetTimer(find.number, self.config.ask_ns),
                    OpenLink(Contact(peer), find.purpose),
                ]
        find.asked.clear()
        return [SetTimer(find.number, self.config.again_ns)]

    def _opened(self, peer: NodeId, purpose: str) -> list[Effect]:
        find = self._of(peer, purpose)
        if find is None:
            return [CloseLink(peer, purpose)]
        wanted, public_key = find.command, self._key.public.to_bytes()
        request = KeyRequest(find.number, wanted.stream, wanted.key, public_key)
        return [Send(request, (peer,))]

    def _answered(self, peer: NodeId, answer: KeyAnswer, now_ns: int) -> list[Effect]:
        find = self._finds.get(answer.request)
        if find is None or find.peer != peer:
            return [Rejected(peer, "unasked-key")]
        effects = self._let_go(find)
        if answer.sealed is not None:
            wanted = find.command
            try:
                key = unwrap_key(
                    wanted.stream, wanted.publisher, wanted.key, answer.sealed, self._key
                )
                self.ring.add(key)
            except DecryptionFailed:
                effects.append(Rejected(peer, "wrong-key"))
        return [*effects, *self._next(find, now_ns)]

    def _let_go(self, find: _Find) -> list[Effect]:
        peer, find.peer = find.peer, None
        return [] if peer is None else [CloseLink(peer, find.purpose)]

    def _end(self, find: _Find, event: KeyFound | KeyNotFound) -> list[Effect]:
        del self._finds[find.number]
        return [CancelTimer(find.number), Notify(event)]

    def _of(self, peer: NodeId, purpose: str) -> _Find | None:
        """The search that asks this peer."""
        for find in self._finds.values():
            if find.peer == peer and find.purpose == purpose:
                return find
        return None

    # Answering

    def _requested(self, peer: NodeId, request: KeyRequest, now_ns: int) -> list[Effect]:
        if not self._limit.allow(peer, now_ns):
            return [Rejected(peer, "too-many-key-requests")]
        try:
            reader = PublicKey.from_bytes(request.public_key)
        except MalformedMessage:
            return [Rejected(peer, "no-public-key")]
        if reader.address != peer:
            return [Rejected(peer, "another-public-key")]
        key = self.ring.get(request.key)
        full = self._checks_count >= self.config.checks_max
        is_held = key is not None and key.stream == request.stream
        if key is None or not is_held or full:
            return [Send(KeyAnswer(request.request, None), (peer,))]
        waiting = self._checks.setdefault((request.stream, peer), [])
        waiting.append(_Asked(request.request, key, reader))
        self._checks_count += 1
        return [CheckAccess(request.stream, peer)] if len(waiting) == 1 else []

    def _checked(self, checked: AccessChecked) -> list[Effect]:
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
        if len(self.met) > self.config.met_max:
            del self.met[next(iter(self.met))]

    def check_invariants(self) -> None:
        """Counts agree, bounds hold, and whoever is being asked counts as asked."""
        if self._checks_count != sum(map(len, self._checks.values())):
            raise InvariantViolated(f"{self._checks_count} checks are counted, others are there")
        if len(self._finds) > self.config.finds_max or self._checks_count > self.config.checks_max:
            raise InvariantViolated("more keys are looked for, or asked for, than there may be")
        for find in self._finds.values():
            if find.peer is not None and find.peer not in find.asked:
                raise InvariantViolated(f"search {find.number} asks whom it has not asked")
