"""Bytes of Pings, bubbles and their answers: nearly all that a link carries."""

from __future__ import annotations

from math import isfinite
from typing import Annotated

from msgspec import Meta
from msgspec.msgpack import Decoder

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.protocols.search.headers import BubbleHeader
from shoal.protocols.search.limits import (
    BUBBLE_ID_BYTES,
    EXTRA_NAME_CHARS_MAX,
    EXTRAS_MAX,
    ITEM_BYTES_MAX,
    MATCH_ITEMS_MAX,
    PAYLOAD_BYTES_MAX,
)
from shoal.protocols.search.messages import BubbleCast, EdgeName, Match, Ping
from shoal.protocols.search.wire.codes import Code
from shoal.protocols.search.wire.endpoints import endpoint_of, expect_endpoint
from shoal.protocols.search.wire.forms import INFINITY, Form, extend, read_totals
from shoal.protocols.search.wire.tables import (
    BUBBLE_CAST,
    CODE_BYTES,
    PING,
    BubbleCastFields,
    PingFields,
)

_Column = Annotated[str, Meta(pattern=rf"^(s|min|max):.{{1,{EXTRA_NAME_CHARS_MAX}}}\Z")]
_Extras = Annotated[tuple[tuple[_Column, float], ...], Meta(max_length=EXTRAS_MAX)]
_BubbleId = Annotated[bytes, Meta(min_length=BUBBLE_ID_BYTES, max_length=BUBBLE_ID_BYTES)]
_Item = Annotated[bytes, Meta(max_length=ITEM_BYTES_MAX)]
_Items = Annotated[tuple[_Item, ...], Meta(max_length=MATCH_ITEMS_MAX)]

_ping = Decoder(tuple[EdgeName | None, _Extras])
_cast = Decoder(tuple[EdgeName | None, BubbleHeader])
_match = Decoder(tuple[_BubbleId, _Items, bool])

_MATCH = Code.MATCH.to_bytes(CODE_BYTES)


def _write_ping(message: Ping) -> bytes:
    totals = message.totals
    fields = PingFields(
        *(message.round, message.fish_size),
        *(totals.nodes, totals.degrees, totals.squares, message.fish),
    )
    return PING.pack(fields) + extend((message.edge, message.extras))


def _read_ping(frame: bytes) -> Ping:
    round, fish_size, nodes, degrees, squares, fish = PING.unpack(frame)
    edge, extras = _ping.decode(frame[PING.size :])
    if not 0.0 <= fish < INFINITY:
        raise MalformedMessage(f"{fish} of a swarm: finite, 0 or more")
    if extras:
        _expect_columns(extras)
    return Ping(edge, round, fish_size, read_totals(nodes, degrees, squares), fish, extras)


def _expect_columns(extras: tuple[tuple[str, float], ...]) -> None:
    if len(dict(extras)) < len(extras):
        raise MalformedMessage("a Ping with a column twice")
    for name, value in extras:
        if not isfinite(value):
            raise MalformedMessage(f"column {name} is {value}: finite numbers only")


def _write_cast(message: BubbleCast) -> bytes:
    payload, header = message.payload, message.header
    ip, port = endpoint_of(header.origin.addresses)
    fields = BubbleCastFields(
        *(len(payload), ip, port),
        *(message.size, message.total, message.start, message.end, message.kind),
    )
    return b"".join((BUBBLE_CAST.pack(fields), payload, extend((message.edge, header))))


def _read_cast(frame: bytes) -> BubbleCast:
    length, ip, port, size, total, start, end, kind = BUBBLE_CAST.unpack(frame)
    if length > PAYLOAD_BYTES_MAX:
        raise OversizedMessage(f"a payload of {length} bytes, the limit is {PAYLOAD_BYTES_MAX}")
    behind = BUBBLE_CAST.size + length
    if not BUBBLE_CAST.size <= behind <= len(frame):
        raise MalformedMessage(f"a payload of {length} bytes in a frame of {len(frame)}")
    if not 0 <= start < end <= size <= total:
        raise MalformedMessage(f"slice [{start}, {end}) of {size} of {total}")
    edge, header = _cast.decode(frame[behind:])
    expect_endpoint(header.origin, ip, port)
    payload = frame[BUBBLE_CAST.size : behind]
    return BubbleCast(edge, size, total, start, end, kind, header, payload)


def _write_match(message: Match) -> bytes:
    return _MATCH + extend((message.bubble, message.items, message.via))


def _read_match(frame: bytes) -> Match:
    return Match(*_match.decode(frame[CODE_BYTES:]))


BUBBLE_FORMS = (
    Form(Code.PING, Ping, _write_ping, _read_ping),
    Form(Code.BUBBLE_CAST, BubbleCast, _write_cast, _read_cast),
    Form(Code.MATCH, Match, _write_match, _read_match),
)
