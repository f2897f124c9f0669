"""What the campaign of search over sockets and its worker processes tell each other, beside what
all workers say (worker_words.py). Nodes and documents are numbers."""

from __future__ import annotations

from typing import Any

import msgspec

from campaigns.worker_words import Figures, Look, Opened, Work
from shoal.protocols.search.documents.document import Life


class SearchWork(Work, frozen=True):
    """To a worker, once."""

    beat_ms: float | None
    """Between pings of neighbours; None: as the protocol has it."""


# To a worker


class Put(msgspec.Struct, frozen=True, tag=True):
    """Have a document found."""

    node: int
    document: int
    content: dict[str, Any]
    life: Life


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Search for a document's needle."""

    node: int
    document: int
    query: str
    confidence: float


ToWorker = Put | Ask | Look


# From a worker


class Kept(msgspec.Struct, frozen=True, tag=True):
    """put() has returned."""

    document: int
    nodes: int
    """It is on its way to so many."""


class Answered(msgspec.Struct, frozen=True, tag=True):
    """A search is over."""

    document: int
    """Whose needle was looked for."""
    found: tuple[str, ...]
    """Names of documents, in the order in which they came."""
    confidence: float
    asked: int
    nodes: float
    """Of the network, as the one that asked believes."""
    first_ms: float | None
    """Until the first hit."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A document was not taken, or a search not begun."""

    document: int
    reason: str


class NodeFigures(msgspec.Struct, frozen=True):
    """One node since its start."""

    number: int
    messages: dict[str, int]
    """Of search, that it got, by what they are."""
    bytes: int
    """Theirs, without what links add."""
    rejected: dict[str, int]
    held: int
    """Documents that it keeps now."""
    nodes: float
    """Of the whole network, as it was measured last; 0: it knows nothing yet."""
    degree: int


SearchFigures = Figures[NodeFigures]

FromWorker = Opened | Kept | Answered | Refused | SearchFigures


def name_of(document: int) -> str:
    """What a document is called."""
    return f"document {document}"
