"""Bytes of the messages that make and unmake edges of the circle."""

from __future__ import annotations

from msgspec.msgpack import Decoder

from shoal.base.errors import MalformedMessage, UsageError
from shoal.protocols.search.addresses import AddressRecord
from shoal.protocols.search.messages import (
    BreakEdge,
    Cancel,
    EdgeClosed,
    EdgeName,
    MasterHello,
    MergeEdge,
    Redirect,
    SlaveHello,
    SplitEdge,
)
from shoal.protocols.search.wire.codes import Code
from shoal.protocols.search.wire.endpoints import (
    NOWHERE,
    endpoint_of,
    expect_endpoint,
    expect_port,
)
from shoal.protocols.search.wire.forms import Form, extend, read_totals
from shoal.protocols.search.wire.tables import (
    BREAK_EDGE,
    CANCEL,
    CODE_BYTES,
    MASTER_HELLO,
    MERGE_EDGE,
    REDIRECT,
    SLAVE_HELLO,
    SPLIT_EDGE,
    MasterHelloFields,
    NoFields,
    RemoteFields,
    SlaveHelloFields,
    SplitEdgeFields,
)

_split = Decoder(tuple[EdgeName | None, AddressRecord])
_hello = Decoder(tuple[AddressRecord])
_redirect = Decoder(tuple[EdgeName, AddressRecord])
_merge = Decoder(tuple[EdgeName, AddressRecord | None])
_edge = Decoder(tuple[EdgeName])

_NO_FIELDS = NoFields()
_EDGE_CLOSED = Code.EDGE_CLOSED.to_bytes(CODE_BYTES)


def _write_split(message: SplitEdge) -> bytes:
    ip, port = endpoint_of(message.origin.addresses)
    fields = SplitEdgeFields(ip, port, message.location, message.hops)
    return SPLIT_EDGE.pack(fields) + extend((message.edge, message.origin))


def _read_split(frame: bytes) -> SplitEdge:
    ip, port, location, hops = SPLIT_EDGE.unpack(frame)
    edge, origin = _split.decode(frame[SPLIT_EDGE.size :])
    expect_endpoint(origin, ip, port)
    if hops < 0:
        raise MalformedMessage(f"a SplitEdge with {hops} hops left: 0 or more")
    return SplitEdge(edge, origin, location, hops)


def _write_master_hello(message: MasterHello) -> bytes:
    port, totals = endpoint_of(message.record.addresses)[1], message.bootstrap
    fields = MasterHelloFields(
        *(message.sender, message.receiver, int(message.expect_slave), port),
        *(totals.nodes, totals.degrees, totals.squares),
    )
    return MASTER_HELLO.pack(fields) + extend((message.record,))


def _read_master_hello(frame: bytes) -> MasterHello:
    sender, receiver, expect_slave, port, *sums = MASTER_HELLO.unpack(frame)
    (record,) = _hello.decode(frame[MASTER_HELLO.size :])
    expect_port(record, port)
    # Any value but 0 is true (2.2.3).
    return MasterHello(sender, receiver, expect_slave != 0, read_totals(*sums), record)


def _write_slave_hello(message: SlaveHello) -> bytes:
    port, totals = endpoint_of(message.record.addresses)[1], message.bootstrap
    fields = SlaveHelloFields(
        *(message.sender, message.receiver, 0, port),
        *(totals.nodes, totals.degrees, totals.squares),
    )
    return SLAVE_HELLO.pack(fields) + extend((message.record,))


def _read_slave_hello(frame: bytes) -> SlaveHello:
    sender, receiver, reserved, port, *sums = SLAVE_HELLO.unpack(frame)
    if reserved:
        raise MalformedMessage(f"byte 12 of a SlaveHello is reserved: 0, not {reserved}")
    (record,) = _hello.decode(frame[SLAVE_HELLO.size :])
    expect_port(record, port)
    return SlaveHello(sender, receiver, read_totals(*sums), record)


def _write_redirect(message: Redirect) -> bytes:
    fields = RemoteFields(*endpoint_of(message.remote.addresses), message.location)
    return REDIRECT.pack(fields) + extend((message.edge, message.remote))


def _read_redirect(frame: bytes) -> Redirect:
    ip, port, location = REDIRECT.unpack(frame)
    edge, remote = _redirect.decode(frame[REDIRECT.size :])
    expect_endpoint(remote, ip, port)
    return Redirect(edge, remote, location)


def _write_merge(message: MergeEdge) -> bytes:
    remote, location = message.remote, message.location
    if remote is None and location:
        raise UsageError(f"a MergeEdge without a slave has location 0, not {location}")
    ip, port = NOWHERE if remote is None else endpoint_of(remote.addresses)
    return MERGE_EDGE.pack(RemoteFields(ip, port, location)) + extend((message.edge, remote))


def _read_merge(frame: bytes) -> MergeEdge:
    ip, port, location = MERGE_EDGE.unpack(frame)
    edge, remote = _merge.decode(frame[MERGE_EDGE.size :])
    if remote is not None:
        expect_endpoint(remote, ip, port)
    elif (ip, port) != NOWHERE or location:
        raise MalformedMessage("a MergeEdge without a slave has zeros for it")
    return MergeEdge(edge, remote, location)


def _write_cancel(message: Cancel) -> bytes:
    return CANCEL.pack(_NO_FIELDS) + extend((message.edge,))


def _read_cancel(frame: bytes) -> Cancel:
    return Cancel(*_edge.decode(frame[CANCEL.size :]))


def _write_break(message: BreakEdge) -> bytes:
    return BREAK_EDGE.pack(_NO_FIELDS) + extend((message.edge,))


def _read_break(frame: bytes) -> BreakEdge:
    return BreakEdge(*_edge.decode(frame[BREAK_EDGE.size :]))


def _write_closed(message: EdgeClosed) -> bytes:
    return _EDGE_CLOSED + extend((message.edge,))


def _read_closed(frame: bytes) -> EdgeClosed:
    return EdgeClosed(*_edge.decode(frame[CODE_BYTES:]))


CIRCLE_FORMS = (
    Form(Code.SPLIT_EDGE, SplitEdge, _write_split, _read_split),
    Form(Code.MASTER_HELLO, MasterHello, _write_master_hello, _read_master_hello),
    Form(Code.SLAVE_HELLO, SlaveHello, _write_slave_hello, _read_slave_hello),
    Form(Code.REDIRECT, Redirect, _write_redirect, _read_redirect),
    Form(Code.CANCEL, Cancel, _write_cancel, _read_cancel),
    Form(Code.MERGE_EDGE, MergeEdge, _write_merge, _read_merge),
    Form(Code.BREAK_EDGE, BreakEdge, _write_break, _read_break),
    Form(Code.EDGE_CLOSED, EdgeClosed, _write_closed, _read_closed),
)
