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
from typing import Any, Protocol

from shoal.base.errors import UsageError
from shoal.protocols.search.documents import KINDS, SPACE_NAME, Document
from shoal.protocols.search.payloads import BubbleType
from shoal.protocols.search.queries.hits import Hit

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
