"""Floodsub, libp2p's first router for publish/subscribe, as a machine: the baseline.

Peers tell each other what they subscribe to. A message goes to every peer that is known to want
its topic, but the one that it came from; what was seen within two minutes is dropped. There is no
tree, no order, no history and no repair: a link that breaks is not made again, and a message that
was on it is lost. Signatures are left out, which makes Floodsub faster than it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated, MalformedMessage
from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.kernel.effects import Effect, Notify, OpenLink, Send
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    LinkFailed,
    LinkOpened,
    MessageReceived,
)

SEEN_NS = 120 * S_NS  # as long as libp2p remembers messages
PURPOSE = "floodsub"
NUMBER = 0  # of the protocol on links that only simulations have


class Interests(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """What the sender subscribes to: all of it."""

    topics: tuple[str, ...]


class Flooded(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A message of a topic; author and number make it one of its kind."""

    author: bytes
    number: int
    topic: str
    payload: bytes


# Commands, and what the application is told


class Connect(msgspec.Struct, frozen=True, gc=False):
    """These are the neighbours."""

    contacts: tuple[Contact, ...]


class SubscribeTo(msgspec.Struct, frozen=True, gc=False):
    """Be told what comes under these topics."""

    topics: tuple[str, ...]


class PublishIn(msgspec.Struct, frozen=True, gc=False):
    """Send to whoever wants the topic."""

    topic: str
    payload: bytes


class FloodArrived(msgspec.Struct, frozen=True, gc=False):
    """Told: a message of a topic that this node subscribes to."""

    message: Flooded


class FloodSent(msgspec.Struct, frozen=True, gc=False):
    """Told: the message is on its way; that is all that is ever known of it."""

    message: Flooded
    token: Hashable


class FloodsubNode:
    """One node."""

    accepts = (Interests, Flooded)

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.topics: tuple[str, ...] = ()
        self.peers: dict[NodeId, frozenset[str]] = {}
        """Neighbours with a link, and what they want."""
        self._number = 0
        self._seen: dict[tuple[bytes, int], None] = {}
        self._ages: deque[tuple[int, tuple[bytes, int]]] = deque()

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        """Take one fact."""
        match event:
            case MessageReceived(peer, Flooded() as message):
                return self._flood(message, peer, now_ns)
            case MessageReceived(peer, Interests(topics)):
                self.peers[peer] = frozenset(topics)
                return []
            case LinkOpened(peer):
                self.peers.setdefault(peer, frozenset())
                return [Send(Interests(self.topics), (peer,))]
            case LinkClosed(peer) | LinkFailed(peer):
                self.peers.pop(peer, None)
                return []
            case CommandIssued(command, token):
                return self._command(command, token, now_ns)
            case _:
                return []

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        if len(self._seen) != len(self._ages):
            raise InvariantViolated(f"{len(self._seen)} messages seen, {len(self._ages)} ages")

    def state_bytes(self) -> int:
        """About what it holds: names of messages that it has seen."""
        return sum(len(author) + 8 for author, _ in self._seen)

    def _command(self, command: Any, token: Hashable, now_ns: int) -> list[Effect]:
        match command:
            case Connect(contacts):
                return [OpenLink(contact, PURPOSE) for contact in contacts]
            case SubscribeTo(topics):
                self.topics = topics
                return [Send(Interests(topics), tuple(self.peers))] if self.peers else []
            case PublishIn(topic, payload):
                self._number += 1
                message = Flooded(bytes(self.node), self._number, topic, payload)
                return [
                    Notify(FloodSent(message, token)),
                    *self._flood(message, self.node, now_ns),
                ]
            case _:
                raise TypeError(f"{command!r} is no command of Floodsub")

    def _flood(self, message: Flooded, source: NodeId, now_ns: int) -> list[Effect]:
        self._forget(now_ns)
        name = (message.author, message.number)
        if name in self._seen:
            return []
        self._seen[name] = None
        self._ages.append((now_ns, name))
        effects: list[Effect] = []
        if message.topic in self.topics:
            effects.append(Notify(FloodArrived(message)))
        author = message.author
        wanting = [
            peer
            for peer, topics in self.peers.items()
            if message.topic in topics and peer not in (source, author)
        ]
        if wanting:
            effects.append(Send(message, tuple(wanting)))
        return effects

    def _forget(self, now_ns: int) -> None:
        while self._ages and self._ages[0][0] <= now_ns - SEEN_NS:
            _, name = self._ages.popleft()
            del self._seen[name]


class FloodsubCodec:
    """The codec port, for sizes on the wire."""

    number = NUMBER
    messages: tuple[type, ...] = (Interests, Flooded)

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Interests | Flooded] = msgspec.msgpack.Decoder(
            Interests | Flooded
        )

    def encode(self, message: Any) -> bytes:
        """The bytes of one message."""
        return self._encoder.encode(message)

    def decode(self, frame: bytes) -> Interests | Flooded:
        """The message, or a RemoteError."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
