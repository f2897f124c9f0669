"""Documents in memory: by id, by what they say, and by when they have to go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ordered import Ordered
from shoal.protocols.search.documents import DOCUMENTS, Document
from shoal.protocols.search.queries.documents import document_of
from shoal.protocols.search.queries.footprint import (
    ENTRY_BYTES,
    NUMBER_ENTRY_BYTES,
    bytes_of,
    field_bytes,
    word_bytes,
)
from shoal.protocols.search.spaces import Collection, Spaces

DOCUMENT_OVERHEAD_BYTES = 1024  # what the bookkeeping of a document costs; deletions count, too


class Held(msgspec.Struct, frozen=True):
    """A document that is kept, how long, and what it takes."""

    document: Document
    expires_ns: int
    size: int


def footprint(document: Document) -> int:
    """What keeping a document takes at most. Its words are counted as if no other document had
    them: what an owner's share is must not depend on what others put."""
    size = DOCUMENT_OVERHEAD_BYTES + len(document.content)
    if document.deleted or document.space != DOCUMENTS:
        return size
    view = document_of(document.kind, document.value)
    size += bytes_of(view)
    for texts in (view.texts, view.labels):
        for path, word in {(text.path, word) for text in texts for word in text.words}:
            size += word_bytes(word) + field_bytes(path) + ENTRY_BYTES
    for number in view.numbers:
        size += field_bytes(number.path) + NUMBER_ENTRY_BYTES
    return size


class Shelf:
    """Documents by id. Deletions are kept, but not found."""

    def __init__(self, bytes_max: int, spaces: Spaces) -> None:
        self.used = 0
        self._spaces = spaces
        self.bytes_max = bytes_max
        self._held: dict[bytes, Held] = {}
        self._expiring = Ordered()
        self._collections: dict[str, Collection] = {}  # by space

    def __len__(self) -> int:
        return len(self._held)

    def get(self, id: bytes) -> Held | None:
        return self._held.get(id)

    def all(self) -> Iterator[Held]:
        """Everything, in the order in which it came."""
        return iter(self._held.values())

    def add(self, held: Held) -> None:
        """A document whose id is not here, and for which there is room."""
        document, id = held.document, held.document.id
        if id in self._held or self.used + held.size > self.bytes_max:
            raise InvariantViolated(f"{id.hex()} is held, or {held.size} bytes are too many")
        if not document.deleted:
            view = self._spaces[document.space].view(document)
            self._collection(document.space).put(id, view)
        self._held[id] = held
        self._expiring.add(held.expires_ns, (id, None))
        self.used += held.size

    def remove(self, id: bytes) -> Held:
        """Let go of a document that is here."""
        held = self._held.pop(id)
        self._collection(held.document.space).remove(id)
        self._expiring.remove(held.expires_ns, (id, None))
        self.used -= held.size
        return held

    def prolong(self, id: bytes, expires_ns: int) -> None:
        """Keep a document that is here until then."""
        held = self._held[id]
        self._expiring.remove(held.expires_ns, (id, None))
        self._held[id] = msgspec.structs.replace(held, expires_ns=expires_ns)
        self._expiring.add(expires_ns, (id, None))

    def expired(self, now_ns: int) -> list[bytes]:
        """Which documents have to go."""
        return [id for id, _ in self._expiring.up_to(now_ns)]

    def search(self, space: str, query: Any, limit: int) -> list[tuple[Document, float]]:
        """What matches, best first, with its score."""
        found = self._collection(space).search(query, limit)
        return [(self._held[hit.key].document, hit.score) for hit in found]

    def _collection(self, space: str) -> Collection:
        if space not in self._collections:
            self._collections[space] = self._spaces[space].collection()
        return self._collections[space]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the books do not agree, or there is too much."""
        if sum([held.size for held in self._held.values()]) != self.used:
            raise InvariantViolated(f"{self.used} bytes are counted, others are held")
        if self.used > self.bytes_max:
            raise InvariantViolated(f"{self.used} bytes are held, {self.bytes_max} are the most")
        order = [(expires_ns, slot[0]) for expires_ns, slot in self._expiring.entries()]
        if order != sorted((held.expires_ns, id) for id, held in self._held.items()):
            raise InvariantViolated(f"{len(order)} documents expire, {len(self._held)} are held")
        indexed = sum(collection.bytes for collection in self._collections.values())
        if indexed > self.used:
            raise InvariantViolated(f"{indexed} bytes of index in {self.used} of all")
        found = sum(not held.document.deleted for held in self._held.values())
        if sum(map(len, self._collections.values())) != found:
            raise InvariantViolated(f"{found} documents should be found, not others")
