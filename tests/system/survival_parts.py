"""What the survival test tells its processes, and what both ends know."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from shoal.identity import PrivateKey


class Part(msgspec.Struct):
    """Who a process is, and what it does."""

    name: str
    network: dict[str, Any]
    folder: str
    journal: str
    subscribe: dict[str, str] = {}
    """Stream and start."""
    publish: list[str] = []
    rate_per_s: float = 5.0


def secret_of(name: str) -> bytes:
    """The key of whoever has this name."""
    return sha256(f"shoal survival {name}".encode()).digest()


def address_of(name: str) -> str:
    """The id of whoever has this name."""
    return "0x" + PrivateKey.from_bytes(secret_of(name)).address.hex()
