"""Whom a tracker takes into a stream: those who may publish or subscribe, and those who keep it.

A Join waits until the registry has said what its sender may do. A member that may do nothing any
more is taken out when the registry says so, and when what is known of it has become too old it is
asked for again. Nobody is taken out because the registry is out of reach.

Only those who may subscribe are told whom to ask for keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.kernel.access import Permission, Verdict
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import AccessChanged, AccessChecked
from shoal.kernel.records import Rejected
from shoal.protocols.streams.messages import (
    REASON_CHARS_MAX,
    FindHolders,
    FindStorage,
    Join,
    JoinRefused,
)
from shoal.protocols.streams.permissions import AccessTable

NO_READER = "key-not-permitted"  # as whoever has the key counts it
MEMBERS_MAY = int(Permission.PUBLISH | Permission.SUBSCRIBE)

Request = Join | FindStorage | FindHolders
Members = Callable[[StreamId], Iterable[NodeId]]


class Admission:
    """What waits for the registry, at one tracker."""

    def __init__(
        self, table: AccessTable | None, storage_of: Callable[[StreamId], tuple[Contact, ...]]
    ) -> None:
        """Without a table, everybody may join."""
        self._table = table
        self._storage_of = storage_of
        self._waiting: dict[tuple[StreamId, NodeId], dict[type, Request]] = {}

    def wait(self, peer: NodeId, request: Request, now_ns: int) -> list[Effect] | None:
        """What is done instead of what a node asks for; None: do it."""
        if self._table is None:
            return None
        stream = request.stream
        verdict = self._table.look(stream, peer, now_ns)
        if verdict is not None:
            return self._judge(peer, request, verdict)
        key = (stream, peer)
        if key not in self._waiting and len(self._waiting) >= self._table.config.joins_max:
            return [Rejected(peer, "too-many-joins")]
        # Of several questions of one kind the last is answered; the others are asked again.
        self._waiting.setdefault(key, {})[type(request)] = request
        return self._table.ask(stream, peer)

    def checked(self, event: AccessChecked, now_ns: int) -> tuple[list[Request], list[Effect]]:
        """The registry's answer: what can be done now, and what is refused."""
        assert self._table is not None  # who else has asked
        verdict = self._table.checked(event, now_ns)
        granted: list[Request] = []
        effects: list[Effect] = []
        for request in self._waiting.pop((event.stream, event.who), {}).values():
            refusal = self._judge(event.who, request, verdict)
            if refusal is None:
                granted.append(request)
            else:
                effects.extend(refusal)
        return granted, effects

    def is_out(self, event: AccessChecked) -> bool:
        """Whether a member has to go."""
        may_join = self._may_join(event.stream, event.who, event.verdict)
        return not event.verdict.problem and not may_join

    def changed(
        self, event: AccessChanged, streams: Iterable[StreamId], members: Members
    ) -> list[Effect]:
        """Permissions may be different: ask for those of members again."""
        if self._table is None:
            return []
        self._table.changed(event)
        effects: list[Effect] = []
        for stream in streams if event.stream is None else (event.stream,):
            for node in members(stream):
                if event.who in (None, node):
                    effects.extend(self._table.ask(stream, node))
        return effects

    def look_after(self, stream: StreamId, members: Iterable[NodeId], now_ns: int) -> list[Effect]:
        """Ask for those of whom nothing counts any more."""
        if self._table is None:
            return []
        look, ask = self._table.look, self._table.ask
        return [
            effect
            for node in members
            if look(stream, node, now_ns) is None
            for effect in ask(stream, node)
        ]

    def may_read(self, stream: StreamId, node: NodeId, now_ns: int) -> bool:
        """Whether it is known that somebody may subscribe."""
        if self._table is None:
            return True
        verdict = self._table.look(stream, node, now_ns)
        return verdict is not None and verdict.allows(Permission.SUBSCRIBE)

    def _judge(self, peer: NodeId, request: Request, verdict: Verdict) -> list[Effect] | None:
        if isinstance(request, FindStorage):
            if not verdict.problem or self._storage_of(request.stream):
                return None  # it is no secret: what was waited for is that it is known here
            # That nobody keeps it is not known either, and would be believed.
            return [Rejected(peer, "permission-unknown")]
        if isinstance(request, FindHolders):
            if verdict.allows(Permission.SUBSCRIBE):
                return None
            return [Rejected(peer, "permission-unknown" if verdict.problem else NO_READER)]
        if self._may_join(request.stream, peer, verdict):
            return None
        return refuse(request.stream, peer, verdict)

    def _may_join(self, stream: StreamId, node: NodeId, verdict: Verdict) -> bool:
        return verdict.allows(MEMBERS_MAY) or any(
            contact.node == node for contact in self._storage_of(stream)
        )


def refuse(stream: StreamId, node: NodeId, verdict: Verdict) -> list[Effect]:
    """Tell a node why it is not in a stream."""
    reason = "permission-unknown" if verdict.problem else "no-permission"
    said = JoinRefused(stream, bool(verdict.problem), verdict.problem[:REASON_CHARS_MAX])
    return [Rejected(node, reason), Send(said, (node,))]
