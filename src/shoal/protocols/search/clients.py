"""Clients search without a place on the circle: whoever cannot be dialled, or has little to give.

`Clients` is the host's side: it answers ClientHello, casts what clients send, and sends them to
others when it leaves. `Hosting` is the client's side: one host at a time, another when it goes.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.base.ids import NodeId
from shoal.kernel.effects import Effect, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.links import Links
from shoal.protocols.search.messages import (
    ClientDeny,
    ClientHello,
    ClientOk,
    ClientRedirect,
    Totals,
)
from shoal.protocols.search.topology.acquaintances import Acquaintances
from shoal.protocols.search.topology.circle import Circle

REDIRECTED_MAX = 4  # nodes that a client is sent to: one of them will answer


class Clients:
    """Who searches through us."""

    def __init__(self, circle: Circle, config: SearchConfig) -> None:
        self._circle = circle
        self._config = config
        self._records: dict[NodeId, AddressRecord] = {}

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._records

    def __len__(self) -> int:
        return len(self._records)

    def hello(self, peer: NodeId, message: ClientHello) -> list[Effect]:
        """Somebody asks to be a client, or once more how large the network is."""
        if message.record.node != peer:
            return [Rejected(peer, "not-its-address")]
        reason = self._why_not(peer)
        if reason:
            return [Send(ClientDeny(reason), (peer,))]
        self._records[peer] = message.record
        return [Send(ClientOk(self._circle.ring.bootstrap()), (peer,))]

    def lost(self, peer: NodeId) -> None:
        """A client is gone."""
        self._records.pop(peer, None)

    def leave(self) -> list[Effect]:
        """Send every client to our neighbours."""
        others = {edge.peer: edge.record for edge in self._circle.edges}
        others.pop(self._circle.ring.node, None)
        records = tuple(others.values())[:REDIRECTED_MAX]
        clients, self._records = tuple(self._records), {}
        return [Send(ClientRedirect(records), clients)] if clients else []

    def _why_not(self, peer: NodeId) -> str:
        if self._circle.going:
            return "leaving"
        if not self._circle.joined:
            return "not joined yet"
        if peer not in self._records and len(self._records) >= self._config.clients_max:
            return "full"
        return ""


class Hosting:
    """Our host, if we are a client."""

    def __init__(
        self,
        record: AddressRecord,
        acquaintances: Acquaintances,
        links: Links,
        known: Callable[[Totals], None],
    ) -> None:
        """`known` is told how large the network is."""
        self._record = record
        self._acquaintances = acquaintances
        self._links = links
        self._known = known
        self._asked: NodeId | None = None
        self.host: NodeId | None = None

    def beat(self, now_ns: int) -> list[Effect]:
        """Look for a host, or ask it how large the network is by now."""
        if self.host is not None:
            return self._hello(self.host)
        contact = self._acquaintances.next()
        if contact is None:
            return []
        effects = self._give_up()
        self._asked = peer = contact.node

        def reached(up: bool, now_ns: int) -> list[Effect]:
            return self._hello(peer) if up and self._asked == peer else []

        return effects + self._links.open(contact, reached, now_ns)

    def accepted(self, peer: NodeId, message: ClientOk) -> list[Effect]:
        """A node has us as its client."""
        if peer not in (self._asked, self.host):
            return [Rejected(peer, "not-asked")]
        self.host, self._asked = peer, None
        self._known(message.bootstrap)
        return []

    def denied(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A node does not, or no longer: ask the next."""
        if peer not in (self._asked, self.host):
            return [Rejected(peer, "not-asked")]
        self._acquaintances.lost(peer)
        self.host = None
        return self._give_up() + self.beat(now_ns)

    def redirected(self, peer: NodeId, message: ClientRedirect, now_ns: int) -> list[Effect]:
        """Our host leaves, and names others."""
        if peer != self.host:
            return [Rejected(peer, "not-asked")]
        for record in message.others:
            self._acquaintances.saw(record.contact)
        self._asked = peer
        return self.denied(peer, now_ns)

    def lost(self, peer: NodeId) -> None:
        """The link to a node is gone; the next beat asks another."""
        if peer == self.host:
            self.host = None
        if peer == self._asked:
            self._asked = None
        self._acquaintances.lost(peer)

    def _hello(self, peer: NodeId) -> list[Effect]:
        return [Send(ClientHello(self._record), (peer,))]

    def _give_up(self) -> list[Effect]:
        asked, self._asked = self._asked, None
        return [] if asked is None else self._links.release(asked)
