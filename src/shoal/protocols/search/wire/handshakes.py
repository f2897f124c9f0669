"""The two lines of text that open a user connection (2.2.7), as they are printed.

The space before the line ends is the print's. `BubbleStorm OK` accepts; any other answer refuses.
"""

from __future__ import annotations

import re

from shoal.base.errors import MalformedMessage, UsageError
from shoal.protocols.search.limits import CONNECTION_TYPE_CHARS_MAX, REASON_CHARS_MAX

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
