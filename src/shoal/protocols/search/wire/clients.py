"""Bytes of what clients and their hosts say. The thesis prints no tables for them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta
from msgspec.msgpack import Decoder

from shoal.base.errors import MalformedMessage
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.limits import OTHERS_MAX, REASON_CHARS_MAX
from shoal.protocols.search.messages import ClientDeny, ClientHello, ClientOk, ClientRedirect
from shoal.protocols.search.wire.codes import Code
from shoal.protocols.search.wire.forms import Form, extend, read_totals
from shoal.protocols.search.wire.tables import CODE_BYTES, Table


class _BootstrapFields(NamedTuple):
    """The measurement bootstrap of the hellos, by itself."""

    nodes: float
    degrees: float
    squares: float


_hello = Decoder(tuple[AddressRecord])
_deny = Decoder(tuple[Annotated[str, Meta(max_length=REASON_CHARS_MAX)]])
_redirect = Decoder(tuple[Annotated[tuple[AddressRecord, ...], Meta(max_length=OTHERS_MAX)]])

_CLIENT_HELLO = Code.CLIENT_HELLO.to_bytes(CODE_BYTES)
_CLIENT_OK = Table(Code.CLIENT_OK, "fff", _BootstrapFields._make)
_CLIENT_DENY = Code.CLIENT_DENY.to_bytes(CODE_BYTES)
_CLIENT_REDIRECT = Code.CLIENT_REDIRECT.to_bytes(CODE_BYTES)


def _write_hello(message: ClientHello) -> bytes:
    return _CLIENT_HELLO + extend((message.record,))


def _read_hello(frame: bytes) -> ClientHello:
    return ClientHello(*_hello.decode(frame[CODE_BYTES:]))


def _write_ok(message: ClientOk) -> bytes:
    totals = message.bootstrap
    return _CLIENT_OK.pack(_BootstrapFields(totals.nodes, totals.degrees, totals.squares))


def _read_ok(frame: bytes) -> ClientOk:
    sums = _CLIENT_OK.unpack(frame)
    if len(frame) != _CLIENT_OK.size:
        raise MalformedMessage(f"a ClientOk has {_CLIENT_OK.size} bytes, this {len(frame)}")
    return ClientOk(read_totals(*sums))


def _write_deny(message: ClientDeny) -> bytes:
    return _CLIENT_DENY + extend((message.reason,))


def _read_deny(frame: bytes) -> ClientDeny:
    return ClientDeny(*_deny.decode(frame[CODE_BYTES:]))


def _write_redirect(message: ClientRedirect) -> bytes:
    return _CLIENT_REDIRECT + extend((message.others,))


def _read_redirect(frame: bytes) -> ClientRedirect:
    return ClientRedirect(*_redirect.decode(frame[CODE_BYTES:]))


CLIENT_FORMS = (
    Form(Code.CLIENT_HELLO, ClientHello, _write_hello, _read_hello),
    Form(Code.CLIENT_OK, ClientOk, _write_ok, _read_ok),
    Form(Code.CLIENT_DENY, ClientDeny, _write_deny, _read_deny),
    Form(Code.CLIENT_REDIRECT, ClientRedirect, _write_redirect, _read_redirect),
)
