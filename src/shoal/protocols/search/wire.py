"""Bytes of the search protocol: the thesis' tables first, Shoal's own fields behind them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.msgpack import Decoder

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.kernel.machine import SEARCH
from shoal.protocols.search.config import (
    BUBBLE_ID_BYTES,
    CONNECTION_TYPE_CHARS_MAX,
    EXTRA_NAME_CHARS_MAX,
    EXTRAS_MAX,
    FRAME_BYTES_MAX,
    ITEM_BYTES_MAX,
    MATCH_ITEMS_MAX,
    OTHERS_MAX,
    PAYLOAD_BYTES_MAX,
    REASON_CHARS_MAX,
    USER_DATA_BYTES_MAX,
)
from shoal.protocols.search.messages import (
    BreakEdge,
    BubbleCast,
    Cancel,
    ClientDeny,
    ClientHello,
    ClientOk,
    ClientRedirect,
    EdgeClosed,
    EdgeName,
    MasterHello,
    Match,
    MergeEdge,
    Message,
    Ping,
    Redirect,
    SlaveHello,
    SplitEdge,
    Totals,
    UserAccept,
    UserConnect,
    UserData,
    UserEnd,
    UserRefuse,
)
from shoal.protocols.search.signed_records import AddressRecord, BubbleHeader


class Code(IntEnum):
    """One for each type of message, for ever."""

    # Printed (2.2.3 to 2.2.6)
    MASTER_HELLO = 0x5E000001
    REDIRECT = 0x5E000002
    BREAK_EDGE = 0x5E000003
    SLAVE_HELLO = 0x5E000041
    MERGE_EDGE = 0x5E000042
    CANCEL = 0x5E000043
    SPLIT_EDGE = 0x5E000080
    PING = 0x5E000081
    BUBBLE_CAST = 0x5E000082

    # Chosen: either end of an edge says them, so they go on with the family 0x80
    MATCH = 0x5E000083
    EDGE_CLOSED = 0x5E000084

    # Chosen: client and host, the family 0xC0
    CLIENT_HELLO = 0x5E0000C1
    CLIENT_OK = 0x5E0000C2
    CLIENT_DENY = 0x5E0000C3
    CLIENT_REDIRECT = 0x5E0000C4

    # Chosen: user connections, the family 0xE0
    USER_CONNECT = 0x5E0000E1
    USER_ACCEPT = 0x5E0000E2
    USER_REFUSE = 0x5E0000E3
    USER_DATA = 0x5E0000E4
    USER_END = 0x5E0000E5


# Tables 2.3 to 2.11 of the thesis: the bytes of its messages, and back.
#
# Big-endian; integers are signed, except for the code, ports and the round (2.2.2). Nothing here
# knows what Shoal puts behind these bytes. Two slips of the print are settled: SlaveHello skips
# byte 12, which is reserved here (0), so that both hellos have 27 bytes; and the payload of a
# BubbleCast begins at byte 34, behind its type.


CODE_BYTES = 4


class SplitEdgeFields(NamedTuple):
    """Table 2.3."""

    ip: bytes
    port: int
    location: int
    hops: int


class MasterHelloFields(NamedTuple):
    """Table 2.4."""

    sender: int
    receiver: int
    expect_slave: int
    port: int
    nodes: float
    degrees: float
    squares: float


class RemoteFields(NamedTuple):
    """Tables 2.5 (Redirect) and 2.8 (MergeEdge)."""

    ip: bytes
    port: int
    location: int


class SlaveHelloFields(NamedTuple):
    """Table 2.6."""

    sender: int
    receiver: int
    reserved: int
    port: int
    nodes: float
    degrees: float
    squares: float


class NoFields(NamedTuple):
    """Tables 2.7 (Cancel) and 2.9 (BreakEdge): the code says it all."""


class PingFields(NamedTuple):
    """Table 2.10."""

    round: int
    fish_size: int
    nodes: float
    degrees: float
    squares: float
    fish: float


class BubbleCastFields(NamedTuple):
    """Table 2.11, up to the payload."""

    length: int
    ip: bytes
    port: int
    size: int
    total: int
    start: int
    end: int
    kind: int


Fields = TypeVar("Fields", bound=tuple[Any, ...])


class Table(Generic[Fields]):
    """One table: the code, then fields of fixed lengths."""

    __slots__ = ("_code", "_make", "_name", "_struct", "size")

    def __init__(self, code: Code, format: str, make: Callable[[Iterable[Any]], Fields]) -> None:
        self._struct = struct.Struct(">" + format)
        self._code = code.to_bytes(CODE_BYTES)
        self._name = code.name
        self._make = make
        self.size = CODE_BYTES + self._struct.size
        """How many bytes the table describes."""

    def pack(self, fields: Fields) -> bytes:
        """The bytes; UsageError for a number that its field cannot hold."""
        try:
            return self._code + self._struct.pack(*fields)
        except (struct.error, OverflowError) as error:
            raise UsageError(f"{fields} does not fit into {self._name}: {error}") from None

    def unpack(self, frame: bytes) -> Fields:
        """The fields that a frame begins with; MalformedMessage if it is none of this table."""
        if len(frame) < self.size or not frame.startswith(self._code):
            raise MalformedMessage(
                f"{self._name} has {self.size} bytes from {self._code.hex()} on,"
                f" this frame {len(frame)} from {frame[:CODE_BYTES].hex()} on"
            )
        return self._make(self._struct.unpack_from(frame, CODE_BYTES))


SPLIT_EDGE = Table(Code.SPLIT_EDGE, "4sHii", SplitEdgeFields._make)
MASTER_HELLO = Table(Code.MASTER_HELLO, "iiBHfff", MasterHelloFields._make)
REDIRECT = Table(Code.REDIRECT, "4sHi", RemoteFields._make)
SLAVE_HELLO = Table(Code.SLAVE_HELLO, "iiBHfff", SlaveHelloFields._make)
CANCEL = Table(Code.CANCEL, "", NoFields._make)
MERGE_EDGE = Table(Code.MERGE_EDGE, "4sHi", RemoteFields._make)
BREAK_EDGE = Table(Code.BREAK_EDGE, "", NoFields._make)
PING = Table(Code.PING, "Iqffff", PingFields._make)
BUBBLE_CAST = Table(Code.BUBBLE_CAST, "i4sHiiiii", BubbleCastFields._make)

# What the bytes of all messages have in common.
#
# A frame is a table of the thesis, then one msgpack array with what Shoal adds: the edge, signed
# records, the header. The msgpack part of a message without a table follows its code at once.


INFINITY = float("inf")

extend = msgspec.msgpack.Encoder().encode


class Form(NamedTuple):
    """How one type of message is written and read. `read` gets a frame that begins with the code;
    it raises MalformedMessage, or what msgspec raises."""

    code: Code
    message: type
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def read_totals(nodes: float, degrees: float, squares: float) -> Totals:
    """Sums that can be: finite, not negative. One NaN would spread through the whole network."""
    if 0.0 <= nodes < INFINITY and 0.0 <= degrees < INFINITY and 0.0 <= squares < INFINITY:
        return Totals(nodes, degrees, squares)
    raise MalformedMessage(f"D0 {nodes}, D1 {degrees}, D2 {squares}: each is finite, 0 or more")


# The IPv4 address and TCP port that the thesis' messages have room for.
#
# A record of Shoal has up to four addresses, names and IPv6 among them. The tables get the first
# one that fits, or zeros: they repeat the record, which alone is signed and dialled, and must agree
# with it. So a frame has one meaning, whichever of the two somebody reads.


Endpoint = tuple[bytes, int]

NOWHERE: Endpoint = (bytes(4), 0)

_PART = "([0-9]{1,3})"
_URL = re.compile(rf"wss?://{_PART}\.{_PART}\.{_PART}\.{_PART}:([0-9]{{1,5}})(?:/.*)?")
_PORT_MAX = 65_535
_REMEMBERED_MAX = 4096  # addresses of nodes seen lately: every bubble of theirs asks for them


@lru_cache(maxsize=_REMEMBERED_MAX)
def endpoint_of(addresses: tuple[str, ...]) -> Endpoint:
    """Of the first ws or wss address with an IPv4 host and a port; NOWHERE without one."""
    for address in addresses:
        found = _URL.fullmatch(address)
        if found is None:
            continue
        if not all(_canonical(digits) for digits in found.groups()):
            continue
        *parts, port = [int(digits) for digits in found.groups()]
        if max(parts) <= 255 and 0 < port <= _PORT_MAX:
            return bytes(parts), port
    return NOWHERE


def expect_endpoint(record: AddressRecord, ip: bytes, port: int) -> None:
    """MalformedMessage unless a table says the same as the record behind it."""
    if endpoint_of(record.addresses) != (ip, port):
        shown = ".".join(str(part) for part in ip)
        raise MalformedMessage(f"{shown} port {port}, but the record behind has {record.addresses}")


def expect_port(record: AddressRecord, port: int) -> None:
    """The same for the hellos, which only have a port."""
    if endpoint_of(record.addresses)[1] != port:
        raise MalformedMessage(f"port {port}, but the record behind has {record.addresses}")


def _canonical(digits: str) -> bool:
    # 010 is 10 to some and 8 to others.
    return digits == "0" or not digits.startswith("0")


# The two lines of text that open a user connection (2.2.7), as they are printed.
#
# The space before the line ends is the print's. `BubbleStorm OK` accepts; any other answer refuses.


ACCEPTED = b"BubbleStorm OK \n\n"

_OPENING, _END = b"BubbleStorm UserConnect/", b" \n\n"
_TYPE = re.compile(rf"[!-~]{{1,{CONNECTION_TYPE_CHARS_MAX}}}")  # visible ASCII, no space


def write_connect(type: str) -> bytes:
    """The line that asks for a connection; UsageError for a type that is no name."""
    if not _TYPE.fullmatch(type):
        raise UsageError(
            f"connection type {type!r}: use 1 to {CONNECTION_TYPE_CHARS_MAX} visible ASCII"
            " characters, no spaces"
        )
    return _OPENING + type.encode("ascii") + _END


def read_connect(line: bytes) -> str:
    """The type that a line asks for."""
    if line.startswith(_OPENING) and line.endswith(_END):
        type = line[len(_OPENING) : -len(_END)].decode("latin-1")
        if _TYPE.fullmatch(type):
            return type
    raise MalformedMessage(f"{line[:80]!r} asks for no connection")


def write_refusal(answer: str) -> bytes:
    """Any answer but the one that accepts; UsageError for that one, or for more than a line."""
    if not answer.isascii() or len(answer) > REASON_CHARS_MAX or answer.encode() == ACCEPTED:
        raise UsageError(
            f"{answer!r} refuses nothing: use up to {REASON_CHARS_MAX} ASCII characters,"
            " other than those that accept"
        )
    return answer.encode("ascii")


def read_refusal(line: bytes) -> str:
    """Why a connection was refused."""
    if line == ACCEPTED or len(line) > REASON_CHARS_MAX or not line.isascii():
        raise MalformedMessage(f"{line[:80]!r} refuses no connection")
    return line.decode("ascii")


# Bytes of the messages that make and unmake edges of the circle.


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

# Bytes of Pings, bubbles and their answers: nearly all that a link carries.


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

# Bytes of what clients and their hosts say. The thesis prints no tables for them.


class _BootstrapFields(NamedTuple):
    """The measurement bootstrap of the hellos, by itself."""

    nodes: float
    degrees: float
    squares: float


_hello_clients = Decoder(tuple[AddressRecord])
_deny = Decoder(tuple[Annotated[str, Meta(max_length=REASON_CHARS_MAX)]])
_redirect_clients = Decoder(
    tuple[Annotated[tuple[AddressRecord, ...], Meta(max_length=OTHERS_MAX)]]
)

_CLIENT_HELLO = Code.CLIENT_HELLO.to_bytes(CODE_BYTES)
_CLIENT_OK = Table(Code.CLIENT_OK, "fff", _BootstrapFields._make)
_CLIENT_DENY = Code.CLIENT_DENY.to_bytes(CODE_BYTES)
_CLIENT_REDIRECT = Code.CLIENT_REDIRECT.to_bytes(CODE_BYTES)


def _write_hello(message: ClientHello) -> bytes:
    return _CLIENT_HELLO + extend((message.record,))


def _read_hello(frame: bytes) -> ClientHello:
    return ClientHello(*_hello_clients.decode(frame[CODE_BYTES:]))


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


def _write_redirect_clients(message: ClientRedirect) -> bytes:
    return _CLIENT_REDIRECT + extend((message.others,))


def _read_redirect_clients(frame: bytes) -> ClientRedirect:
    return ClientRedirect(*_redirect_clients.decode(frame[CODE_BYTES:]))


CLIENT_FORMS = (
    Form(Code.CLIENT_HELLO, ClientHello, _write_hello, _read_hello),
    Form(Code.CLIENT_OK, ClientOk, _write_ok, _read_ok),
    Form(Code.CLIENT_DENY, ClientDeny, _write_deny, _read_deny),
    Form(Code.CLIENT_REDIRECT, ClientRedirect, _write_redirect_clients, _read_redirect_clients),
)

# Bytes of user connections: the code, the number of the connection, and then, to the end of the
# frame, exactly what the thesis lets the two ends of a TCP connection send (2.2.7).


class _ConnectionFields(NamedTuple):
    connection: int


def _table(code: Code) -> Table[_ConnectionFields]:
    return Table(code, "I", _ConnectionFields._make)


_CONNECT = _table(Code.USER_CONNECT)
_ACCEPT = _table(Code.USER_ACCEPT)
_REFUSE = _table(Code.USER_REFUSE)
_DATA = _table(Code.USER_DATA)
_END_USERS = _table(Code.USER_END)


def _write(table: Table[_ConnectionFields], connection: int, content: bytes) -> bytes:
    return table.pack(_ConnectionFields(connection)) + content


def _read(table: Table[_ConnectionFields], frame: bytes) -> tuple[int, bytes]:
    return table.unpack(frame).connection, frame[table.size :]


def _write_connect(message: UserConnect) -> bytes:
    return _write(_CONNECT, message.connection, write_connect(message.type))


def _read_connect(frame: bytes) -> UserConnect:
    connection, line = _read(_CONNECT, frame)
    return UserConnect(connection, read_connect(line))


def _write_accept(message: UserAccept) -> bytes:
    return _write(_ACCEPT, message.connection, ACCEPTED)


def _read_accept(frame: bytes) -> UserAccept:
    connection, line = _read(_ACCEPT, frame)
    if line != ACCEPTED:
        raise MalformedMessage(f"{line[:80]!r} accepts no connection")
    return UserAccept(connection)


def _write_refuse(message: UserRefuse) -> bytes:
    return _write(_REFUSE, message.connection, write_refusal(message.answer))


def _read_refuse(frame: bytes) -> UserRefuse:
    connection, line = _read(_REFUSE, frame)
    return UserRefuse(connection, read_refusal(line))


def _write_data(message: UserData) -> bytes:
    return _write(_DATA, message.connection, message.content)


def _read_data(frame: bytes) -> UserData:
    connection, content = _read(_DATA, frame)
    if len(content) > USER_DATA_BYTES_MAX:
        raise OversizedMessage(f"{len(content)} bytes at once, the limit is {USER_DATA_BYTES_MAX}")
    return UserData(connection, content)


def _write_end(message: UserEnd) -> bytes:
    return _write(_END_USERS, message.connection, b"")


def _read_end(frame: bytes) -> UserEnd:
    connection, rest = _read(_END_USERS, frame)
    if rest:
        raise MalformedMessage(f"a UserEnd with {len(rest)} bytes behind it")
    return UserEnd(connection)


USER_FORMS = (
    Form(Code.USER_CONNECT, UserConnect, _write_connect, _read_connect),
    Form(Code.USER_ACCEPT, UserAccept, _write_accept, _read_accept),
    Form(Code.USER_REFUSE, UserRefuse, _write_refuse, _read_refuse),
    Form(Code.USER_DATA, UserData, _write_data, _read_data),
    Form(Code.USER_END, UserEnd, _write_end, _read_end),
)

# The codec port of search: whole frames.


_FORMS: tuple[Form, ...] = (*CIRCLE_FORMS, *BUBBLE_FORMS, *CLIENT_FORMS, *USER_FORMS)
_WRITERS = {form.message: form.write for form in _FORMS}
_READERS = {form.code.to_bytes(CODE_BYTES): form.read for form in _FORMS}


class SearchCodec:
    """Encodes trusted messages, decodes untrusted bytes."""

    number = SEARCH
    messages: tuple[type, ...] = tuple(_WRITERS)

    def encode(self, message: Any) -> bytes:
        """The bytes of one message; UsageError for more than a peer would read."""
        frame = _WRITERS[type(message)](message)
        if len(frame) > FRAME_BYTES_MAX:
            raise UsageError(
                f"a {type(message).__name__} of {len(frame)} bytes: send several,"
                f" {FRAME_BYTES_MAX} at most"
            )
        return frame

    def decode(self, frame: bytes) -> Message:
        """The message, or a RemoteError."""
        if len(frame) > FRAME_BYTES_MAX:
            raise OversizedMessage(f"{len(frame)} bytes, the limit is {FRAME_BYTES_MAX}")
        read = _READERS.get(frame[:CODE_BYTES])
        if read is None:
            raise MalformedMessage(f"no message begins with {frame[:CODE_BYTES].hex()}")
        try:
            message: Message = read(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
        return message
