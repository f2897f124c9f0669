"""The signalling port of a node, for calls to peers that nobody can dial: its trackers pass signals
on."""

from __future__ import annotations

from typing import Any

from shoal.base.ids import NodeId
from shoal.protocols.streams.signalling import SendSignal, SignalArrived, Signaller
from shoal.runtime.host import RuntimeHost
from shoal.transport.signalling import Receive


class TrackerSignalling:
    """Signals through the tracker that has both."""

    def __init__(self, host: RuntimeHost, machine: Signaller) -> None:
        self.receive: Receive = lambda peer, signal: None
        self._host = host
        self._machine = machine
        host.listeners.append(self._notified)

    def send(self, peer: NodeId, signal: bytes) -> bool:
        """Pass a signal on, if any tracker of ours has this peer too."""
        if self._machine.route(peer) is None:
            return False
        self._host.command(self._machine, SendSignal(peer, signal))
        return True

    def _notified(self, event: Any) -> None:
        if type(event) is SignalArrived:
            self.receive(event.peer, event.payload)
