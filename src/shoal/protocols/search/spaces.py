"""Spaces: which questions meet which data.

A space is what the thesis calls a pair of bubble types, with the rule by which they match: data of
one type is kept where it comes by, and a question of the other type is answered from it. Each space
has two more types, for standing queries and for lookups. Search itself has one space, the documents
(document_space.py); applications add their own (matched_space.py). A node handles the bubbles of
the spaces that it knows, and forwards all others.

Everything else is the same in all spaces: signatures, versions, deletions, how long data is kept,
whose share it is, how bubbles are cast. Sizes are not: who has a space, and what is started in it,
is measured for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from heapq import nlargest
from itertools import count
from typing import Any, Protocol

from shoal.base.errors import UsageError
from shoal.base.ids import INT63_MAX
from shoal.protocols.search.documents.document import DOCUMENTS, KINDS, SPACE_NAME, Document
from shoal.protocols.search.payloads import QUESTION_BYTES_MAX, BubbleType
from shoal.protocols.search.queries.document_view import Document as View
from shoal.protocols.search.queries.document_view import document_of
from shoal.protocols.search.queries.index import Hit, Index
from shoal.protocols.search.queries.matching import matches
from shoal.protocols.search.queries.parser import parse
from shoal.protocols.search.queries.query import Query
from shoal.protocols.search.watches.watch_filter import WatchFilter

SPACES_MAX = 8  # of one node: each has three columns in every Ping, and there are 32 of them

_DOMAIN = b"shoal/search/space\0"
_FIRST = 2**30  # the upper half of the numbers that are there; the lower ones are given by hand
_EACH = len(BubbleType)


class Collection(Protocol):
    """Data of one space that a node keeps, by id."""

    def put(self, key: bytes, document: Any, /) -> bool:
        """Add what the space's view() gave."""
        ...

    def remove(self, key: bytes, /) -> bool:
        """Forget; False: there was none."""
        ...

    def search(self, query: Any, limit: int, /) -> list[Hit[bytes]]:
        """The best that match, best first; of equal ones, the one put last."""
        ...

    @property
    def bytes(self) -> int:
        """What it takes, about."""
        ...

    def __len__(self) -> int: ...


class Filter(Protocol):
    """Standing queries of one space, by number."""

    def add(self, number: int, query: Any, /) -> None: ...

    def remove(self, number: int, /) -> None: ...

    def candidates(self, view: Any, /) -> list[int]:
        """Those that could match; all that do are among them."""
        ...

    def __len__(self) -> int: ...


class Space(Protocol):
    """One rule by which questions and data match."""

    name: str
    first: int
    """The number of its first bubble type."""
    failures: int
    """How often its rule could not be applied to what others sent."""

    def read(self, query: str | bytes) -> Any:
        """A question, ready to be asked; UsageError if it is none."""
        ...

    def view(self, document: Document) -> Any:
        """What of a document the rule looks at."""
        ...

    def judge(self, query: Any, view: Any, told: float) -> float | None:
        """The score of data that somebody says to match, `told` being the one that came with it;
        None: it does not."""
        ...

    def collection(self) -> Collection:
        """An empty one."""
        ...

    def filter(self) -> Filter:
        """An empty one."""
        ...


class Columns:
    """What is measured for a space, over the whole network."""

    def __init__(self, space: str) -> None:
        suffix = f".{space}" if space else ""
        self.query = f"s:shoal.query{suffix}"
        """Bytes a second of questions that are started."""
        self.data = f"s:shoal.data{suffix}"
        self.members = f"s:shoal.members{suffix}" if space else ""
        """How many nodes have the space; all have the documents, and need no column for that."""


class Spaces:
    """The spaces that a node has."""

    def __init__(self, documents: Space) -> None:
        self._spaces: dict[str, Space] = {documents.name: documents}

    def __iter__(self) -> Iterator[Space]:
        return iter(self._spaces.values())

    def __getitem__(self, name: str) -> Space:
        try:
            return self._spaces[name]
        except KeyError:
            raise UsageError(
                f"no space {name!r} on this node: open it first, node.space({name!r}, matcher)"
            ) from None

    def add(self, space: Space) -> None:
        """One of an application, until the node's end."""
        if space.name in self._spaces:
            raise UsageError(f"space {space.name!r} is open on this node: use the one there is")
        if len(self._spaces) > SPACES_MAX:
            raise UsageError(
                f"space {space.name!r} is one more than {SPACES_MAX}: put several kinds of data"
                " into one, and tell them apart in its matcher"
            )
        for other in self._spaces.values():
            if other.first == space.first:
                raise UsageError(
                    f"spaces {other.name!r} and {space.name!r} have the same bubble types, by"
                    " chance: choose another name"
                )
        self._spaces[space.name] = space

    def of_kind(self, kind: int) -> tuple[Space, BubbleType] | None:
        """Whose bubbles these are, and what is in them; None: somebody else's."""
        for space in self._spaces.values():
            if 0 <= kind - space.first < _EACH:
                return space, BubbleType(kind - space.first + BubbleType.QUERY)
        return None


