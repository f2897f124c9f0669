"""From text to a query, or to an error that says what to write instead.

any    = all { "OR" all }
all    = part { part }
part   = [ "-" ] ( "(" any ")" | [ field ":" ] value | "*" )
value  = word | word* | "words" | "words"* | number | number..number | < <= > >= = number
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple, cast

from shoal.base.errors import UsageError
from shoal.protocols.search.config import (
    PATH_CHARS_MAX,
    QUERY_CHARS_MAX,
    QUERY_DEPTH_MAX,
    QUERY_PREFIXES_MAX,
    QUERY_TERMS_MAX,
)
from shoal.protocols.search.queries.query import (
    EVERYTHING,
    NUMBER,
    Between,
    Compare,
    Query,
    Sign,
    Words,
    all_of,
    any_of,
    canonical,
    depth,
    negation,
    prefixes,
    terms,
)
from shoal.protocols.search.queries.words import fold, words_of

_COMPARISON = re.compile(r"(<=|>=|<|>|=)(.*)", re.DOTALL)
_RANGE = re.compile(rf"({NUMBER.pattern})?\.\.({NUMBER.pattern})?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_DEEP = f"more than {QUERY_DEPTH_MAX} parentheses in each other: ask in several queries"


def parse(text: str) -> Query:
    """The query that somebody wrote; UsageError says where it is wrong."""
    if len(text) > QUERY_CHARS_MAX:
        raise query_error(text, QUERY_CHARS_MAX, _too_long(len(text)))
    if half := _SURROGATE.search(text):
        raise query_error(text, half.start(), "half a character: write whole ones")
    query = _Parser(text).parse()
    # In full, a query may be larger than what was typed; what others get must parse there.
    in_full = len(canonical(query))
    if in_full > QUERY_CHARS_MAX:
        raise query_error(text, len(text), _too_long(in_full))
    if depth(query) > QUERY_DEPTH_MAX:
        raise query_error(text, len(text), _TOO_DEEP)
    if terms(query) > QUERY_TERMS_MAX:
        problem = f"{terms(query)} words, {QUERY_TERMS_MAX} are the most: ask in several queries"
        raise query_error(text, len(text), problem)
    if prefixes(query) > QUERY_PREFIXES_MAX:
        problem = f"more than {QUERY_PREFIXES_MAX} words with *: write some of them in full"
        raise query_error(text, len(text), problem)
    return query


def _too_long(chars: int) -> str:
    return (
        f"{chars} characters in full, {QUERY_CHARS_MAX} are the most: leave words out, or ask in"
        " several queries"
    )


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._next = 0

    def parse(self) -> Query:
        query = self._any(0)
        if self._token.kind == ")":
            raise self._error(self._token, "nothing is open here: leave this ) out")
        return query

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _error(self, token: Token, problem: str) -> UsageError:
        return query_error(self._text, token.at, problem)

    def _any(self, level: int) -> Query:
        parts = [self._all(level)]
        while self._is_or():
            self._take()
            parts.append(self._all(level))
        return any_of(parts)

    def _is_or(self) -> bool:
        """OR between parts; `OR:` is a field."""
        return self._token.text == "OR" and self._token.kind == "word" and not self._is_field()

    def _is_field(self) -> bool:
        after = self._tokens[self._next + 1]
        return after.kind == ":" and after.glued

    def _all(self, level: int) -> Query:
        if self._token.kind in (")", "end") or self._is_or():
            problem = "something to look for is missing here: write a word, or * for everything"
            raise self._error(self._token, problem)
        parts = []
        while self._token.kind not in (")", "end") and not self._is_or():
            parts.append(self._part(level))
        return all_of(parts)

    def _part(self, level: int) -> Query:
        if self._token.kind == "-":
            minus = self._take()
            if not self._token.glued or self._token.kind in ("-", ")", "end"):
                problem = "- stands once, directly before what must not match: -word or -(a b)"
                raise self._error(minus, problem)
            return negation(self._positive(level))
        return self._positive(level)

    def _positive(self, level: int) -> Query:
        token = self._take()
        match token.kind:
            case "(":
                return self._group(token, level)
            case "word" | "quoted":
                return self._term(token)
            case _:
                problem = "a field is missing before this colon: field:value, or quote the text"
                raise self._error(token, problem)

    def _group(self, opening: Token, level: int) -> Query:
        if level == QUERY_DEPTH_MAX:
            raise self._error(opening, _TOO_DEEP)
        inner = self._any(level + 1)
        if self._token.kind != ")":
            raise self._error(opening, "this ( is never closed: write a ) after what belongs to it")
        self._take()
        return inner

    def _term(self, first: Token) -> Query:
        if self._token.kind == ":" and self._token.glued:
            self._take()
            path = self._path(first)
            value = self._take()
            if value.kind == "end" or not value.glued:
                problem = "a value must follow the colon without a space: field:value"
                raise self._error(value, problem)
            if value.kind not in ("word", "quoted"):
                problem = "a field has one word, number or quoted text: field:a OR field:b"
                raise self._error(value, problem)
            return self._value(path, value)
        if first.kind == "word" and first.text in ("AND", "NOT"):
            instead = "parts that stand together must all match" if first.text == "AND" else "use -"
            problem = f"{first.text} is not needed: {instead}; to look for it, write it small"
            raise self._error(first, problem)
        return self._value(None, first)

    def _path(self, token: Token) -> str:
        path = fold(token.text)
        if not path or len(path) > PATH_CHARS_MAX or (token.kind == "word" and "*" in path):
            problem = f"a field's name has 1 to {PATH_CHARS_MAX} characters; with * in it, quote it"
            raise self._error(token, problem)
        return path

    def _value(self, path: str | None, token: Token) -> Query:
        if token.kind == "quoted":
            return self._words(path, token, token.text, prefix=self._star())
        self._end_of_term()
        text = token.text
        if comparison := _COMPARISON.fullmatch(text):
            return self._comparison(path, token, comparison[1], comparison[2])
        bounds = _RANGE.fullmatch(text)
        if bounds and text != "..":
            return self._range(path, token, bounds[1], bounds[2])
        if text == "*" and path is None:
            return EVERYTHING
        if path is not None and text.startswith("//"):
            raise self._error(token, 'if this is an address, quote it: "https://example.org"')
        if path is None or not NUMBER.fullmatch(text):
            return self._words(path, token, text.removesuffix("*"), prefix=text.endswith("*"))
        number = self._number(token, text)
        equal = Between(path, number, number)
        # Texts have no signs; of what has none, who knows whether it is kept as text or as number?
        return equal if text[0] in "+-" else any_of([equal, Words(path, words_of(text))])

    def _star(self) -> bool:
        """Whether a * follows quoted text."""
        star = self._token.glued and self._token.kind == "word" and self._token.text == "*"
        if star:
            self._take()
        self._end_of_term()
        return star

    def _end_of_term(self) -> None:
        if self._token.glued and self._token.kind in ("word", "quoted", ":"):
            raise self._error(self._token, "put a space before this, or quote all of it")

    def _words(self, path: str | None, token: Token, text: str, *, prefix: bool) -> Query:
        if token.kind == "word" and "*" in text:
            raise self._error(token, "* stands at the end of a word only: begin*")
        if token.kind == "word" and text.startswith("-"):
            raise self._error(token, "write - before the field: -field:word")
        words = words_of(text)
        if not words:
            problem = f"{token.text[:20]!r} holds no letters or digits: write some, or leave it out"
            raise self._error(token, problem)
        return Words(path, words, prefix)

    def _comparison(self, path: str | None, token: Token, sign: str, text: str) -> Query:
        number = self._number(token, text)
        if path is None:
            raise self._error(token, f"of which field? Write its name before it: speed:{sign}25")
        return (
            Between(path, number, number)
            if sign == "="
            else Compare(path, cast(Sign, sign), number)
        )

    def _range(self, path: str | None, token: Token, low: str | None, high: str | None) -> Query:
        if low is None or high is None:
            raise self._error(token, "a range has two ends: 5..10; for one write >=5 or <=10")
        if path is None:
            raise self._error(token, "of which field? Write its name before it: speed:5..10")
        between = Between(path, self._number(token, low), self._number(token, high))
        if between.low > between.high:
            raise self._error(token, f"this range ends below its beginning: {high}..{low}")
        return between

    def _number(self, token: Token, text: str) -> float:
        if not NUMBER.fullmatch(text):
            problem = f"{text[:20]!r} is no number: compare as in speed:>=2.5; words need no sign"
            raise self._error(token, problem)
        number = float(text) + 0.0  # without the sign of -0
        if math.isinf(number):
            raise self._error(token, "too large for a number: the largest is about 1.7e308")
        return number


# What is typed, cut into pieces: words, "quoted text" and signs.


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
