"""Questions to peers, over links of our own: each is answered, or has failed, within its time.

A link is claimed when there is something to ask and given back when there has been nothing for a
while. Few questions are on their way to one peer at once; the others wait here, in order, so that
a reader of a hundred partitions is not taken for an attack.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from shoal.base.ids import Contact, NodeId
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer

EXTENDED_MAX = 4  # times that a question has its time again: who answers others may not want to


class DeskLimits(msgspec.Struct, frozen=True):
    """How long a desk waits for whom."""

    dial_ns: int
    """A link that is not up by then is not waited for."""
    answer_ns: int
    """Nor is an answer, after the question was sent, or after other answers of the same peer."""
    idle_ns: int
    """A link that nothing was asked over for this long is given back."""
    questions_per_peer_max: int
    """On their way to one peer at once."""


class Question(msgspec.Struct, frozen=True):
    """Something that a peer was, or will be, asked."""

    peer: NodeId
    owner: Any
    message: Any


class _Flight(msgspec.Struct):
    """A question on its way."""

    settled: int
    """How many answers had come when its time began."""
    extended: int = 0


class _Peer(msgspec.Struct):
    up: bool = False
    settled: int = 0
    flying: dict[Hashable, _Flight] = {}
    waiting: dict[Hashable, None] = {}


class Desk:
    """Who was asked what, on whose behalf."""

    def __init__(self, purpose: str, limits: DeskLimits) -> None:
        """The purpose is that of the claims on links, beside those of other machines."""
        self._purpose = purpose
        self._limits = limits
        self._questions: dict[Hashable, Question] = {}
        self._peers: dict[NodeId, _Peer] = {}
        self._requests = 0

    def next_request(self) -> int:
        """An id for the next question: no two of ours share one."""
        self._requests += 1
        return self._requests

    def ask(self, key: Hashable, owner: Any, contact: Contact, message: Any) -> list[Effect]:
        """Ask a peer something; the key is what its answer will be known by."""
        effects: list[Effect] = []
        peer = self._peers.get(contact.node)
        if peer is None:
            peer = self._peers[contact.node] = _Peer()
            effects.append(OpenLink(contact, self._purpose))
            effects.append(SetTimer(("dial", contact.node), self._limits.dial_ns))
        self._questions[key] = Question(contact.node, owner, message)
        peer.waiting[key] = None
        return effects + self._send(contact.node, peer)

    def settle(self, peer: NodeId, key: Hashable) -> tuple[Question | None, list[Effect]]:
        """An answer came: the question, if this peer was asked it and is in time."""
        question = self._questions.get(key)
        if question is None or question.peer != peer or key not in self._peers[peer].flying:
            return None, []
        self._peers[peer].settled += 1
        return question, self._close(key, question)

    def timed_out(self, key: Hashable) -> tuple[list[Question], list[Effect]]:
        """No answer came in time: that question has none, unless the peer has answered others
        meanwhile. Large answers over a slow link come one after the other."""
        question = self._questions[key]
        peer = self._peers[question.peer]
        flight = peer.flying[key]
        if peer.settled > flight.settled and flight.extended < EXTENDED_MAX:
            flight.settled, flight.extended = peer.settled, flight.extended + 1
            return [], [SetTimer(("ask", key), self._limits.answer_ns)]
        return [question], self._close(key, question)

    def drop(self, key: Hashable) -> None:
        """Nobody waits for an answer any more: a question that was not sent is not asked. One that
        was may still be answered, which is no fault of the peer's."""
        question = self._questions.get(key)
        if question is not None and key not in self._peers[question.peer].flying:
            del self._peers[question.peer].waiting[key]
            del self._questions[key]

    # Links

    def opened(self, node: NodeId) -> list[Effect]:
        """The link is up: ask what waited for it."""
        peer = self._peers.get(node)
        if peer is None:
            return [CloseLink(node, self._purpose)]
        peer.up = True
        effects = [CancelTimer(("dial", node)), *self._send(node, peer)]
        if not peer.flying:  # who asked has lost interest
            effects.append(SetTimer(("idle", node), self._limits.idle_ns))
        return effects

    def lost(self, node: NodeId) -> tuple[list[Question], list[Effect]]:
        """The link broke, or could not be made: the questions that have no answer."""
        peer = self._peers.pop(node, None)
        if peer is None:
            return [], []
        effects: list[Effect] = [CancelTimer(("dial", node)), CancelTimer(("idle", node))]
        effects.extend(CancelTimer(("ask", key)) for key in peer.flying)
        keys = [*peer.flying, *peer.waiting]
        return [self._questions.pop(key) for key in keys], effects

    def give_up_dialling(self, node: NodeId) -> tuple[list[Question], list[Effect]]:
        """The link took too long to make."""
        questions, effects = self.lost(node)
        return questions, [CloseLink(node, self._purpose), *effects]

    def give_back(self, node: NodeId) -> list[Effect]:
        """Nothing was asked for a while."""
        peer = self._peers.get(node)
        if peer is None or peer.flying or peer.waiting:
            return []
        del self._peers[node]
        return [CloseLink(node, self._purpose)]

    def question_count(self) -> int:
        """Questions that have no answer yet."""
        return len(self._questions)

    def _send(self, node: NodeId, peer: _Peer) -> list[Effect]:
        effects: list[Effect] = []
        while peer.up and peer.waiting and len(peer.flying) < self._limits.questions_per_peer_max:
            key = next(iter(peer.waiting))
            del peer.waiting[key]
            peer.flying[key] = _Flight(peer.settled)
            effects.append(Send(self._questions[key].message, (node,)))
            effects.append(SetTimer(("ask", key), self._limits.answer_ns))
        if effects:
            effects.append(CancelTimer(("idle", node)))
        return effects

    def _close(self, key: Hashable, question: Question) -> list[Effect]:
        node, peer = question.peer, self._peers[question.peer]
        del self._questions[key], peer.flying[key]
        effects = [CancelTimer(("ask", key)), *self._send(node, peer)]
        if not peer.flying:
            effects.append(SetTimer(("idle", node), self._limits.idle_ns))
        return effects
