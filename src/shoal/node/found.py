"""A document that was found, as an application sees it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from shoal.base.ids import show_node_id
from shoal.node.messages import Gap
from shoal.protocols.search.documents import Document, Kind, Life

_encode = msgspec.json.Encoder().encode


class AnyFound(msgspec.Struct, frozen=True, kw_only=True):
    """One version of something, its owner's signature checked."""

    owner: str
    """Who put it and signed it, 0x..."""
    name: str
    life: Life
    version: int
    """Of two, the larger one is newer."""
    expires: datetime

    @property
    def address(self) -> str:
        """What it is called everywhere: owner and name."""
        return f"{self.owner}/{self.name}"


class FoundDocument(AnyFound, frozen=True, kw_only=True):
    """One version of a document, its owner's signature checked."""

    content: dict[str, Any]
    kind: Kind

    def as_json(self) -> bytes:
        """One line for programs."""
        fields = msgspec.structs.asdict(self)
        try:
            return _encode(fields)
        except RecursionError:  # just shallow enough to be read, and one level deeper here
            return _encode({**fields, "content": "nested too deeply"})


class Hit(FoundDocument, frozen=True, kw_only=True):
    """What a search has found."""

    score: float
    """How well it matches, by the statistics of the node that had it."""


class Sighting(FoundDocument, frozen=True, kw_only=True):
    """What a standing query has met."""

    gap_before: Gap | None = None
    """Some before this one were lost, since the application did not keep up; or may have been,
    since nodes that had the query are gone."""


class FoundData(AnyFound, frozen=True, kw_only=True):
    """One version of what was put into a space, its owner's signature checked."""

    content: bytes


class DataHit(FoundData, frozen=True, kw_only=True):
    """What a search in a space has found."""

    score: float
    """How well it matches, by this node's own matcher."""


class DataSighting(FoundData, frozen=True, kw_only=True):
    """What a standing query of a space has met."""

    gap_before: Gap | None = None
    """Some before this one were lost, since the application did not keep up; or may have been,
    since nodes that had the query are gone."""


F = TypeVar("F", bound=AnyFound)
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, and of Python's calendar


def found_as(kind: type[F], document: Document, **more: Any) -> F:
    """A document for the application."""
    if issubclass(kind, FoundDocument):
        more |= {"content": document.value, "kind": document.kind}
    else:
        more |= {"content": document.content}
    return kind(
        owner=show_node_id(document.owner),
        name=document.name,
        life=document.life,
        version=document.version,
        expires=datetime.fromtimestamp(min(document.expires_ms, _LAST_MS) / 1000, UTC),
        **more,
    )
