"""Bytes of user connections: the code, the number of the connection, and then, to the end of the
frame, exactly what the thesis lets the two ends of a TCP connection send (2.2.7)."""

from __future__ import annotations

from typing import NamedTuple

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.protocols.search.limits import USER_DATA_BYTES_MAX
from shoal.protocols.search.messages import (
    UserAccept,
    UserConnect,
    UserData,
    UserEnd,
    UserRefuse,
)
from shoal.protocols.search.wire.codes import Code
from shoal.protocols.search.wire.forms import Form
from shoal.protocols.search.wire.handshakes import (
    ACCEPTED,
    read_connect,
    read_refusal,
    write_connect,
    write_refusal,
)
from shoal.protocols.search.wire.tables import Table


class _ConnectionFields(NamedTuple):
    connection: int


def _table(code: Code) -> Table[_ConnectionFields]:
    return Table(code, "I", _ConnectionFields._make)


_CONNECT = _table(Code.USER_CONNECT)
_ACCEPT = _table(Code.USER_ACCEPT)
_REFUSE = _table(Code.USER_REFUSE)
_DATA = _table(Code.USER_DATA)
_END = _table(Code.USER_END)


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
    return _write(_END, message.connection, b"")


def _read_end(frame: bytes) -> UserEnd:
    connection, rest = _read(_END, frame)
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
