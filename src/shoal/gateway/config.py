"""How a gateway is set up, and its bounds."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from shoal.base.errors import ConfigError, UsageError
from shoal.base.page_guard import is_loopback_name
from shoal.base.units import KIB, MIB

PORT_MAX = 65_535

QUESTION_BYTES_MAX = 64 * KIB
"""The body of a request that has no bound of its own."""
LINES_BYTES_MAX = 8 * MIB
"""Messages in one request: sixteen of the largest."""
LINES_MAX = 10_000
BODIES_BYTES_MAX = 64 * MIB
"""Of all requests at once: eight of the largest bodies. Each is held until its request is done."""
BODIES_SHARE_BYTES_MAX = 16 * MIB
"""Of one key, or of one address without a key: two of the largest bodies."""
BODY_BUFFER_BYTES = 128 * KIB
"""What a connection holds of a body that is not read yet, at most; a body counts as so much from
its first byte on, unless it is shorter."""
BODY_S = 120.0
"""For all of a body: eight megabytes at half a megabit a second."""
SUBSCRIBER_QUEUE_MAX = 1_000
SUBSCRIBER_QUEUE_BYTES_MAX = 8 * MIB
"""Messages that wait for one slow subscriber; beyond either bound the oldest go, and it is told. In
bytes of JSON: a dozen of the largest. Subscribers of one stream share what waits."""
SUBSCRIBERS_MAX = 20_000
CONNECTIONS_MAX = SUBSCRIBERS_MAX + 2_000
"""Those of subscribers, and some for all other requests; fewer if the process may open fewer."""
DESCRIPTORS_LEFT = 256
"""Of those that a process may have, so many are for the node's own links and files."""
RESERVED_MAX = 64
"""Connections beyond the bound that may still ask for /health, so that no probe ends a node that
works. Probes are few, and ask at once: the one that has said nothing for longest makes room."""
RESERVED_S = 2.0
RESERVED_BYTES_MAX = 4 * KIB
"""What such a connection may take to ask, and the head of its request."""
HEARTBEAT_S = 15.0
"""Of silence; proxies close connections after 30 to 60 s of it."""
STALLED_S = 60.0
"""A client that takes nothing for so long holds up others."""
IDLE_S = 75.0
"""A connection on which nothing is asked for so long is closed, also if half a request has come.
Proxies keep theirs for 60 s: closed before that, one might be closed under a request."""
HANDSHAKE_S = 10.0
"""For TLS: a connection is not counted before, so it must not take long."""
ADDRESSES_MAX = 10_000
"""Addresses and keys whose rates are remembered."""


class GatewayConfig(msgspec.Struct, frozen=True):
    """What an operator decides."""

    keys: Path | None = None
    """The file of API keys; without it nobody is asked for one."""
    open_to_all: bool = False
    """Serve beyond loopback without keys."""
    certificate: Path | None = None
    private_key: Path | None = None
    """PEM files; with a certificate it is HTTPS. The key may be in the certificate's file."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may ask; "*" is all of them."""
    hosts: tuple[str, ...] = ()
    """More names under which a gateway on loopback is reached, as through a proxy."""
    requests_per_s: float = 1_000.0
    burst: int = 2_000
    """Of one key, and of one address."""

    def tls(self) -> ssl.SSLContext | None:
        """How HTTPS is served, if there is a certificate."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.private_key)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"gateway.certificate: {self.certificate}: {error}: give PEM files with the"
                " certificate and its private_key"
            ) from error
        return context

    def check_listen(self, host: str) -> None:
        """Refuse to serve strangers by accident."""
        if not is_loopback_name(host) and self.keys is None and not self.open_to_all:
            raise ConfigError(
                f"gateway listen = {host!r} is beyond loopback, where anybody could use this node:"
                " name a file of keys (keys = ... under [gateway], `shoal gateway key new` makes"
                " one), or write open_to_all = true"
            )


def split_listen(listen: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise UsageError(f"gateway listen = {listen!r}: write host:port, as in 127.0.0.1:7780")
    return host, int(port)
