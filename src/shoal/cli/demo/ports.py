"""Ports that must be known before something listens on them."""

from __future__ import annotations

import itertools
import os
import socket

# Linux gives outgoing connections ports from 32,768 on.
FIRST, COUNT = 15_000, 17_000
# Each process walks through the ports from a place of its own and gives none twice before it has
# been round: a port may be free only because its owner is about to listen again.
_walk = itertools.count((os.getpid() * 7_919) % COUNT)


def free_port() -> int:
    """A port that is free now and that no outgoing connection takes meanwhile."""
    for step in itertools.islice(_walk, COUNT):
        port = FIRST + step % COUNT
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port is free from {FIRST} to {FIRST + COUNT - 1}: end what holds them")