def kind_of(space: Space, type: BubbleType) -> int:
    """The number on the bubbles of a space."""
    return space.first + type - BubbleType.QUERY


def first_type(name: str) -> int:
    """The bubble types of an application's space follow from its name, so that nobody has to give
    out numbers: 2^28 sets of four. Two of a hundred spaces share theirs once in 50,000 networks."""
    if not re.fullmatch(SPACE_NAME, name) or name in KINDS:
        raise UsageError(
            f"space {name!r}: write 1 to 32 small letters, digits and ._- behind a letter, and none"
            f" of {', '.join(KINDS)}"
        )
    return _FIRST + int.from_bytes(sha256(_DOMAIN + name.encode()).digest()[:4]) % 2**28 * _EACH


# The space that every node has: JSON documents, met by the query language of queries/.


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


# Spaces of applications: bytes that a matcher of theirs compares.
#
# The matcher runs wherever a question meets data: at strangers' nodes that have the space as well,
# and once more at the node that asked. So what a search tells its application is signed data,
# judged by its own matcher, whoever sent it.
#
# What it is given comes from anybody. If it raises, or says what is no score, that counts as no
# match and as a failure, and the node goes on. It runs on the node's only thread: as long as it
# takes, nothing else is done.


_INFINITY = float("inf")


class Matcher(Protocol):
    """How the questions of a space meet its data."""

    def match(self, data: bytes, query: bytes) -> float | None:
        """How well they match, 0 or more; None: not at all. The same answer at every node, or
        hits are lost. Both may have been made up to do harm."""
        ...


class MatchedSpace:
    """A space whose rule is a matcher."""

    def __init__(self, name: str, matcher: Matcher) -> None:
        self.name = name
        self.first = first_type(name)
        if not callable(getattr(matcher, "match", None)):
            raise UsageError(
                f"a matcher of type {type(matcher).__name__}: give an object with"
                " match(data, query), which gives a score or None"
            )
        self.failures = 0
        self.problem = ""
        """The last failure, for whoever wrote the matcher."""
        self._matcher = matcher

    def read(self, query: str | bytes) -> bytes:
        """A question is bytes, as they are."""
        if not isinstance(query, bytes) or len(query) > QUESTION_BYTES_MAX:
            raise UsageError(
                f"a question in space {self.name!r} is {QUESTION_BYTES_MAX} bytes at most, not"
                f" {len(query)} of type {type(query).__name__}"
            )
        return query

    def view(self, document: Document) -> bytes:
        return document.content

    def judge(self, query: bytes, view: bytes, told: float = 0.0) -> float | None:
        """By our own matcher, whatever we were told."""
        try:
            score = self._matcher.match(view, query)
            # Who writes `return a == b` means no match by False, not a score of zero.
            given = None if score is None or score is False else float(score)
        except Exception as error:  # whatever it stumbles over: remote bytes are no fault of ours
            self._failed(f"{type(error).__name__}: {error}")
            return None
        if given is not None and not 0 <= given < _INFINITY:
            self._failed(f"a score of {score!r}: 0 or more, or None")
            return None
        return given

    def collection(self) -> Scanned:
        return Scanned(self)

    def filter(self) -> AllWatches:
        return AllWatches()

    def _failed(self, problem: str) -> None:
        self.failures += 1
        self.problem = problem


class Scanned:
    """Data without an index: a question looks at all of it."""

    def __init__(self, space: MatchedSpace) -> None:
        self._space = space
        self._numbers = count()
        self._held: dict[bytes, tuple[int, bytes]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: bytes, document: bytes) -> bool:
        """Add or replace."""
        self.remove(key)
        self._held[key] = next(self._numbers), document
        self.bytes += len(document)
        return True

    def remove(self, key: bytes) -> bool:
        """Forget; False: there was none."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        self.bytes -= len(held[1])
        return True

    def search(self, query: bytes, limit: int) -> list[Hit[bytes]]:
        """The best that match, best first; of equal ones, the one put last."""
        found = [
            (score, number, key)
            for key, (number, data) in self._held.items()
            if (score := self._space.judge(query, data)) is not None
        ]
        return [Hit(key, score) for score, _, key in nlargest(limit, found)]


class AllWatches:
    """Standing queries of which any could match: only the matcher knows."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, query: bytes) -> None:
        self._numbers[number] = None

    def remove(self, number: int) -> None:
        del self._numbers[number]

    def candidates(self, view: bytes) -> list[int]:
        """All of them."""
        return list(self._numbers)
