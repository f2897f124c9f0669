"""A message with its place in its chain, worked out once: every table of a stream asks for it.

Nothing here says that the signature is good: flooding checks that before it gives a message to
anybody.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.base.errors import UsageError
from shoal.base.ids import KEYS_PARTITION, PARTITIONS_MAX, MessageId, NodeId, StreamId
from shoal.base.units import MS_NS
from shoal.identity.message_body import (
    CONTENT_BYTES_MAX,
    KEYS,
    Body,
    Position,
    decode_body,
    encode_body,
)
from shoal.protocols.streams.config import CHAIN_AHEAD_NS
from shoal.protocols.streams.messages import Head

Number = tuple[int, int]  # (timestamp_ms, sequence)

BEGINNING: Number = (-1, 0)  # before every message

Chain = tuple[NodeId, int, str]  # publisher, partition, chain


class PlacedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message, and where it stands."""

    id: MessageId
    signed: bytes
    chain: Chain
    number: Number
    before: Number
    """Where the message before it stands; BEGINNING if it is the first."""
    message: VerifiedMessage
    head: Head
    """Its chain and number, as neighbours tell each other."""


def place(message: VerifiedMessage) -> PlacedMessage:
    """Work out where a message stands."""
    id, previous = message.id, message.previous
    chain = (id.publisher, id.partition, id.chain)
    number = (id.timestamp_ms, id.sequence)
    before = BEGINNING
    if previous is not None:
        before = before_of((previous.timestamp_ms, previous.sequence), number)
    return PlacedMessage(id, message.signed, chain, number, before, message, (chain, number))


def read_placed(signed: bytes) -> PlacedMessage:
    """What signed bytes say, not yet believed; MalformedMessage if they say nothing."""
    body = decode_body(signed)
    return place(VerifiedMessage(body.id, body.previous, body.content_type, body.content, signed))


# A node's own messages: numbered, chained, signed.


Sign = Callable[[bytes], bytes]
Seal = Callable[[MessageId, int, bytes], tuple[int, bytes]]
"""Content type and content as they travel in a stream that is encrypted."""


def sign_message(
    sign: Sign, id: MessageId, previous: Position | None, content_type: int, content: bytes
) -> VerifiedMessage:
    """The message with this id. The same arguments give the same bytes, whenever it is done, as
    long as the signatures are deterministic: an outbox relies on it."""
    is_keys = id.partition == KEYS_PARTITION and content_type == KEYS
    if not is_keys and not 0 <= id.partition < PARTITIONS_MAX:
        raise UsageError(f"partition {id.partition}: choose one of 0..{PARTITIONS_MAX - 1}")
    if not 0 <= content_type <= 255:
        raise UsageError(f"content type {content_type}: it is one byte, 0..255")
    if len(content) > CONTENT_BYTES_MAX:
        raise UsageError(
            f"{len(content)} bytes of content: the limit is {CONTENT_BYTES_MAX}, split it"
        )
    body = encode_body(Body(id, previous, content_type, content))
    return VerifiedMessage(id, previous, content_type, content, sign(body) + body)


class Publisher:
    """One chain per stream and partition. The chain's id is new with every incarnation, so that
    a node that lost its memory cannot contradict what it published before; and when the one before
    has come further than the clock, which was wrong then, since everybody would refuse what
    follows there until the clock has come as far."""

    def __init__(self, node: NodeId, chain: str, sign: Sign) -> None:
        self._node = node
        self._chain = chain
        self._sign = sign
        self._last: dict[tuple[StreamId, int], Position] = {}
        self._chains: dict[tuple[StreamId, int], tuple[int, str]] = {}  # after the first

    def make(
        self,
        stream: StreamId,
        partition: int,
        content_type: int,
        content: bytes,
        wall_ns: int,
        seal: Seal | None = None,
        latest_ns: int = 0,
    ) -> VerifiedMessage:
        """The next message of its chain; its timestamp never falls behind the one before. What
        lies ahead of the latest time that it may be ends the chain."""
        key = (stream, partition)
        last, (number, chain) = self._last.get(key), self._chains.get(key, (1, self._chain))
        here = Position(wall_ns // MS_NS, 0)
        if last is not None and last.timestamp_ms >= here.timestamp_ms:
            ahead_ns = last.timestamp_ms * MS_NS - max(wall_ns, latest_ns)
            if ahead_ns > CHAIN_AHEAD_NS:
                number, last = number + 1, None
                chain = f"{self._chain}.{number}"
                self._chains[key] = number, chain
            else:
                here = Position(last.timestamp_ms, last.sequence + 1)
        id = MessageId(stream, partition, here.timestamp_ms, here.sequence, self._node, chain)
        if seal is not None:
            content_type, content = seal(id, content_type, content)
        message = sign_message(self._sign, id, last, content_type, content)
        self._last[key] = here
        return message


def before_of(previous: Number, number: Number) -> Number:
    """Where the message before one stands. A publisher that names one at its own place or behind
    it contradicts itself: then the message stands for itself alone, and waits for none."""
    return previous if previous < number else (number[0], number[1] - 1)


class VerifiedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that its publisher signed."""

    id: MessageId
    previous: Position | None
    content_type: int
    content: bytes
    signed: bytes
