"""What a query is. Only parser.py makes queries: their words are folded, their sizes bounded, and
two that say the same in another order are equal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

Sign = Literal["<", "<=", ">", ">="]


class Words(msgspec.Struct, frozen=True, gc=False):
    """These words in a row, in one text of the field, or of any field; with `prefix`, the last one
    may go on."""

    path: str | None
    words: tuple[str, ...]
    prefix: bool = False

    @property
    def whole(self) -> tuple[str, ...]:
        """Its words, without one that may go on."""
        return self.words[:-1] if self.prefix else self.words


class Compare(msgspec.Struct, frozen=True, gc=False):
    """A number of this field is below or above another."""

    path: str
    sign: Sign
    number: float


class Between(msgspec.Struct, frozen=True, gc=False):
    """A number of this field is neither below `low` nor above `high`."""

    path: str
    low: float
    high: float


class Not(msgspec.Struct, frozen=True, gc=False):
    """The part does not match."""

    part: Query


class AllOf(msgspec.Struct, frozen=True, gc=False):
    """Every part matches: so with none, anything does."""

    parts: tuple[Query, ...] = ()


class AnyOf(msgspec.Struct, frozen=True, gc=False):
    """One part matches, or more."""

    parts: tuple[Query, ...]


Query: TypeAlias = Words | Compare | Between | Not | AllOf | AnyOf

EVERYTHING = AllOf()

# The one text of a query: what it is stored, compared and sent as.


NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BARE_PATH = re.compile(r'[^\s()":*-][^\s()":*]*')


def canonical(query: Query) -> str:
    """Text that parses to this query, and to no other."""
    match query:
        case Words(path, words, prefix):
            return _field(path) + _words(words, prefix, has_field=path is not None)
        case Compare(path, sign, number):
            return f"{_field(path)}{sign}{_number(number)}"
        case Between(path, low, high) if low == high:
            return f"{_field(path)}={_number(low)}"
        case Between(path, low, high):
            return f"{_field(path)}{_number(low)}..{_number(high)}"
        case Not(part):
            return f"-{_inside(part)}"
        case AllOf(parts):
            return " ".join(map(_inside, parts)) or "*"
        case AnyOf(parts):
            return " OR ".join(map(_inside, parts))


def depth(query: Query) -> int:
    """How many parentheses stand in each other in its text."""
    match query:
        case Not(part):
            parts: tuple[Query, ...] = (part,)
        case AllOf(parts) | AnyOf(parts):
            pass
        case _:
            return 0
    return max((depth(part) + _is_group(part) for part in parts), default=0)


def terms(query: Query) -> int:
    """How many words and comparisons it holds."""
    match query:
        case Words(_, words):
            return len(words)
        case Not(part):
            return terms(part)
        case AllOf(parts) | AnyOf(parts):
            return sum(map(terms, parts))
        case _:
            return 1


def prefixes(query: Query) -> int:
    """How many words may go on."""
    match query:
        case Words(prefix=prefix):
            return int(prefix)
        case Not(part):
            return prefixes(part)
        case AllOf(parts) | AnyOf(parts):
            return sum(map(prefixes, parts))
        case _:
            return 0


def _is_group(query: Query) -> bool:
    return isinstance(query, AllOf | AnyOf) and bool(query.parts)


def _inside(query: Query) -> str:
    text = canonical(query)
    return f"({text})" if _is_group(query) else text


def _field(path: str | None) -> str:
    if path is None:
        return ""
    if _BARE_PATH.fullmatch(path):
        return f"{path}:"
    quoted = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}":'


def _words(words: tuple[str, ...], prefix: bool, *, has_field: bool) -> str:
    text = " ".join(words)
    # Bare, a field's number would be looked for among its numbers, too.
    if len(words) > 1 or (has_field and not prefix and NUMBER.fullmatch(text)):
        text = f'"{text}"'
    return f"{text}*" if prefix else text


def _number(number: float) -> str:
    return repr(number).removesuffix(".0")


# How parts become one query: what says the same becomes the same.


def all_of(parts: Iterable[Query]) -> Query:
    """Every part matches."""
    inner = (part.parts if isinstance(part, AllOf) else (part,) for part in parts)
    ordered = _ordered(one for few in inner for one in few)
    return ordered[0] if len(ordered) == 1 else AllOf(ordered)


def any_of(parts: Iterable[Query]) -> Query:
    """One part matches, or more; there is at least one."""
    inner = (part.parts if isinstance(part, AnyOf) else (part,) for part in parts)
    ordered = _ordered(one for few in inner for one in few)
    return ordered[0] if len(ordered) == 1 else AnyOf(ordered)


def negation(part: Query) -> Query:
    """The part does not match."""
    return part.part if isinstance(part, Not) else Not(part)


def _ordered(parts: Iterable[Query]) -> tuple[Query, ...]:
    """Each once, in the order of their texts."""
    by_text = {canonical(part): part for part in parts}
    return tuple(by_text[text] for text in sorted(by_text))
