"""What a query is. Only parser.py makes queries: their words are folded, their sizes bounded, and
two that say the same in another order are equal."""

from __future__ import annotations

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
