"""Standing queries of others: whoever left one here is told of documents that match.

A node leaves its query with many nodes, and casts it again before it expires. Most documents match
few of them: a filter of their space finds out which to ask. Each version of a document is reported
to a query once, as far as 256 reports back; where a document passes two nodes with the query, its
owner hears of it twice, and tells by the document.

When there are too many, whoever has the most here, the newcomer included, loses the one that would
expire soonest.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from shoal.base.containers import Ordered
from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.search.documents.document import DOCUMENTS, Document
from shoal.protocols.search.payloads import Watch
from shoal.protocols.search.signed_records import AddressRecord
from shoal.protocols.search.spaces import Filter, Space, Spaces

WATCHES_MAX = 10_000
OWNER_WATCHES_MAX = 64  # of one node
WATCH_NS_MAX = 60 * 60 * S_NS  # who is gone is not told anything for longer than this
CANCELLED_NS = 10 * 60 * S_NS  # bubbles that were cast before the end have arrived by then
REPORTED_MAX = 256  # documents that a query remembers: 2 KiB

UNREADABLE, EXPIRED, CHANGED, FULL = "unreadable", "expired", "changed", "full"

_Name = bytes  # of the owner, and the query's id


class _Standing(msgspec.Struct):
    """A query, or the memory that there was one."""

    owner: AddressRecord
    id: bytes
    space: Space
    text: str | bytes
    query: Any
    """None: cancelled."""
    expires_ns: int
    number: int
    reported: array[int]
    next_report: int = 0

    @property
    def name(self) -> _Name:
        return self.owner.node + self.id

    def report(self, document: Document) -> bool:
        """Whether this version is new to the query; from now on it is not."""
        digest = int.from_bytes(document.digest[:8])
        if digest in self.reported:
            return False
        if len(self.reported) < REPORTED_MAX:
            self.reported.append(digest)
        else:
            self.reported[self.next_report] = digest
            self.next_report = (self.next_report + 1) % REPORTED_MAX
        return True


class Watches:
    """Standing queries by owner and id."""

    def __init__(
        self, spaces: Spaces, watches_max: int = WATCHES_MAX, wall: WallClock | None = None
    ) -> None:
        self._wall = WallClock() if wall is None else wall
        self._spaces = spaces
        self._watches_max = watches_max
        self._standing: dict[_Name, _Standing] = {}
        self._numbers: dict[int, _Standing] = {}
        self._number = 0
        self._filters: dict[str, Filter] = {}  # by space
        self._expiring = Ordered()
        self._by_owner: dict[NodeId, Ordered] = {}  # by expiry
        self._counts = Ordered()  # owners, by how many they have

    def __len__(self) -> int:
        return len(self._standing)

    def put(self, owner: AddressRecord, watch: Watch, now_ns: int, name: str = DOCUMENTS) -> str:
        """Begin, prolong or end a query of the node that cast it, in the space of this name; says
        why not, or nothing."""
        space = self._spaces[name]
        self.expire(now_ns)
        known = self._standing.get(owner.node + watch.id)
        if watch.expires_ms == 0:
            return self._cancel(space, owner, watch, known, now_ns)
        left_ns = watch.expires_ms * MS_NS - self._wall.read(now_ns)
        expires_ns = now_ns + min(left_ns, WATCH_NS_MAX)
        if expires_ns <= now_ns:
            return EXPIRED
        if known is not None:
            if known.query is None:
                return EXPIRED
            if (known.space, known.text) != (space, watch.text):
                return CHANGED
            self._prolong(known, max(expires_ns, known.expires_ns))
            self._filter(space).remove(known.number)
            self._filter(space).add(known.number, known.query)
            if owner.made_ms > known.owner.made_ms:
                known.owner = owner
            return ""
        try:
            query = space.read(watch.text)
        except UsageError:
            return UNREADABLE
        return self._add(space, owner, watch, query, expires_ns)

    def sightings(self, document: Document, now_ns: int) -> list[tuple[AddressRecord, bytes]]:
        """Whom to tell of a document, and for which of their queries."""
        if document.deleted or document.expires_ns <= self._wall.read(now_ns):
            return []
        self.expire(now_ns)
        space = self._spaces[document.space]
        waiting = self._filter(space)
        if not len(waiting):
            return []
        seen = space.view(document)
        found = []
        for number in waiting.candidates(seen):
            standing = self._numbers[number]
            assert standing.query is not None
            if space.judge(standing.query, seen, 0.0) is None:
                continue
            if standing.report(document):
                found.append((standing.owner, standing.id))
        return found

    def expire(self, now_ns: int) -> None:
        """Let go of what is past its time."""
        for name, _ in self._expiring.up_to(now_ns):
            self._remove(self._standing[name])

    def _filter(self, space: Space) -> Filter:
        if space.name not in self._filters:
            self._filters[space.name] = space.filter()
        return self._filters[space.name]

    def _cancel(
        self,
        space: Space,
        owner: AddressRecord,
        watch: Watch,
        known: _Standing | None,
        now_ns: int,
    ) -> str:
        if known is None:  # the end came before the beginning
            return self._add(space, owner, watch, None, now_ns + CANCELLED_NS)
        if known.query is not None:
            self._filter(known.space).remove(known.number)
            known.query = None
            known.reported = array("Q")
            self._prolong(known, max(known.expires_ns, now_ns + CANCELLED_NS))
        return ""

    def _add(
        self, space: Space, owner: AddressRecord, watch: Watch, query: Any, expires_ns: int
    ) -> str:
        if not self._make_room(owner.node):
            return FULL
        self._number += 1
        standing = _Standing(
            *(owner, watch.id, space, watch.text, query, expires_ns, self._number), array("Q")
        )
        self._standing[standing.name] = self._numbers[self._number] = standing
        if query is not None:
            self._filter(space).add(self._number, query)
        self._expiring.add(expires_ns, (standing.name, None))
        order = self._by_owner.setdefault(owner.node, Ordered())
        if len(order):
            self._counts.remove(len(order), (owner.node, None))
        order.add(expires_ns, (standing.name, None))
        self._counts.add(len(order), (owner.node, None))
        return ""

    def _make_room(self, newcomer: NodeId) -> bool:
        mine = len(self._by_owner.get(newcomer, ()))
        if mine >= OWNER_WATCHES_MAX:
            return False
        if len(self._standing) >= self._watches_max:
            greatest = NodeId(self._counts.last()[0])
            if len(self._by_owner[greatest]) <= mine + 1:
                return False
            name, _ = self._by_owner[greatest].first()
            self._remove(self._standing[name])
        return True

    def _prolong(self, standing: _Standing, expires_ns: int) -> None:
        for order in (self._expiring, self._by_owner[standing.owner.node]):
            order.remove(standing.expires_ns, (standing.name, None))
            order.add(expires_ns, (standing.name, None))
        standing.expires_ns = expires_ns

    def _remove(self, standing: _Standing) -> None:
        node = standing.owner.node
        del self._standing[standing.name], self._numbers[standing.number]
        if standing.query is not None:
            self._filter(standing.space).remove(standing.number)
        self._expiring.remove(standing.expires_ns, (standing.name, None))
        order = self._by_owner[node]
        self._counts.remove(len(order), (node, None))
        order.remove(standing.expires_ns, (standing.name, None))
        if len(order):
            self._counts.add(len(order), (node, None))
        else:
            del self._by_owner[node]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the books do not agree, or there is too much."""
        names = sorted((one.expires_ns, name) for name, one in self._standing.items())
        if names != [(expires_ns, slot[0]) for expires_ns, slot in self._expiring.entries()]:
            raise InvariantViolated(f"{len(names)} queries stand, others expire")
        if len(names) > self._watches_max or len(names) != len(self._numbers):
            raise InvariantViolated(f"{len(names)} queries, {self._watches_max} are the most")
        met = sum(map(len, self._filters.values()))
        if met != sum(one.query is not None for one in self._standing.values()):
            raise InvariantViolated(f"{met} queries can be met")
        counts: dict[NodeId, int] = {}
        for standing in self._standing.values():
            node = standing.owner.node
            counts[node] = counts.get(node, 0) + 1
        if counts != {node: len(order) for node, order in self._by_owner.items()}:
            raise InvariantViolated("owners are counted wrongly")
        if sorted((count, node) for node, count in counts.items()) != [
            (count, slot[0]) for count, slot in self._counts.entries()
        ]:
            raise InvariantViolated("owners are not in order")
