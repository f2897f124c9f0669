"""User connections: two applications talk over the link of their nodes.

The opener numbers a connection. Both ends may open some at the same time: the smaller node id uses
even numbers, the larger one odd ones, so that a number means one connection only.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId
from shoal.kernel.effects import Effect, Notify, Send
from shoal.kernel.records import Rejected
from shoal.protocols.search.commands import (
    UserArrived,
    UserClosed,
    UserOpened,
    UserReceived,
    UserRefused,
)
from shoal.protocols.search.config import USER_DATA_BYTES_MAX, SearchConfig
from shoal.protocols.search.links import Links
from shoal.protocols.search.messages import UserAccept, UserConnect, UserData, UserEnd, UserRefuse

USER_MESSAGES = (UserConnect, UserAccept, UserRefuse, UserData, UserEnd)

UserMessage: TypeAlias = UserConnect | UserAccept | UserRefuse | UserData | UserEnd
_Key = tuple[NodeId, int]


class Users:
    """Connections of the applications on this node."""

    def __init__(self, node: NodeId, links: Links, config: SearchConfig) -> None:
        self._node = node
        self._links = links
        self._config = config
        self._types: dict[str, None] = {}
        self._asked: dict[_Key, Hashable] = {}
        self._open: dict[_Key, None] = {}
        self._made = 0

    # What the application wants

    def listen(self, type: str, accept: bool) -> None:
        """Connections of this type are accepted from now on, or no more."""
        if accept:
            self._types[type] = None
        else:
            self._types.pop(type, None)

    def connect(self, contact: Contact, type: str, token: Hashable, now_ns: int) -> list[Effect]:
        """Ask a node for a connection."""
        if contact.node == self._node:
            return [Notify(UserRefused("this is our own node", token))]
        if len(self._asked) + len(self._open) >= self._config.user_connections_max:
            return [Notify(UserRefused("too many connections", token))]
        self._made += 1
        number = 2 * self._made + (self._node > contact.node)
        key = (contact.node, number)
        self._asked[key] = token

        def reached(up: bool, now_ns: int) -> list[Effect]:
            if key not in self._asked:
                return []
            if up:
                return [Send(UserConnect(number, type), (contact.node,))]
            del self._asked[key]
            return [Notify(UserRefused("cannot be reached", token))]

        return self._links.open(contact, reached, now_ns)

    def send(self, peer: NodeId, number: int, content: bytes) -> list[Effect]:
        """Content for the other end; none goes to a connection that has ended meanwhile."""
        if (peer, number) not in self._open:
            return []
        if len(content) > USER_DATA_BYTES_MAX:
            raise UsageError(f"{len(content)} bytes: send {USER_DATA_BYTES_MAX} at most, in parts")
        return [Send(UserData(number, content), (peer,))]

    def close(self, peer: NodeId, number: int) -> list[Effect]:
        """End a connection."""
        if self._open.pop((peer, number), 0) == 0:
            return []
        return [Send(UserEnd(number), (peer,)), *self._release(peer)]

    # What comes in

    def message(self, peer: NodeId, message: UserMessage, now_ns: int) -> list[Effect]:
        """One of the USER_MESSAGES."""
        match message:
            case UserConnect():
                return self._connected(peer, message, now_ns)
            case UserAccept() | UserRefuse():
                return self._answered(peer, message)
            case UserData():
                return self._received(peer, message)
        return self._ended(peer, message)

    def _connected(self, peer: NodeId, message: UserConnect, now_ns: int) -> list[Effect]:
        """Somebody asks for a connection."""
        key = (peer, message.connection)
        if message.connection % 2 != (peer > self._node) or key in self._open:
            return [Rejected(peer, "not-its-number")]
        if message.type not in self._types:
            return [Send(UserRefuse(message.connection, "no such type here"), (peer,))]
        of_peer = sum(1 for one, _ in self._open if one == peer)
        if (
            of_peer >= self._config.user_connections_peer_max
            or len(self._asked) + len(self._open) >= self._config.user_connections_max
        ):
            return [Send(UserRefuse(message.connection, "too many connections"), (peer,))]
        self._open[key] = None
        # Without an address: the link is there, and if not, there is nobody to talk to.
        return [
            *self._links.open(Contact(peer), lambda up, now_ns: [], now_ns),
            Send(UserAccept(message.connection), (peer,)),
            Notify(UserArrived(peer, message.connection, message.type)),
        ]

    def _answered(self, peer: NodeId, message: UserAccept | UserRefuse) -> list[Effect]:
        """Our question was answered."""
        key = (peer, message.connection)
        if key not in self._asked:
            return [Rejected(peer, "not-asked")]
        token = self._asked.pop(key)
        if isinstance(message, UserRefuse):
            return [Notify(UserRefused(message.answer, token)), *self._release(peer)]
        self._open[key] = None
        return [Notify(UserOpened(peer, message.connection, token))]

    def _received(self, peer: NodeId, message: UserData) -> list[Effect]:
        """Content from the other end."""
        if (peer, message.connection) not in self._open:
            return [Send(UserEnd(message.connection), (peer,))]
        return [Notify(UserReceived(peer, message.connection, message.content))]

    def _ended(self, peer: NodeId, message: UserEnd) -> list[Effect]:
        """The other end has closed."""
        if self._open.pop((peer, message.connection), 0) == 0:
            return []
        return [Notify(UserClosed(peer, message.connection)), *self._release(peer)]

    def opened(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """A link is up; perhaps nobody needs it any more."""
        return self._links.opened(peer, now_ns) + self._release(peer)

    def lost(self, peer: NodeId, now_ns: int) -> list[Effect]:
        """The link is gone, and all that went over it."""
        effects = self._links.lost(peer, now_ns)
        for key in [key for key in self._asked if key[0] == peer]:
            effects.append(Notify(UserRefused("the link was lost", self._asked.pop(key))))
        for key in [key for key in self._open if key[0] == peer]:
            del self._open[key]
            effects.append(Notify(UserClosed(*key)))
        return effects

    def _release(self, peer: NodeId) -> list[Effect]:
        if any(key[0] == peer for key in (*self._open, *self._asked)):
            return []
        return self._links.release(peer)
