"""A message that must be kept: said to all storage nodes of its stream, until enough of them say
that they have it on disk.

A late message may come to a storage node when others have already been told that they have all of
its time. Until these have it, too, they could claim to be complete without it: it is not kept yet.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from typing import Any

from shoal.base.ids import Contact, NodeId, StreamId, short_node_id
from shoal.kernel.effects import Effect, Notify, SetTimer
from shoal.kernel.peer_requests import Desk
from shoal.kernel.records import Rejected
from shoal.protocols.streams.commands import (
    FAILED,
    LATE,
    CountDurable,
    CountedDurable,
    KeepDurably,
    KeepFailed,
    KeptDurably,
)
from shoal.protocols.streams.config import ClientConfig
from shoal.protocols.streams.history.messages import Counted, CountKept, Keep, Kept, Refused

NOT_KEPT = "not-kept"
NOT_NAMED = "not-named"  # by the tracker, or by our settings
FOR_GOOD = ("bad-signature", "conflict", "malformed", "no-permission")


class Confirmed:
    """The storage nodes that have a message on disk."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, None] = {}
        self._unaware: dict[NodeId, None] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, node: NodeId, unaware: Sequence[NodeId]) -> None:
        """One more; these others may speak for it without the message."""
        if self._nodes:  # one that does not speak for all of them claims nothing without it
            self._unaware = {one: None for one in self._unaware if one in unaware}
        else:
            self._unaware = dict.fromkeys(unaware)
        self._nodes[node] = None

    def unaware(self, besides: Container[NodeId] = ()) -> tuple[NodeId, ...]:
        """Those that may claim to be complete, and have not confirmed the message."""
        return tuple([n for n in self._unaware if n not in self._nodes and n not in besides])


class Keeping:
    """One message and its storage nodes."""

    def __init__(
        self, id: int, command: KeepDurably, token: Hashable, desk: Desk, config: ClientConfig
    ) -> None:
        self.id = id
        self.over = False
        self._command = command
        self._token = token
        self._desk = desk
        self._config = config
        self._open: dict[NodeId, Contact] = {}  # has not said Kept
        self._said: dict[NodeId, str] = {}
        self._asked: list[int] = []  # in this round
        self._waiting = 0  # questions of it without an answer
        self._rounds = 0
        self._confirmed = Confirmed()

    @property
    def stream(self) -> StreamId:
        return self._command.stream

    def found(self, contacts: Sequence[Contact]) -> list[Effect]:
        """These keep the stream."""
        self._open = {contact.node: contact for contact in contacts}
        copies = self._command.copies
        if len(self._open) < copies:
            return self._fail(FAILED, f"{copies} copies, but {len(self._open)} storage nodes")
        return self._ask_all()

    def not_found(self, reason: str, problem: str) -> list[Effect]:
        """Nobody keeps it, or nobody knows who does."""
        return self._fail(reason, problem)

    def answered(self, peer: NodeId, answer: Any) -> list[Effect]:
        """A storage node said something."""
        if isinstance(answer, Kept):
            del self._open[peer]
            self._confirmed.add(peer, answer.unaware)
            return self._kept() or self._heard()
        if isinstance(answer, Refused):
            return self._silent(peer, answer.reason)
        return [Rejected(peer, "history-another-answer"), *self._silent(peer, "another-answer")]

    def failed(self, peer: NodeId, reason: str) -> list[Effect]:
        """A storage node did not answer."""
        return self._silent(peer, reason)

    def retry(self) -> list[Effect]:
        """The pause between two rounds is over."""
        return self._ask_all()

    def _kept(self) -> list[Effect]:
        """Told once enough of them have it."""
        if len(self._confirmed) < self._command.copies or self._unaware():
            return []
        self.over = True
        for request in self._asked:  # a slow node must not make us hold what others keep
            self._desk.drop(request)
        return [Notify(KeptDurably(self._token, len(self._confirmed)))]

    def _unaware(self) -> tuple[NodeId, ...]:
        # One that keeps nothing of the stream tells readers so.
        nothing = [node for node, word in self._said.items() if word == NOT_KEPT]
        return self._confirmed.unaware(nothing)

    def _silent(self, peer: NodeId, reason: str) -> list[Effect]:
        self._said[peer] = reason
        return self._kept() or self._heard()

    def _heard(self) -> list[Effect]:
        self._waiting -= 1
        if self._waiting:
            return []
        if self._open and self._rounds < self._config.rounds:
            return [SetTimer(("retry", self.id), self._config.retry_ns)]
        said = ", ".join(f"{short_node_id(node)}: {word}" for node, word in self._said.items())
        kept, copies = len(self._confirmed), self._command.copies
        if kept >= copies:
            each = [
                f"{short_node_id(node)}: {self._said.get(node, NOT_NAMED)}"
                for node in self._unaware()
            ]
            return self._fail(LATE, ", ".join(each))
        refused = all(word in FOR_GOOD for word in self._said.values())
        return self._fail(FAILED, f"{kept} of {copies} copies ({said})", refused=refused)

    def _ask_all(self) -> list[Effect]:
        self._rounds += 1
        self._asked, self._waiting = [], len(self._open)
        effects: list[Effect] = []
        for contact in self._open.values():
            request = self._desk.next_request()
            self._asked.append(request)
            keep = Keep(request, self._command.signed)
            effects.extend(self._desk.ask(request, self.id, contact, keep))
        return effects

    def _fail(self, reason: str, problem: str, *, refused: bool = False) -> list[Effect]:
        self.over = True
        return [Notify(KeepFailed(self._token, reason, problem, refused))]


