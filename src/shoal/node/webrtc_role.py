"""What makes a node reachable through NATs: WebRTC, with signals through its trackers.

The engine comes with the extra `webrtc`, and is loaded by nodes that use it only.
"""

from __future__ import annotations

import os

from shoal.base.errors import ConfigError
from shoal.identity import read_secret
from shoal.node.addresses import is_local
from shoal.node.network_file import NetworkFile
from shoal.node.webrtc_section import WebRTCSection
from shoal.protocols.streams.signalling import Signaller
from shoal.runtime import RuntimeHost
from shoal.runtime.tracker_signalling import TrackerSignalling
from shoal.transport.port import Credentials, Transport


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
