"""Nodes through which the network can be entered: those that we were given, and those seen lately.

Whoever has no neighbour asks one after the other. What is seen lately comes first: a network file
may be old.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact


class Acquaintances:
    """Contacts, asked in turn."""

    def __init__(self, node: NodeId, bootstrap: Sequence[Contact], seen_max: int) -> None:
        self._node = node
        self.bootstrap = tuple(contact for contact in bootstrap if contact.node != node)
        self._seen: dict[NodeId, Contact] = {}
        self._seen_max = seen_max
        self._turn = 0

    def __len__(self) -> int:
        return len(self._all())

    def saw(self, contact: Contact) -> None:
        """A node lives; only those that can be dialled are of use."""
        if contact.node == self._node or not contact.addresses:
            return
        self._seen.pop(contact.node, None)
        self._seen[contact.node] = contact
        if len(self._seen) > self._seen_max:
            del self._seen[next(iter(self._seen))]

    def lost(self, node: NodeId) -> None:
        """It does not answer."""
        self._seen.pop(node, None)

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

    def _all(self) -> list[Contact]:
        seen = [self._seen[node] for node in reversed(self._seen)]
        return seen + [contact for contact in self.bootstrap if contact.node not in self._seen]
