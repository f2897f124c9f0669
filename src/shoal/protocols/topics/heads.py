"""Comparing heads without naming them.

Every event has one parent, so a topic with several publishers forks, and the tips of forks remain
heads for ever: there may be thousands. Neighbours therefore compare what the heads of a span of
time come to, and name only those of spans that differ. Spans are minutes, hours or days, the longer
the longer ago: what differs between neighbours is recent, as a rule.

The sender's stamp says when "now" is, and events say when they were created: both sides cut the
same spans, whatever their clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.base.ids import NodeId
from shoal.identity.topics.cid import Cid, cid_of, cid_of_bytes
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.identity.topics.event_signatures import signer_of
from shoal.protocols.dht.validators import Judged, Sign, judge_record, read_record, sign_record
from shoal.protocols.topics.config import HEADS_IN_RECORD, PUBLISHERS_ASKED, SPANS_MAX

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
_NAME_BYTES = 8

Spans = tuple[tuple[int, int], ...]


def floor_of(moment_ms: int) -> int:
    """The floor of who is interested in what comes: on a minute, and one more for slow clocks."""
    return max(0, (moment_ms - MINUTE_MS) // MINUTE_MS * MINUTE_MS)


def digest(heads: Mapping[Cid, int], floor_ms: int, now_ms: int) -> tuple[int, Spans]:
    """From where on, and what the heads of each span come to; the newest spans, if there are too
    many."""
    sums: dict[int, int] = {}
    for head, created_ms in heads.items():
        if created_ms >= floor_ms:
            span = _span(created_ms, now_ms)
            sums[span] = sums.get(span, 0) ^ int.from_bytes(head[-_NAME_BYTES:])
    spans = sorted(sums.items())
    if len(spans) > SPANS_MAX:
        spans = spans[-SPANS_MAX:]
        floor_ms = max(floor_ms, spans[0][0])
    return floor_ms, tuple(spans)


def differing(
    heads: Mapping[Cid, int], floor_ms: int, theirs: Spans, their_floor_ms: int, now_ms: int
) -> Sequence[Cid]:
    """Our heads of the spans that come to something else at a neighbour."""
    other = dict(theirs)
    # Of the span that a floor lies in, a neighbour sums up what is above its own; so can we, unless
    # ours is the higher one. Retention leaves it anywhere, also among the last events of a topic.
    least_ms = max(floor_ms, their_floor_ms)
    whole_ms = floor_ms if floor_ms > their_floor_ms else 0
    _, spans = digest(heads, least_ms, now_ms)
    differ = {span for span, sum in spans if span >= whole_ms and other.get(span) != sum}
    if not differ:
        return ()
    return [
        head
        for head, created_ms in heads.items()
        if created_ms >= least_ms and _span(created_ms, now_ms) in differ
    ]


def _span(created_ms: int, now_ms: int) -> int:
    # Those of the future must not crowd out the present; an hour is left for the sender's clock.
    created_ms = min(created_ms, now_ms + HOUR_MS)
    age_ms = now_ms - created_ms
    width_ms = MINUTE_MS if age_ms < 2 * HOUR_MS else HOUR_MS if age_ms < 2 * DAY_MS else DAY_MS
    return max(0, created_ms) // width_ms * width_ms


# Head records: what a publisher says its topic ends with, signed and numbered, in the DHT.
#
# A parent link tells what came before an event, never that another one follows. Neighbours tell
# each other; where there are none, or they all lost the last event, the publisher's record tells.
#
# If a topic names its publishers, each has a key of its own, where nobody else's record is valid:
# others cannot crowd it out. Where anyone may publish, they share one.


_DOMAIN = b"shoal/topics/heads\0"


class _Payload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    topic: bytes
    heads: list[bytes]


_payloads = msgspec.msgpack.Decoder(_Payload)


def record_key(topic: Cid, publisher: NodeId | None) -> bytes:
    """Where a publisher's record is; None: all of them, where anyone publishes."""
    return sha256(_DOMAIN + topic + (publisher or b"")).digest()


def own_key(id: Cid, topic: TopicDescriptor, node: NodeId) -> bytes:
    """Where a publisher of this topic keeps its record."""
    return record_key(id, node if topic.metadata.allowed_publishers.enabled else None)


def keys_of(id: Cid, topic: TopicDescriptor) -> list[bytes]:
    """Where to look for records."""
    allowed = topic.metadata.allowed_publishers
    if not allowed.enabled:
        return [record_key(id, None)]
    keys: list[bytes] = []
    for peer in allowed.peers[:PUBLISHERS_ASKED]:
        try:
            keys.append(record_key(id, signer_of(peer)))
        except MalformedMessage:
            continue  # it cannot sign, so it has no record
    return keys


def make_record(
    id: Cid, topic: TopicDescriptor, node: NodeId, sign: Sign, number: int, heads: list[Cid]
) -> tuple[bytes, bytes]:
    """Key and value of a record, to be put."""
    key = own_key(id, topic, node)
    payload = msgspec.msgpack.encode(_Payload(id, list[bytes](heads[-HEADS_IN_RECORD:])))
    return key, sign_record(node, sign, key, number, payload)


def heads_of(value: bytes) -> tuple[NodeId | None, int, list[Cid]]:
    """Signer, number and heads of a record that the DHT has checked."""
    read = read_record(value)
    if read is None:
        return None, 0, []
    signer, body = read
    try:
        heads = _payloads.decode(body.payload).heads[:HEADS_IN_RECORD]
        return signer, body.number, [cid_of_bytes(raw) for raw in heads]
    except (msgspec.MsgspecError, MalformedMessage):
        return signer, body.number, []


def judge_topics(key: bytes, value: bytes) -> Judged | None:
    """The DHT's judge: blocks under their CIDs, and head records."""
    if cid_of(value) == key:
        return Judged()
    judged = judge_record(key, value)
    read = read_record(value)
    if judged is None or read is None or judged.signer is None:
        return None
    try:
        topic = Cid(_payloads.decode(read[1].payload).topic)
    except msgspec.MsgspecError:
        return None
    return judged if key in (record_key(topic, judged.signer), record_key(topic, None)) else None
