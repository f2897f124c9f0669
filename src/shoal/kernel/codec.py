"""The codec port: how the messages of one protocol become bytes, and back."""

from __future__ import annotations

from typing import Any, Protocol

STREAMS = 1  # protocol numbers are forever: frames carry them
HISTORY = 2
DHT = 3
TOPICS = 4
SEARCH = 5
STREAM_KEYS = 6


class Codec(Protocol):
    """Encodes trusted messages, decodes untrusted bytes."""

    @property
    def number(self) -> int:
        """The protocol's number on a link, one of those above."""
        ...

    @property
    def messages(self) -> tuple[type, ...]:
        """Every message type of the protocol."""
        ...

    def encode(self, message: Any) -> bytes:
        """The bytes of one message of this protocol."""
        ...

    def decode(self, frame: bytes) -> Any:
        """The message, or MalformedMessage or OversizedMessage; never another exception."""
        ...
