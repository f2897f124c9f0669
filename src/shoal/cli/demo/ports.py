"""Ports that must be known before somebody listens there."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port that nobody has, and that no outgoing connection gets meanwhile."""
    rng = random.SystemRandom()
    while True:
        # Linux gives outgoing connections ports from 32,768 on.
        port = rng.randrange(15_000, 30_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
