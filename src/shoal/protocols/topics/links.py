"""Links of this machine: one claim for each peer, whoever of the topics needs it."""

from __future__ import annotations

from collections.abc import Hashable

from shoal.base.ids import NodeId
from shoal.kernel.contact import Contact
from shoal.kernel.effects import CloseLink, Effect, OpenLink

PURPOSE = "topics"


class Links:
    """Who needs which link."""

    def __init__(self) -> None:
        self.up: dict[NodeId, None] = {}
        self._users: dict[NodeId, dict[Hashable, None]] = {}

    def hold(self, contact: Contact, user: Hashable) -> list[Effect]:
        """Have a link for somebody; it may be up already."""
        users = self._users.get(contact.node)
        if users is not None:
            users[user] = None
            return []
        self._users[contact.node] = {user: None}
        return [OpenLink(contact, PURPOSE)]

    def release(self, peer: NodeId, user: Hashable) -> list[Effect]:
        """Somebody needs a link no more."""
        users = self._users.get(peer)
        if users is None or user not in users:
            return []
        del users[user]
        if users:
            return []
        del self._users[peer]
        self.up.pop(peer, None)
        return [CloseLink(peer, PURPOSE)]

    def opened(self, peer: NodeId) -> list[Hashable]:
        """A link is up; gives who waits for it."""
        if peer not in self._users:
            return []
        self.up[peer] = None
        return list(self._users[peer])

    def lost(self, peer: NodeId) -> list[Hashable]:
        """A link is gone; gives who had it."""
        self.up.pop(peer, None)
        return list(self._users.pop(peer, ()))
