"""The machine contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Input


class Machine(Protocol):
    """A protocol core: no clock, socket, task or randomness of its own.

    `now_ns` never goes back, whatever is done to the system clock: it begins at the Unix time of
    the start, and measures durations from there. Timers are relative. A machine that needs the
    time of day, for timestamps and what is compared with them, has a WallClock named `wall`
    (kernel/wall.py), which its Host keeps right. Positions in a chain only grow, whatever either
    says. Whatever a peer sends, `handle` does not raise: remote faults become counts (Rejected),
    local misuse raises.
    """

    @property
    def accepts(self) -> tuple[type, ...]:
        """The message types that reach this machine; no two machines of a node share one."""
        ...

    def handle(self, event: Input, now_ns: int) -> Sequence[Effect]:
        """Take one fact, change state, say what is to be done."""
        ...

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the state is one that must not exist."""
        ...


# The codec port: how the messages of one protocol become bytes, and back.


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
