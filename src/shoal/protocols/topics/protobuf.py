"""The part of protobuf's wire format that the RPC needs: varints and bytes behind field numbers.

Written out because the protobuf package answers other questions: it reads a singular field twice
and keeps the last, ignores unknown fields, takes any varint. Here every peer must see the same
descriptor in the same bytes, or refuse them alike. And the original's schema has fields named `/`
and `#`, which protoc does not compile.
"""

from __future__ import annotations

from collections.abc import Collection

from shoal.base.errors import MalformedMessage

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES_MAX = 10
_UINT64_MAX = 2**64 - 1

Fields = dict[int, list[int | bytes]]


# Writing


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    if number < 128:
        return bytes((number,))
    digits = bytearray()
    while number >= 128:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def number_field(field: int, number: int) -> bytes:
    """A field that holds a number, an enum or a boolean; written even if it is zero."""
    return varint(field << 3 | _VARINT) + varint(number)


def bytes_field(field: int, value: bytes) -> bytes:
    """A field that holds bytes or a message; written even if it is empty."""
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def text_field(field: int, value: str) -> bytes:
    """A field that holds text."""
    return bytes_field(field, value.encode())


# Reading


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends; the shortest form only."""
    if at + 1 < len(raw):  # nearly all of them: one byte, or two for the length of an event
        low, high = raw[at], raw[at + 1]
        if low < 128:
            return low, at + 1
        if 0 < high < 128:
            return high << 7 | low & 127, at + 2
    number = shift = 0
    for end in range(at, min(at + _VARINT_BYTES_MAX, len(raw))):
        byte = raw[end]
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if number > _UINT64_MAX or (byte == 0 and end > at):
                break
            return number, end + 1
    raise MalformedMessage(f"byte {at} begins no varint, or one that could be shorter")


def read_fields(raw: bytes) -> Fields:
    """All fields of a message by number, each with all its values."""
    fields: Fields = {}
    at, size = 0, len(raw)
    while at < size:
        tag = raw[at]
        # Nearly all tags and lengths are one byte: a call for each would be half of the work.
        if tag < 128:
            at += 1
        else:
            tag, at = read_varint(raw, at)
        value: int | bytes
        if tag & 7 == _BYTES and at < size and raw[at] < 128 and at + raw[at] < size:
            end = at + 1 + raw[at]
            value, at = raw[at + 1 : end], end
        else:
            value, at = _read_value(raw, at, tag & 7)
        known = fields.get(tag >> 3)
        if known is None:
            fields[tag >> 3] = [value]
        else:
            known.append(value)
    if 0 in fields:
        raise MalformedMessage("a field has the number 0: they begin at 1")
    return fields


def _read_value(raw: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind == _VARINT:
        return read_varint(raw, at)
    size: int | None
    size, at = read_varint(raw, at) if kind == _BYTES else (_FIXED_BYTES.get(kind), at)
    if size is None:
        raise MalformedMessage(f"byte {at}: protobuf fields of kind {kind} are not read here")
    if at + size > len(raw):
        raise MalformedMessage(f"byte {at}: {size} bytes are announced, {len(raw) - at} are there")
    return raw[at : at + size], at + size


class Reader:
    """One message from a peer, taken apart field by field."""

    __slots__ = ("_fields", "_what")

    def __init__(self, what: str, raw: bytes, known: Collection[int] | None = None) -> None:
        """Take the message apart; with `known` given, refuse every other field."""
        self._what = what
        self._fields = read_fields(raw)
        if known is not None:
            for field in self._fields:
                if field not in known:
                    raise MalformedMessage(f"{what} has no field {field}")

    def fields(self) -> Collection[int]:
        """Which fields are there."""
        return self._fields.keys()

    def has(self, field: int) -> bool:
        """Whether the field is there."""
        return field in self._fields

    def number(self, field: int) -> int:
        """A number that must be there, once."""
        values = self._fields.get(field, ())
        if len(values) == 1 and isinstance(values[0], int):
            return values[0]
        raise self._wrong(field, len(values), "a number")

    def flag(self, field: int) -> bool:
        """A boolean that must be there, once."""
        value = self.number(field)
        if value > 1:
            raise MalformedMessage(f"{self._what}: field {field} is 0 or 1, not {value}")
        return bool(value)

    def blob(self, field: int) -> bytes:
        """Bytes that must be there, once."""
        values = self._fields.get(field, ())
        if len(values) == 1 and isinstance(values[0], bytes):
            return values[0]
        raise self._wrong(field, len(values), "bytes")

    def text(self, field: int) -> str:
        """Text that must be there, once."""
        return as_text(self.blob(field))

    def several(self, field: int) -> list[bytes]:
        """Bytes that may be there any number of times."""
        values = self._fields.get(field, [])
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) < len(values):
            raise self._wrong(field, 1, "bytes")
        return found

    def _wrong(self, field: int, times: int, kind: str) -> MalformedMessage:
        if times != 1:
            return MalformedMessage(f"{self._what} has field {field} once, not {times} times")
        return MalformedMessage(f"{self._what}: field {field} is {kind}")


def as_text(raw: bytes) -> str:
    """Text from a peer."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"text is no UTF-8: {error}") from None
