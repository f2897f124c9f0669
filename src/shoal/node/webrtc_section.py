"""The section of a network file that says how this node is reached through NATs."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.identity import split_secret_source

WEBRTC_ADDRESS = "webrtc:"  # what a node listens on that is called, not dialled

SERVERS_MAX = 8  # of each kind; every call asks all of them

_SERVER = re.compile(
    r"(stun|turn)s?:(\[[0-9a-fA-F:]+\]|[\w.-]+)(:\d{1,5})?(\?transport=(udp|tcp))?"
)

Servers = Annotated[tuple[str, ...], Meta(max_length=SERVERS_MAX)]


class WebRTCSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[webrtc]: calls to and from nodes behind NATs. No server is asked unless it is named here."""

    stun: Servers = ()
    """Servers that tell a node its address as others see it: stun:HOST:PORT."""
    turn: Servers = ()
    """Servers that carry what finds no other way: turn:HOST:PORT."""
    user: str | None = None
    password: str | None = None
    """Where the password of the TURN servers is, env:NAME or file:PATH."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for field, urls in (("stun", self.stun), ("turn", self.turn)):
            for url in urls:
                if _SERVER.fullmatch(url) is None or not url.startswith(field):
                    raise ConfigError(f"{field}: {url!r} is no server: write {field}:HOST:PORT")
        if self.turn and (not self.user or self.password is None):
            raise ConfigError("turn: a TURN server wants a user and a password: give both")
        if self.password is not None:
            split_secret_source("password", self.password)
