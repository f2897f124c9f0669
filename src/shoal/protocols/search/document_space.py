"""The space that every node has: JSON documents, met by the query language of queries/."""

from __future__ import annotations

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX
from shoal.protocols.search.documents import DOCUMENTS, Document
from shoal.protocols.search.payloads import BubbleType
from shoal.protocols.search.queries.documents import Document as View
from shoal.protocols.search.queries.documents import document_of
from shoal.protocols.search.queries.index import Index
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import Query
from shoal.protocols.search.watch_filter import WatchFilter


class DocumentSpace:
    """Documents and their queries."""

    name = DOCUMENTS
    first = int(BubbleType.QUERY)
    failures = 0  # the language reads everything, or refuses it

    def read(self, query: str | bytes) -> Query:
        """A query is text."""
        if not isinstance(query, str):
            raise UsageError(
                f"a query of type {type(query).__name__}: give text, as in 'title:air'"
            )
        return parse(query)

    def view(self, document: Document) -> View:
        return document_of(document.kind, document.value)

    def judge(self, query: Query, view: View, told: float) -> float | None:
        """The score is that of the node that has it: only there its words can be counted."""
        return told if matches(query, view) else None

    def collection(self) -> Index[bytes]:
        # What it takes is part of what shelves count: its own bound would be a second one.
        return Index(bytes_max=INT63_MAX)

    def filter(self) -> WatchFilter:
        return WatchFilter()