# How much of a chain is kept: asked of all storage nodes of a stream at once, and once.


class Counting:
    """One question to several storage nodes; whoever asked asks again if it is not enough."""

    def __init__(self, id: int, command: CountDurable, token: Hashable, desk: Desk) -> None:
        self.id = id
        self.over = False
        self._command = command
        self._token = token
        self._desk = desk
        self._waiting = 0
        self._most: int | None = None
        self._confirmed = Confirmed()
        self._said: dict[NodeId, str] = {}

    @property
    def stream(self) -> StreamId:
        return self._command.stream

    def found(self, contacts: Sequence[Contact]) -> list[Effect]:
        """These keep the stream."""
        command = self._command
        self._waiting = len(contacts)
        effects: list[Effect] = []
        for contact in contacts:
            request = self._desk.next_request()
            question = CountKept(
                request,
                command.stream,
                command.partition,
                command.publisher,
                command.chain,
                command.begin,
                command.end,
            )
            effects.extend(self._desk.ask(request, self.id, contact, question))
        return effects

    def not_found(self, reason: str, problem: str) -> list[Effect]:
        """Nobody keeps it, or nobody knows who does."""
        self.over = True
        return [Notify(KeepFailed(self._token, reason, problem))]

    def answered(self, peer: NodeId, answer: Any) -> list[Effect]:
        """A storage node said something."""
        if isinstance(answer, Counted):
            self._most = max(self._most or 0, answer.count)
            if answer.count >= self._command.wanted:
                self._confirmed.add(peer, answer.unaware)
                if not self._unaware():
                    return self._end()
            return self._heard()
        if isinstance(answer, Refused):
            return self.failed(peer, answer.reason)
        return [Rejected(peer, "history-another-answer"), *self.failed(peer, "another-answer")]

    def failed(self, peer: NodeId, reason: str) -> list[Effect]:
        """A storage node did not answer."""
        self._said[peer] = reason
        return self._heard()

    def retry(self) -> list[Effect]:
        """There is no second round."""
        return []

    def _unaware(self) -> tuple[NodeId, ...]:
        nothing = [node for node, word in self._said.items() if word == NOT_KEPT]
        return self._confirmed.unaware(nothing)

    def _heard(self) -> list[Effect]:
        self._waiting -= 1
        if self._waiting:
            return []
        return self._end()

    def _end(self) -> list[Effect]:
        self.over = True
        if self._most is not None:
            return [Notify(CountedDurable(self._token, self._most, self._unaware()))]
        said = ", ".join(f"{short_node_id(node)}: {word}" for node, word in self._said.items())
        return [Notify(KeepFailed(self._token, FAILED, said))]
