"""A message with its place in its chain, worked out once: every table of a stream asks for it.

Nothing here says that the signature is good: flooding checks that before it gives a message to
anybody.
"""

from __future__ import annotations

import msgspec

from shoal.base.ids import MessageId, NodeId
from shoal.identity.stream_message import decode_body
from shoal.protocols.streams.duplicates import BEGINNING, Number, before_of
from shoal.protocols.streams.messages import Head, VerifiedMessage

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
