"""Rows of a topic's log as rows of a DataFrame: events, and every signature checked.

The columns are those of streams. `publisher` gave the event its place in the topic; `key` is the
event's own CID, `chain` that of the event which it follows; there is no `sequence`. Whether this
publisher may publish there is in the topic itself, and was checked by the node that has the log.
"""

from __future__ import annotations

from shoal.base.errors import MalformedMessage
from shoal.base.ids import StreamId
from shoal.identity.topics.canonical import decode_descriptor
from shoal.identity.topics.cid import cid_of, parse_cid, show_cid
from shoal.identity.topics.descriptors import EventDescriptor
from shoal.identity.topics.signing import signatures_hold, signer_of
from shoal.pipeline.sources.rows import Fields, bad_record, shown_publisher


def event_fields(topic: StreamId, partition: int, block: bytes) -> Fields:
    """An event of a topic, which has one partition."""
    try:
        event = decode_descriptor(block)
    except MalformedMessage as error:
        return bad_record(block, f"no event: {error}")
    if not isinstance(event, EventDescriptor) or event.topic != parse_cid(topic):
        return bad_record(block, "no event of this topic")
    if event.publisher is None or not signatures_hold(event):
        return bad_record(block, "its publisher did not sign it")
    try:
        value = event.payload.decode()
    except UnicodeDecodeError:
        value = None  # events hold bytes, and say nothing of what they are
    return Fields(
        timestamp_us=event.metadata.created_ms * 1000,
        sequence=None,
        publisher=shown_publisher(signer_of(event.publisher)),
        chain=None if event.parent is None else show_cid(event.parent),
        key=show_cid(cid_of(block)),
        content=event.payload,
        value=value,
        error=None,
    )
