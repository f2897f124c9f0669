"""Contacts that were lost, and are tried again from time to time.

A network that was cut in two forgets the other half: whoever does not answer leaves the table. When
it is whole again nobody would know. So every node goes on to ping some that it lost, and the
bootstrap contacts, one at each tick: with many nodes, one of them soon finds the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact
from shoal.protocols.dht.table import RoutingTable

LOST_MAX = 64  # the oldest are forgotten: they are dead, as a rule


class Lost:
    """Whom to try again."""

    def __init__(self, bootstrap: Sequence[Contact], table: RoutingTable, rng: Random) -> None:
        self.bootstrap = bootstrap
        self._table = table
        self._rng = rng
        self._contacts: dict[NodeId, Contact] = {}

    def add(self, contact: Contact) -> None:
        """A contact left the table."""
        self._contacts.pop(contact.node, None)
        self._contacts[contact.node] = contact
        if len(self._contacts) > LOST_MAX:
            del self._contacts[next(iter(self._contacts))]

    def found(self, node: NodeId) -> None:
        """A contact answered."""
        self._contacts.pop(node, None)

    def draw(self) -> Contact | None:
        """One that is not in the table, bootstrap contacts included."""
        away = [one for one in self.bootstrap if one.node not in self._table]
        away += [one for node, one in self._contacts.items() if node not in self._table]
        return self._rng.choice(away) if away else None
