"""How contracts take arguments and give results: the part of the Ethereum ABI that ours use.

Numbers, addresses, text, arrays and tuples of them. eth-abi does all of it, but takes 0.19 s and
six packages to import, longer than most commands run; tests hold this against it.

What is decoded comes from an endpoint that may lie. Each byte of it is read once at most: parts
that point at one place again and again would otherwise grow without end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.base.errors import MalformedMessage, UsageError
from shoal.base.ids import NODE_ID_BYTES, NodeId

WORD_BYTES = 32


class Reader:
    """The bytes of one encoding, and how many of them may still be read."""

    __slots__ = ("_left", "data")

    def __init__(self, data: bytes) -> None:
        """Read these."""
        self.data = data
        self._left = len(data)

    def take(self, at: int, count: int) -> bytes:
        """So many bytes from a place on."""
        self._left -= count
        if at + count > len(self.data) or self._left < 0:
            raise MalformedMessage(f"an encoding of {len(self.data)} bytes refers beyond its end")
        return self.data[at : at + count]

    def number(self, at: int) -> int:
        """The word at a place, as a number."""
        return int.from_bytes(self.take(at, WORD_BYTES))


class Codec(ABC):
    """One type: values of it to bytes and back."""

    is_dynamic = False
    """Whether it stands elsewhere, with its place in the head."""
    head_bytes = WORD_BYTES

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """The bytes of a value; UsageError if it has none."""

    @abstractmethod
    def decode(self, reader: Reader, at: int) -> Any:
        """The value at a place; MalformedMessage if there is none."""


class Uint(Codec):
    """uint256"""

    def encode(self, value: Any) -> bytes:
        try:
            return int(value).to_bytes(WORD_BYTES)
        except OverflowError:
            raise UsageError(f"{value} is no number from 0 to 2^256") from None

    def decode(self, reader: Reader, at: int) -> int:
        return reader.number(at)


class Address(Codec):
    """address, as a node id"""

    def encode(self, value: Any) -> bytes:
        if len(value) != NODE_ID_BYTES:
            raise UsageError(f"an address has {NODE_ID_BYTES} bytes, not {len(value)}")
        return bytes(WORD_BYTES - NODE_ID_BYTES) + bytes(value)

    def decode(self, reader: Reader, at: int) -> NodeId:
        word = reader.take(at, WORD_BYTES)
        if any(word[: WORD_BYTES - NODE_ID_BYTES]):
            raise MalformedMessage(f"{word.hex()} is no address")
        return NodeId(word[WORD_BYTES - NODE_ID_BYTES :])


class Text(Codec):
    """string"""

    is_dynamic = True

    def encode(self, value: Any) -> bytes:
        raw = str(value).encode()
        return len(raw).to_bytes(WORD_BYTES) + raw + bytes(-len(raw) % WORD_BYTES)

    def decode(self, reader: Reader, at: int) -> str:
        count = reader.number(at)
        try:
            return reader.take(at + WORD_BYTES, count).decode()
        except UnicodeDecodeError:
            raise MalformedMessage("a text is not UTF-8") from None


class Tuple(Codec):
    """(T1,T2,...): also the arguments, and the results, of a function."""

    def __init__(self, items: Sequence[Codec]) -> None:
        """Of these types."""
        self._items = items
        self.is_dynamic = any(item.is_dynamic for item in items)
        self._heads_bytes = sum(item.head_bytes for item in items)
        self.head_bytes = WORD_BYTES if self.is_dynamic else self._heads_bytes

    def encode(self, value: Any) -> bytes:
        heads, tails, place = [], [], self._heads_bytes
        for item, part in zip(self._items, value, strict=True):
            encoded = item.encode(part)
            if item.is_dynamic:
                heads.append(place.to_bytes(WORD_BYTES))
                tails.append(encoded)
                place += len(encoded)
            else:
                heads.append(encoded)
        return b"".join((*heads, *tails))

    def decode(self, reader: Reader, at: int) -> tuple[Any, ...]:
        values, head = [], at
        for item in self._items:
            place = at + reader.number(head) if item.is_dynamic else head
            values.append(item.decode(reader, place))
            head += item.head_bytes
        return tuple(values)


class Array(Codec):
    """T[]"""

    is_dynamic = True

    def __init__(self, item: Codec) -> None:
        """Of this type."""
        self._item = item

    def encode(self, value: Any) -> bytes:
        parts = tuple(value)
        return len(parts).to_bytes(WORD_BYTES) + Tuple([self._item] * len(parts)).encode(parts)

    def decode(self, reader: Reader, at: int) -> tuple[Any, ...]:
        count = reader.number(at)
        if count * WORD_BYTES > len(reader.data):  # before a list of that length is made
            raise MalformedMessage(f"an array of {count} does not fit its encoding")
        return Tuple([self._item] * count).decode(reader, at + WORD_BYTES)


def codec_of(entry: Mapping[str, Any]) -> Codec:
    """The codec of one input, output or component, as the compiler describes it."""
    kind = str(entry["type"])
    if kind.endswith("[]"):
        return Array(codec_of({**entry, "type": kind.removesuffix("[]")}))
    match kind:
        case "tuple":
            return tuple_of(entry["components"])
        case "string":
            return Text()
        case "address":
            return Address()
        case "uint256":
            return Uint()
    raise UsageError(f"the ABI type {kind} is not known here: add it to shoal.registry.abi")


def tuple_of(entries: Sequence[Mapping[str, Any]]) -> Tuple:
    """The codec of several."""
    return Tuple([codec_of(entry) for entry in entries])


def type_name(entry: Mapping[str, Any]) -> str:
    """The type as a signature has it: (string,uint256)[] for an array of tuples."""
    kind = str(entry["type"])
    if not kind.startswith("tuple"):
        return kind
    inner = ",".join(type_name(component) for component in entry["components"])
    return f"({inner}){kind.removeprefix('tuple')}"


def decode(codec: Codec, data: bytes) -> Any:
    """All of it, from the beginning."""
    return codec.decode(Reader(data), 0)
