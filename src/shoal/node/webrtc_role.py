"""What makes a node reachable through NATs: WebRTC, with signals through its trackers.

The engine comes with the extra `webrtc`, and is loaded by nodes that use it only.
"""

from __future__ import annotations

import os
from typing import Any

from shoal.base.errors import ConfigError
from shoal.base.ids import NodeId
from shoal.identity import read_secret
from shoal.node.addresses import is_local
from shoal.node.network_file import NetworkFile
from shoal.node.webrtc_section import WebRTCSection
from shoal.protocols.streams.signalling import SendSignal, SignalArrived, Signaller
from shoal.runtime import RuntimeHost
from shoal.transport.port import Credentials, Transport
from shoal.transport.signalling import Receive


class TrackerSignalling:
    """The signalling port of a node: through the tracker that has both."""

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


def webrtc_transports(
    network: NetworkFile,
    credentials: Credentials,
    host: RuntimeHost,
    machine: Signaller | None,
) -> list[Transport]:
    """The transport that [webrtc] asks for; none without it."""
    section = network.webrtc
    if section is None:
        return []
    if machine is None:
        raise ConfigError("webrtc: calls go through a tracker: add [[trackers]]")
    try:
        from shoal.transport.webrtc import IceServer, WebRTCTransport
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"webrtc: there is no module {error.name}: pip install 'shoal[webrtc]'"
        ) from error
    servers = [IceServer(url) for url in section.stun]
    if section.turn:
        password = _password(network, section)
        servers += [IceServer(url, section.user, password) for url in section.turn]
    transport = WebRTCTransport(
        credentials,
        host,
        signalling=TrackerSignalling(host, machine),
        servers=servers,
        # Who has its trackers on this machine has its neighbours there too.
        loopback=is_local(machine.tracker_addresses()),
    )
    return [transport]


def _password(network: NetworkFile, section: WebRTCSection) -> str:
    assert section.password is not None  # the section was checked
    return read_secret("password", section.password, network.path("."), os.environ)
