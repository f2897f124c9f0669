"""What this node keeps: its own documents, and those of others, in bounded memory.

Which version stays is in documents.py: the newest. When there is no room for another's document,
whoever has the most kept here, the newcomer included, loses what would expire soonest. So an owner
that puts more than its share loses its own; what others have here stays. Documents of this node's
own applications have a shelf of their own, which nobody else fills.

A managed document is kept for some time after its owner cast it last. All others are kept until
they expire, if nothing newer comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec

from shoal.base.containers import Ordered
from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, show_node_id
from shoal.base.units import MIB, S_NS
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.search.documents.document import DOCUMENTS, LIFE_NS_MAX, Document
from shoal.protocols.search.queries.document_view import (
    ENTRY_BYTES,
    NUMBER_ENTRY_BYTES,
    bytes_of,
    document_of,
    field_bytes,
    word_bytes,
)
from shoal.protocols.search.spaces import Collection, Spaces

OTHERS_BYTES_MAX = 128 * MIB  # as counted, about 6,600 documents of 20 words
OWN_BYTES_MAX = 16 * MIB  # a thousand streams and topics of this node's applications
EVICTIONS_MAX = 64  # documents that have to go for one: a large one must not cost us all our time
MANAGED_REFRESH_NS = 10 * 60 * S_NS  # the owner of a managed document casts it so often
MANAGED_LEASE_NS = 15 * 60 * S_NS  # and it is kept so long, in case that it takes its time


class Verdict(Enum):
    """What became of a document that was put."""

    NEW = "new"
    NEWER = "newer"  # and an older version is gone
    AGAIN = "again"  # the same as before
    OLDER = "older"  # than what we keep
    PASSING = "passing"  # instant: not kept by anybody
    EXPIRED = "expired"
    LASTING = "lasting"  # longer than its life may be
    FULL = "full"


class Holdings:
    """Documents by id: search, get and put."""

    def __init__(
        self,
        spaces: Spaces,
        others_bytes_max: int = OTHERS_BYTES_MAX,
        own_bytes_max: int = OWN_BYTES_MAX,
        wall: WallClock | None = None,
    ) -> None:
        self._wall = WallClock() if wall is None else wall
        self.equivocations = 0
        """How often an owner had signed two documents as one version."""
        self._own = Shelf(own_bytes_max, spaces)
        self._others = Shelf(others_bytes_max, spaces)
        self._by_owner: dict[NodeId, Ordered] = {}  # documents of others, by expiry
        self._share_of: dict[NodeId, int] = {}  # bytes
        self._shares = Ordered()  # owners, by their bytes

    def __len__(self) -> int:
        return len(self._own) + len(self._others)

    @property
    def used(self) -> int:
        """Bytes, about."""
        return self._own.used + self._others.used

    def get(self, id: bytes, now_ns: int) -> Document | None:
        """The newest version that we have; it may be a deletion."""
        found = [held for shelf in (self._own, self._others) if (held := shelf.get(id))]
        return max(
            (held.document for held in found if held.expires_ns > now_ns),
            key=lambda document: document.rank,
            default=None,
        )

    def search(
        self, query: Any, limit: int, now_ns: int, space: str = DOCUMENTS
    ) -> list[tuple[Document, float]]:
        """The best documents that match, best first, each with its score."""
        self.expire(now_ns)
        found: dict[bytes, tuple[Document, float]] = {}
        for shelf in (self._own, self._others):
            for document, score in shelf.search(space, query, limit):
                newest = self.get(document.id, now_ns)
                if newest is not None and newest.rank == document.rank:
                    found.setdefault(document.id, (document, score))
        return sorted(found.values(), key=lambda one: -one[1])[:limit]

    def put(self, document: Document, now_ns: int) -> Verdict:
        """Keep a document that somebody cast; its signature was checked."""
        return self._put(document, self._others, now_ns)

    def put_own(self, document: Document, now_ns: int) -> Verdict:
        """Keep a document of one of our own applications."""
        return self._put(document, self._own, now_ns)

    def expire(self, now_ns: int) -> None:
        """Let go of what is past its time."""
        for id in self._own.expired(now_ns):
            self._own.remove(id)
        for id in self._others.expired(now_ns):
            self._remove(id)

    def _put(self, document: Document, shelf: Shelf, now_ns: int) -> Verdict:
        self.expire(now_ns)
        left_ns = document.expires_ns - self._wall.read(now_ns)
        if left_ns <= 0:
            return Verdict.EXPIRED
        if left_ns > LIFE_NS_MAX[document.life]:
            return Verdict.LASTING
        if document.life == "instant":
            return Verdict.PASSING
        known = shelf.get(document.id)
        expires_ns = _kept_until(document, now_ns, left_ns)
        if known is not None and document.rank <= known.document.rank:
            if document.rank == known.document.rank:
                if expires_ns > known.expires_ns:
                    self._prolong(known, shelf, expires_ns)
                return Verdict.AGAIN
            self.equivocations += document.version == known.document.version
            return Verdict.OLDER
        new = Held(document, expires_ns, footprint(document))
        if known is not None:
            self.equivocations += document.version == known.document.version
            self._take(known, shelf)
        if not self._make_room(new, shelf):
            if known is not None:
                self._give(known, shelf)
            return Verdict.FULL
        self._give(new, shelf)
        return Verdict.NEW if known is None else Verdict.NEWER

    def _make_room(self, new: Held, shelf: Shelf) -> bool:
        if new.size > shelf.bytes_max:
            return False
        evicted: list[Held] = []
        while shelf.used + new.size > shelf.bytes_max:
            victim = None if shelf is self._own else self._victim(new)
            if victim is None or len(evicted) == EVICTIONS_MAX:
                for held in evicted:  # for nothing
                    self._give(held, shelf)
                return False
            evicted.append(self._remove(victim))
        return True

    def _victim(self, new: Held) -> bytes | None:
        """Who has to go for a newcomer: a document of the owner with the most."""
        greatest = NodeId(self._shares.last()[0])
        if self._share_of[greatest] <= self._share_of.get(new.document.owner, 0) + new.size:
            return None
        return self._by_owner[greatest].first()[0]

    def _prolong(self, held: Held, shelf: Shelf, expires_ns: int) -> None:
        id, owner = held.document.id, held.document.owner
        shelf.prolong(id, expires_ns)
        if shelf is self._others:
            self._by_owner[owner].remove(held.expires_ns, (id, None))
            self._by_owner[owner].add(expires_ns, (id, None))

    def _give(self, held: Held, shelf: Shelf) -> None:
        shelf.add(held)
        if shelf is self._others:
            owner = held.document.owner
            order = self._by_owner.setdefault(owner, Ordered())
            order.add(held.expires_ns, (held.document.id, None))
            self._count(owner, held.size)

    def _take(self, held: Held, shelf: Shelf) -> None:
        if shelf is self._others:
            self._remove(held.document.id)
        else:
            shelf.remove(held.document.id)

    def _remove(self, id: bytes) -> Held:
        held = self._others.remove(id)
        owner = held.document.owner
        self._by_owner[owner].remove(held.expires_ns, (id, None))
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self._count(owner, -held.size)
        return held

    def _count(self, owner: NodeId, size: int) -> None:
        share = self._share_of.pop(owner, 0)
        if share:
            self._shares.remove(share, (owner, None))
        share += size
        if share:
            self._share_of[owner] = share
            self._shares.add(share, (owner, None))

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the books do not agree, or there is too much."""
        self._own.check_invariants()
        self._others.check_invariants()
        shares: dict[NodeId, int] = {}
        orders: dict[NodeId, list[tuple[int, bytes]]] = {}
        for held in self._others.all():
            owner = held.document.owner
            shares[owner] = shares.get(owner, 0) + held.size
            orders.setdefault(owner, []).append((held.expires_ns, held.document.id))
        entries = [(share, NodeId(slot[0])) for share, slot in self._shares.entries()]
        if shares != self._share_of or sorted(entries) != sorted(
            (share, owner) for owner, share in shares.items()
        ):
            names = [show_node_id(owner) for owner in shares.keys() ^ self._share_of.keys()]
            raise InvariantViolated(f"shares are counted wrongly: {names}")
        counted = {
            owner: [(expires_ns, slot[0]) for expires_ns, slot in order.entries()]
            for owner, order in self._by_owner.items()
        }
        if counted != {owner: sorted(order) for owner, order in orders.items()}:
            raise InvariantViolated("the documents of an owner are not in order")


def _kept_until(document: Document, now_ns: int, left_ns: int) -> int:
    """In monotonic time: what was taken is not lost to a wrong reading of the clock."""
    if document.life == "managed" and not document.deleted:
        return now_ns + min(left_ns, MANAGED_LEASE_NS)
    return now_ns + left_ns


# Documents in memory: by id, by what they say, and by when they have to go.


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
