"""Questions under way: who was asked what, over which link, and until when.

Links are soft claims: the driver may take them away, and so may the other side. A question whose
link goes is asked once more over a new one. An answer counts if this peer was asked this, under
this number, and has not answered yet; every other one is counted as rejected, and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId, short_node_id
from shoal.kernel.effects import Effect, OpenLink, Send, SetTimer
from shoal.kernel.records import Rejected
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.messages import (
    FindNode,
    FindValue,
    Nodes,
    Ping,
    Pong,
    StoreValue,
    Values,
    ValueStored,
)

PURPOSE = "dht"
CALLS = "calls"  # the timer of the oldest question
SLOW = "slow"  # the timer of the oldest question whose peer may be slow

ANSWER_TO: dict[type, type] = {
    Ping: Pong,
    FindNode: Nodes,
    FindValue: Values,
    StoreValue: ValueStored,
}

Then = Callable[[Any, int], list[Effect]]
"""What to do with the answer, or with None if there is none; and the time."""

GoOn = Callable[[int], list[Effect]]
"""What to do without the answer, which may still come; and the time."""


class _Call(msgspec.Struct, gc=False):
    contact: Contact
    message: Any
    then: Then
    go_on: GoOn | None = None
    """Until it was called."""
    sent: bool = False
    again: bool = False


class Calls:
    """Asks, and finds the question to each answer."""

    def __init__(
        self,
        config: DhtConfig,
        heard: Callable[[Contact, int], list[Effect]],
        lost: Callable[[NodeId], None],
    ) -> None:
        """Heard and lost are told who answered, and who did not."""
        self.addresses: tuple[str, ...] = ()
        """Where we can be dialled, told with every question."""
        self._config = config
        self._heard = heard
        self._lost = lost
        self._request = 0
        self._calls: dict[NodeId, dict[int, _Call]] = {}
        self._due: deque[tuple[int, NodeId, int]] = deque()  # answered ones are still in it
        self._slow_due: deque[tuple[int, NodeId, int]] = deque()  # the same
        self._slow: dict[NodeId, None] = {}
        self._open: dict[NodeId, None] = {}
        self._opening: dict[NodeId, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    @property
    def peers(self) -> int:
        """How many are being asked."""
        return len(self._calls)

    def ask(
        self,
        contact: Contact,
        kind: type,
        fields: tuple[Any, ...],
        then: Then,
        now_ns: int,
        go_on: GoOn | None = None,
    ) -> list[Effect]:
        """Ask a peer; `then` is called once, whatever happens. `go_on` is called before it if the
        peer is slow; a caller may ask before whether it was slow before (`is_slow`)."""
        self._request += 1
        node = contact.node
        call = _Call(contact, kind(self._request, self.addresses, *fields), then, go_on)
        self._calls.setdefault(node, {})[self._request] = call
        effects: list[Effect] = []
        if not self._due:
            effects.append(SetTimer(CALLS, self._config.call_timeout_ns))
        self._due.append((now_ns + self._config.call_timeout_ns, node, self._request))
        if go_on is not None:
            if not self._slow_due:
                effects.append(SetTimer(SLOW, self._config.slow_ns))
            self._slow_due.append((now_ns + self._config.slow_ns, node, self._request))
        if node in self._open:
            call.sent = True
            effects.append(Send(call.message, (node,)))
        else:
            effects += self.claim(contact)
        return effects

    def is_slow(self, node: NodeId) -> bool:
        """Whether this node let a question wait, and has not answered any since."""
        return node in self._slow

    def claim(self, contact: Contact) -> list[Effect]:
        """Hold the link to a peer, as long as the driver lets us."""
        node = contact.node
        if node in self._open or node in self._opening:
            return []
        self._opening[node] = None
        return [OpenLink(contact, PURPOSE, soft=True)]

    def link_opened(self, peer: NodeId) -> list[Effect]:
        """What waited for the link goes out."""
        self._opening.pop(peer, None)
        self._open[peer] = None
        effects: list[Effect] = []
        for call in self._calls.get(peer, {}).values():
            if not call.sent:
                call.sent = True
                effects.append(Send(call.message, (peer,)))
        return effects

    def link_lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """The link is gone, or never came. Links go for many reasons: what was under way is asked
        once more. A peer that cannot be dialled has failed."""
        self._open.pop(peer, None)
        self._opening.pop(peer, None)
        effects: list[Effect] = []
        failed: list[int] = []
        for request, call in self._calls.get(peer, {}).items():
            if call.sent and not call.again:
                call.sent, call.again = False, True
                effects += self.claim(call.contact)
            else:
                failed.append(request)
        for request in failed:
            effects += self._fail(peer, request, now_ns)
        return effects

    def answered(self, peer: NodeId, message: Any, now_ns: int) -> list[Effect]:
        """An answer came in."""
        request: int = message.request
        call = self._calls.get(peer, {}).get(request)
        if call is None:
            return [Rejected(peer, "unasked-answer")]
        if type(message) is not ANSWER_TO[type(call.message)]:
            return [Rejected(peer, "wrong-answer")]
        self._remove(peer, request)
        self._slow.pop(peer, None)
        return [*self._heard(call.contact, now_ns), *call.then(message, now_ns)]

    def tick(self, now_ns: int) -> list[Effect]:
        """Time is up for some."""
        effects: list[Effect] = []
        due = self._due
        while due:
            deadline_ns, peer, request = due[0]
            if request in self._calls.get(peer, {}):
                if deadline_ns > now_ns:
                    effects.append(SetTimer(CALLS, deadline_ns - now_ns))
                    break
                due.popleft()
                effects += self._fail(peer, request, now_ns)
            else:
                due.popleft()
        return effects

    def slow_tick(self, now_ns: int) -> list[Effect]:
        """Some have let a question wait."""
        effects: list[Effect] = []
        due = self._slow_due
        while due:
            slow_ns, peer, request = due[0]
            call = self._calls.get(peer, {}).get(request)
            if call is not None and slow_ns > now_ns:
                effects.append(SetTimer(SLOW, slow_ns - now_ns))
                break
            due.popleft()
            if call is None:
                continue
            self._slow[peer] = None
            if len(self._slow) > self._config.slow_max:
                del self._slow[next(iter(self._slow))]
            go_on, call.go_on = call.go_on, None
            effects += [] if go_on is None else go_on(now_ns)
        return effects

    def _fail(self, peer: NodeId, request: int, now_ns: int) -> list[Effect]:
        call = self._remove(peer, request)
        self._lost(peer)
        return call.then(None, now_ns)

    def _remove(self, peer: NodeId, request: int) -> _Call:
        calls = self._calls[peer]
        call = calls.pop(request)
        if not calls:
            del self._calls[peer]
        return call

    def check_invariants(self) -> None:
        """Raise InvariantViolated if a question waits for nothing."""
        due = {(peer, request) for _, peer, request in self._due}
        for peer, calls in self._calls.items():
            if peer not in self._open and peer not in self._opening:
                raise InvariantViolated(f"no link comes for questions to {short_node_id(peer)}")
            for request, call in calls.items():
                if (peer, request) not in due or (call.sent and peer not in self._open):
                    raise InvariantViolated(f"question {request} to {short_node_id(peer)} hangs")
