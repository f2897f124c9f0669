"""Which queries meet which data. Bubbles have types, and payloads that only their matcher reads.

A matcher reads the queries of one type and the data of another, and says whether they match. It
gives a collection for the data that a node holds: an index, or for matchers without one a
ScanCollection. Bubbles whose type nobody registered are forwarded like all others, and kept by
nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from shoal.base.errors import UsageError

Key = TypeVar("Key", bound=Hashable)
Q = TypeVar("Q")
D = TypeVar("D")
Q_in = TypeVar("Q_in", contravariant=True)
D_in = TypeVar("D_in", contravariant=True)


class Hit(NamedTuple, Generic[Key]):
    """A document that matches, and how well."""

    key: Key
    score: float


class Collection(Protocol[Key, Q_in, D_in]):
    """Data by key, in bounded memory."""

    def put(self, key: Key, document: D_in) -> bool:
        """Add or replace; False: there is no room, and nothing changed."""
        ...

    def remove(self, key: Key) -> bool:
        """Forget; False: there was none."""
        ...

    def search(self, query: Q_in, limit: int) -> list[Hit[Key]]:
        """The best that match, best first; of equal ones, the one put last."""
        ...

    def __len__(self) -> int: ...


class Matcher(Protocol[Q, D]):
    """How queries of one type meet data of another."""

    def read_query(self, payload: bytes) -> Q:
        """Raises RemoteError."""
        ...

    def read_document(self, payload: bytes) -> D:
        """Raises RemoteError."""
        ...

    def matches(self, query: Q, document: D) -> bool: ...

    def collection(self, bytes_max: int) -> Collection[bytes, Q, D]: ...


class Pair(NamedTuple):
    """A type of queries, a type of data, and how they meet."""

    query_type: int
    data_type: int
    matcher: Matcher[Any, Any]


class Matchers:
    """What a node can match."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], Pair] = {}

    def register(self, query_type: int, data_type: int, matcher: Matcher[Any, Any]) -> None:
        """From now on, queries of this type are for data of that type."""
        if (query_type, data_type) in self._pairs:
            raise UsageError(
                f"queries of type {query_type} and data of type {data_type} have a matcher:"
                " choose another type"
            )
        self._pairs[query_type, data_type] = Pair(query_type, data_type, matcher)

    def of_query(self, query_type: int) -> list[Pair]:
        """What a query meets."""
        return [pair for pair in self._pairs.values() if pair.query_type == query_type]

    def of_data(self, data_type: int) -> list[Pair]:
        """What data meets: which standing queries must be asked."""
        return [pair for pair in self._pairs.values() if pair.data_type == data_type]


class ScanCollection(Generic[Key, Q, D]):
    """Data without an index: every search looks at all of it. All hits are equal."""

    def __init__(
        self,
        matches: Callable[[Q, D], bool],
        bytes_of: Callable[[D], int],
        bytes_max: int,
    ) -> None:
        self._matches = matches
        self._bytes_of = bytes_of
        self._bytes_max = bytes_max
        self._held: dict[Key, tuple[D, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: Key, document: D) -> bool:
        """Add or replace; False: there is no room, and nothing changed."""
        size = self._bytes_of(document)
        old = self._held[key][1] if key in self._held else 0
        if self._bytes - old + size > self._bytes_max:
            return False
        self.remove(key)
        self._held[key] = (document, size)
        self._bytes += size
        return True

    def remove(self, key: Key) -> bool:
        """Forget; False: there was none."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        self._bytes -= held[1]
        return True

    def search(self, query: Q, limit: int) -> list[Hit[Key]]:
        """Those that match, the one put last first."""
        hits: list[Hit[Key]] = []
        for key, (document, _) in reversed(self._held.items()):
            if len(hits) >= limit:
                break
            if self._matches(query, document):
                hits.append(Hit(key, 0.0))
        return hits
