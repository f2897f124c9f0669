"""Clients search without a place on the circle: whoever cannot be dialled, or has little to give.

`Clients` is the host's side: it answers ClientHello, casts what clients send, and sends them to
others when it leaves. `Hosting` is the client's side: one host at a time, another when it goes.
Both ends claim the link between them: nobody else keeps it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from shoal.base.ids import Contact, NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.circle.circle import Circle
from shoal.protocols.search.circle.known_nodes import Acquaintances
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.links import Links
from shoal.protocols.search.messages import (
    BubbleCast,
    ClientDeny,
    ClientHello,
    ClientOk,
    ClientRedirect,
    Totals,
)
from shoal.protocols.search.signature_checks import Checks
from shoal.protocols.search.signed_records import AddressRecord

REDIRECTED_MAX = 4  # nodes that a client is sent to: one of them will answer
HELLO_BEATS = 12  # a host is asked once a minute how large the network is,
MISSED_MAX = 3  # and at each beat, if it did not answer; then it is gone
WAITING_MAX = 64  # bubbles that wait for a host


class Clients:
    """Who searches through us."""

    def __init__(self, circle: Circle, links: Links, config: SearchConfig) -> None:
        self._circle = circle
        self._links = links
        self._config = config
        self._clients: dict[NodeId, None] = {}

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._clients

    def __len__(self) -> int:
        return len(self._clients)

    def hello(self, peer: NodeId, message: ClientHello, now_ns: int) -> list[Effect]:
        """Somebody asks to be a client, or once more how large the network is."""
        if message.record.node != peer:
            return [Rejected(peer, "not-its-address")]
        reason = self._why_not(peer)
        if reason:
            return [Send(ClientDeny(reason), (peer,))]
        ok = Send(ClientOk(self._circle.ring.bootstrap()), (peer,))
        if peer in self._clients:
            return [ok]
        self._clients[peer] = None
        # Without an address: the link is there, and if not, there is nobody to dial.
        return [*self._links.open(Contact(peer), lambda up, now_ns: [], now_ns), ok]

    def opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """The link to a client is ours, too; or it was, and the client has left us meanwhile."""
        effects = self._links.opened(peer, now_ns)
        return effects if peer in self._clients else effects + self._links.release(peer)

    def lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A client is gone."""
        self._clients.pop(peer, None)
        return self._links.lost(peer, now_ns)

    def leave(self) -> list[Effect]:
        """Send every client to our neighbours."""
        others = {edge.peer: edge.record for edge in self._circle.edges}
        others.pop(self._circle.ring.node, None)
        records = tuple(others.values())[:REDIRECTED_MAX]
        clients, self._clients = tuple(self._clients), {}
        effects: list[Effect] = [Send(ClientRedirect(records), clients)] if clients else []
        for peer in clients:
            effects += self._links.release(peer)
        return effects

    def _why_not(self, peer: NodeId) -> str:
        if self._circle.going:
            return "leaving"
        if not self._circle.joined:
            return "not joined yet"
        if peer not in self._clients and len(self._clients) >= self._config.clients_max:
            return "full"
        return ""


class Hosting:
    """Our host, if we are a client."""

    def __init__(
        self,
        record: AddressRecord,
        acquaintances: Acquaintances,
        links: Links,
        checks: Checks,
        known: Callable[[Totals], None],
    ) -> None:
        """`known` is told how large the network is."""
        self._record = record
        self._acquaintances = acquaintances
        self._links = links
        self._checks = checks
        self._known = known
        self._asked: NodeId | None = None
        self._beats = 0
        """Since our host was asked last, and answered."""
        self._missed = 0
        """Questions that it did not answer."""
        self._waiting: deque[BubbleCast] = deque(maxlen=WAITING_MAX)
        self.host: NodeId | None = None

    def beat(self, now_ns: int) -> list[Effect]:
        """Look for a host, or ask it from time to time how large the network is by now."""
        host = self.host
        if host is None:
            return self._ask_next(now_ns)
        self._beats += 1
        if self._missed >= MISSED_MAX:
            return [*self._drop(host), *self._ask_next(now_ns)]
        return self._hello(host) if self._missed or self._beats >= HELLO_BEATS else []

    def cast(self, cast: BubbleCast) -> list[Effect]:
        """Have our host cast a bubble; the next one, if we have none just now."""
        if self.host is None:
            self._waiting.append(cast)
            return []
        return [Send(cast, (self.host,))]

    def accepted(self, peer: NodeId, message: ClientOk) -> list[Effect]:
        """A node has us as its client."""
        if peer not in (self._asked, self.host):
            return [Rejected(peer, "not-asked")]
        self.host, self._asked = peer, None
        self._beats = self._missed = 0
        self._known(message.bootstrap)
        waiting = list(self._waiting)
        self._waiting.clear()
        return [Send(cast, (peer,)) for cast in waiting]

    def denied(self, peer: NodeId) -> list[Effect]:
        """A node does not, or no longer: the next beat asks another. At once, two nodes that are
        full would keep us busy."""
        if peer not in (self._asked, self.host):
            return [Rejected(peer, "not-asked")]
        return self._drop(peer)

    def redirected(self, peer: NodeId, message: ClientRedirect, now_ns: int) -> list[Effect]:
        """Our host leaves, and names others. We dial none whose record is not its own."""
        if peer != self.host:
            return [Rejected(peer, "not-asked")]
        effects = self._drop(peer)
        for record in message.others:
            checked = partial(self._checked, record)
            effects += self._checks.check(record.node, record.signed, checked, now_ns)
        return effects

    def opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link is up; perhaps we have given up waiting for it."""
        effects = self._links.opened(peer, now_ns)
        if peer in (self._asked, self.host):
            return effects
        return effects + self._links.release(peer)

    def lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """The link to a node is gone; the next beat asks another."""
        self._forget(peer)
        return self._links.lost(peer, now_ns)

    def leave(self) -> list[Effect]:
        """We need no host any more."""
        effects: list[Effect] = []
        for peer in (self._asked, self.host):
            effects += [] if peer is None else self._links.release(peer)
        self._asked = self.host = None
        return effects

    def _ask_next(self, now_ns: int) -> list[Effect]:
        contact = self._acquaintances.next()
        if contact is None:
            return []
        return self._ask(contact, now_ns)

    def _ask(self, contact: Contact, now_ns: int) -> list[Effect]:
        peer = contact.node
        given_up = self._asked if self._asked != peer else None
        self._asked = peer

        def reached(up: bool, now_ns: int) -> list[Effect]:
            return self._hello(peer) if up and self._asked == peer else []

        effects = [] if given_up is None else self._links.release(given_up)
        return effects + self._links.open(contact, reached, now_ns)

    def _checked(self, record: AddressRecord, valid: bool, now_ns: int) -> list[Effect]:
        if not valid:
            return []
        self._acquaintances.saw(record.contact)
        if self.host is not None or self._asked is not None:
            return []
        return self._ask(record.contact, now_ns)

    def _hello(self, peer: NodeId) -> list[Effect]:
        self._missed += 1
        return [Send(ClientHello(self._record), (peer,))]

    def _drop(self, peer: NodeId) -> list[Effect]:
        self._forget(peer)
        return self._links.release(peer)

    def _forget(self, peer: NodeId) -> None:
        if peer == self.host:
            self.host = None
        if peer == self._asked:
            self._asked = None
        self._missed = 0
        self._acquaintances.lost(peer)
