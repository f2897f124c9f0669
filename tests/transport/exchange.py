"""Signals within one process: the fake of the signalling port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.base.ids import NodeId
from shoal.transport.webrtc_signals import Receive, SignalMessage, decode_signal, encode_signal

Alter = Callable[[NodeId, NodeId, SignalMessage], SignalMessage | None]


class Exchange:
    """Passes signals on between those who are there."""

    def __init__(self) -> None:
        self.places: dict[NodeId, Place] = {}
        self.passed: list[tuple[NodeId, NodeId, SignalMessage]] = []
        self.alter: Alter = lambda sender, receiver, message: message
        """Somebody in the middle; None: it is lost."""

    def deliver(self, sender: NodeId, receiver: NodeId, signal: bytes) -> bool:
        place = self.places.get(receiver)
        if place is None:
            return False
        message = self.alter(sender, receiver, decode_signal(signal))
        if message is not None:
            self.passed.append((sender, receiver, message))
            asyncio.get_running_loop().call_soon(place.receive, sender, encode_signal(message))
        return True


class Place:
    """The signalling port of one node."""

    def __init__(self, exchange: Exchange, node: NodeId) -> None:
        self.receive: Receive = lambda peer, signal: None
        self._exchange = exchange
        self._node = node
        exchange.places[node] = self

    def send(self, peer: NodeId, signal: bytes) -> bool:
        return self._exchange.deliver(self._node, peer, signal)
