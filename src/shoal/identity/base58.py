"""base58btc: bytes as text without 0, O, I and l. A leading zero byte is a leading 1."""

from __future__ import annotations

from shoal.base.errors import UsageError

# Converting takes time quadratic in the length; a peer id has 53 digits, a CID fewer.
DIGITS_MAX = 128

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUE = {digit: value for value, digit in enumerate(_ALPHABET)}


def encode(raw: bytes) -> str:
    """Bytes as base58btc text."""
    number = int.from_bytes(raw, "big")
    digits = []
    while number:
        number, value = divmod(number, 58)
        digits.append(_ALPHABET[value])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(digits))


def decode(text: str) -> bytes:
    """The bytes that encode to this text; UsageError if there are none."""
    if len(text) > DIGITS_MAX:
        raise UsageError(f"base58 text has at most {DIGITS_MAX} digits, this one {len(text)}")
    number = 0
    for digit in text:
        value = _VALUE.get(digit)
        if value is None:
            raise UsageError(f"{digit!r} in {text!r} is no base58 digit")
        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
