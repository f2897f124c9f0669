"""Tables 2.3 to 2.11 of the thesis: the bytes of its messages, and back.

Big-endian; integers are signed, except for the code, ports and the round (2.2.2). Nothing here
knows what Shoal puts behind these bytes. Two slips of the print are settled: SlaveHello skips byte
12, which is reserved here (0), so that both hellos have 27 bytes; and the payload of a BubbleCast
begins at byte 34, behind its type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from shoal.base.errors import MalformedMessage, UsageError
from shoal.protocols.search.wire.codes import Code

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
