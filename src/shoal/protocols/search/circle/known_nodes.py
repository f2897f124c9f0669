"""Nodes through which the network can be entered: those that we were given, and those seen lately.

Whoever has no neighbour asks one after the other. What is seen lately comes first: a network file
may be old. Whoever stops to answer is not forgotten at once: it may be on the other side of a cut
cable, and nobody else may know how to reach that side again. Those that the network file lists
together with us are never forgotten: a node that others enter through goes on looking for each of
them until both are on one circle (reunions.py).
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from shoal.base.ids import Contact, NodeId

TRIES_MAX = 500  # of whoever does not answer: 17 hours of a try every two minutes


class Acquaintances:
    """Contacts, asked in turn."""

    def __init__(
        self,
        node: NodeId,
        bootstrap: Sequence[Contact],
        seen_max: int,
        founders: Sequence[NodeId] = (),
    ) -> None:
        """Founders are those whom the network file lists together with this node: the others of
        the bootstrap contacts may come from caches."""
        self._node = node
        self.bootstrap = tuple(contact for contact in bootstrap if contact.node != node)
        self._seen: dict[NodeId, Contact] = {}
        self._missed: dict[NodeId, Contact] = {}
        """Who did not answer, longest ago first."""
        self._tries: dict[NodeId, int] = {}
        self._founders = tuple(founders)
        self._given = {
            contact.node: contact
            for contact in self.bootstrap
            if not founders or contact.node in founders
        }
        self._linked: dict[NodeId, None] = {}
        """Of those that we were given: who has been on our circle since it was last lost."""
        self._seen_max = seen_max
        self._turn = 0

    def __len__(self) -> int:
        return len(self._all())

    def saw(self, contact: Contact) -> None:
        """A node lives; only those that can be dialled are of use."""
        if contact.node == self._node or not contact.addresses:
            return
        self._found(contact.node)
        self._seen.pop(contact.node, None)
        self._seen[contact.node] = contact
        if len(self._seen) > self._seen_max:
            del self._seen[next(iter(self._seen))]

    def linked(self, node: NodeId) -> None:
        """It is on our circle: a neighbour, or one through whom we got a place."""
        if node in self._given:
            self._linked[node] = None

    def apart(self, but: Container[NodeId]) -> list[Contact]:
        """Those that we were given and that have not been on our circle, but for some."""
        return [
            contact
            for node, contact in self._given.items()
            if node not in self._linked and node not in but
        ]

    def is_missed(self, node: NodeId) -> bool:
        """Whether it did not answer when it was last asked."""
        return node in self._missed

    def lost(self, node: NodeId) -> None:
        """It does not answer."""
        self._linked.pop(node, None)
        known = self._missed.get(node) or self._known(node)
        if known is None:
            return
        self._seen.pop(node, None)
        self._missed[node] = known
        self._tries[node] = tries = self._tries.get(node, 0) + 1
        if tries >= TRIES_MAX and node not in self._founders:
            self._found(node)
            self._given.pop(node, None)
        elif len(self._missed) > self._seen_max:
            self._found(next(iter(self._missed)))

    def next(self) -> Contact | None:
        """Whom to ask now."""
        contacts = self._all()
        if not contacts:
            return None
        self._turn += 1
        return contacts[self._turn % len(contacts)]

    def recent(self) -> tuple[Contact, ...]:
        """Seen last comes first, then those we were given: for a host cache."""
        return tuple(self._all())

    def others(self, but: Container[NodeId]) -> list[Contact]:
        """Those who answered when they were last asked, but for some."""
        return [one for one in self._all() if one.node not in but and one.node not in self._missed]

    def missed(self, but: Container[NodeId]) -> list[Contact]:
        """Those who did not, but for some."""
        return [contact for node, contact in self._missed.items() if node not in but]

    def _found(self, node: NodeId) -> None:
        self._missed.pop(node, None)
        self._tries.pop(node, None)

    def _known(self, node: NodeId) -> Contact | None:
        return next((contact for contact in self._all() if contact.node == node), None)

    def _all(self) -> list[Contact]:
        seen = [self._seen[node] for node in reversed(self._seen)]
        return seen + [contact for contact in self.bootstrap if contact.node not in self._seen]
