"""How parts become one query: what says the same becomes the same."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.protocols.search.queries.canonical import canonical
from shoal.protocols.search.queries.query import AllOf, AnyOf, Not, Query


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
