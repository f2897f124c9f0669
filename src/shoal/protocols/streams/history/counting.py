"""How much of a chain is kept: asked of all storage nodes of a stream at once, and once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from shoal.base.ids import NodeId, StreamId, short_node_id
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.records import Rejected
from shoal.protocols.streams.desk import Desk
from shoal.protocols.streams.history.commands import (
    FAILED,
    CountDurable,
    CountedDurable,
    KeepFailed,
)
from shoal.protocols.streams.history.keeping import NOT_KEPT, Confirmed
from shoal.protocols.streams.history.messages import Counted, CountKept, Refused


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
