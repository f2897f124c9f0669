"""What logs are made of: messages of streams, and events of durable topics, by the same rules.

A topic has the place of a stream in a store: its CID stands for the stream's id, in partition 0.
No stream can be taken for a topic, for ids of streams have a slash. An event is known by its core,
which is its author's: two publishers who were both asked to publish it give it two parents and two
CIDs, and it is still one event, and one row.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from shoal.base.errors import BadSignature, MalformedMessage
from shoal.base.ids import MessageId, StreamId
from shoal.identity.message_body import BINARY, decode_body
from shoal.identity.topics.cid import CID_TEXT, show_cid
from shoal.identity.topics.descriptor_codec import decode_descriptor
from shoal.identity.topics.descriptors import EventDescriptor
from shoal.identity.topics.event_signatures import Claim, claims, core_cid, signer_of
from shoal.protocols.streams.signed_message import VerifiedMessage

CORE_BYTES = 24  # of the hash of a core: 32 characters, as long as the name of a chain may be

Permits: TypeAlias = Callable[[EventDescriptor], bool]
"""Whether an event may be part of its topic: that is in the topic's own descriptor."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What a row holds, once its claims are verified."""

    message: VerifiedMessage
    claims: tuple[Claim, ...]
    event: EventDescriptor | None = None
    """If it is one."""


def is_topic(id: StreamId) -> bool:
    """Whether this is the CID of a topic, in the place of a stream's id."""
    return id.startswith(CID_TEXT) and "/" not in id


def read_kept(stream: StreamId, signed: bytes) -> Kept:
    """The bytes of a row of a stream or topic; MalformedMessage if they can be none."""
    if is_topic(stream):
        return _read_event(stream, signed)
    body = decode_body(signed)
    message = VerifiedMessage(body.id, body.previous, body.content_type, body.content, signed)
    return Kept(message, (Claim(body.id.publisher, signed),))


def event_message(event: EventDescriptor, block: bytes) -> VerifiedMessage:
    """An event as a row: found by its author and time, known by its core."""
    core = core_cid(event)[-CORE_BYTES:]
    id = MessageId(
        StreamId(show_cid(event.topic)),
        0,
        event.metadata.created_ms,
        0,
        signer_of(event.author),
        urlsafe_b64encode(core).decode(),
    )
    return VerifiedMessage(id, None, BINARY, event.payload, block)


def _read_event(topic: StreamId, block: bytes) -> Kept:
    event = decode_descriptor(block)
    if not isinstance(event, EventDescriptor) or show_cid(event.topic) != topic:
        raise MalformedMessage(f"no event of topic {topic}")
    if event.publisher is None:
        raise MalformedMessage("an event that nobody has published")
    try:
        return Kept(event_message(event, block), claims(event), event)
    except BadSignature as error:
        raise MalformedMessage(str(error)) from None
