"""What a storage node remembers of whoever asks it, and of what it was asked."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.identity.stream_message import Position
from shoal.kernel.effects import Load, Store
from shoal.protocols.streams.history.messages import CountKept, ReadLast, ReadLog, ReadRange


class AskingPeer(msgspec.Struct, eq=False):
    """Whoever asks."""

    asked_ns: int
    in_flight: int = 0
    congested: bool = False
    held: deque[Held] = msgspec.field(default_factory=deque)
    """Questions that wait until it has read the answers before them."""


class Held(NamedTuple):
    """A question that is not looked at yet."""

    stream: StreamId
    undecided: Undecided


class Asked(msgspec.Struct, eq=False):
    """A question without an answer; the token of a Load."""

    peer: NodeId
    entry: AskingPeer
    request: int
    question: ReadRange | ReadLast | ReadLog | CountKept | None = None
    """If its answer says something of other storage nodes, too."""
    since_ns: int = 0
    """A comparison that began then or later will do."""


class ToKeep(msgspec.Struct, eq=False):
    """The token of a Verify, then of a Store; nobody asked if it is our own subscriber's."""

    id: MessageId
    signed: bytes
    previous: Position | None
    """The message before it in its chain."""
    asked: Asked | None = None


class Undecided(msgspec.Struct, eq=False):
    """What is done once it is known that one of these kinds of permission is there."""

    asked: Asked
    kinds: int
    work: Load | Store
    keeping: ToKeep | None = None
    """Of a Store."""
