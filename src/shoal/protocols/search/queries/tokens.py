"""What is typed, cut into pieces: words, "quoted text" and signs."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from shoal.base.errors import UsageError

Kind = Literal["word", "quoted", ":", "-", "(", ")", "end"]

_SHOWN_CHARS = 40
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r'[^\s()":]+')
_VALUE = re.compile(r'[^\s()"]+')  # after a field's colon: 12:30 is a time
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')


class Token(NamedTuple):
    kind: Kind
    text: str
    at: int
    glued: bool
    """Nothing stands between it and what is before it."""


def query_error(text: str, at: int, problem: str) -> UsageError:
    """What is wrong with a query, where, and what to do."""
    begin = max(0, at - _SHOWN_CHARS // 2)
    shown = text[begin : begin + _SHOWN_CHARS]
    return UsageError(f"query, character {at + 1} (in {shown!r}): {problem}")


def tokens_of(text: str) -> list[Token]:
    """The pieces of a query, and an end."""
    found: list[Token] = []
    at = 0
    glued = False
    while at < len(text):
        if space := _SPACE.match(text, at):
            at, glued = space.end(), False
            continue
        before = found[-1].kind if found and glued else "end"
        token, at = _token(text, at, before, glued)
        found.append(token)
        glued = True
    found.append(Token("end", "", len(text), glued))
    return found


def _token(text: str, at: int, before: Kind, glued: bool) -> tuple[Token, int]:
    """The piece that begins here, and where it ends."""
    match text[at]:
        case "(" | ")" | ":" as sign:
            return Token(sign, sign, at, glued), at + 1
        case '"':
            quoted = _QUOTED.match(text, at)
            if quoted is None:
                raise query_error(text, at, 'this " is never closed: write another after the text')
            return Token("quoted", _ESCAPED.sub(r"\1", quoted[1]), at, glued), quoted.end()
        case "-" if before not in (":", "quoted"):
            return Token("-", "-", at, glued), at + 1
        case _:
            pattern = _VALUE if before == ":" else _WORD
            word = pattern.match(text, at)
            # What no other case took is a letter of a word.
            end = word.end() if word else at + 1
            return Token("word", text[at:end], at, glued), end
