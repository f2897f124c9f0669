"""What this node holds for others, in bounded memory.

Who has to go when there is no room: copies first, those that expire soonest. Then
whoever had the most stored here, the newcomer included, loses what lies farthest from our place.
So a peer that stores more than its share loses its own, however valid it is; what others stored
stays. The same holds among the records of one key, where the one that expires first goes: if each
storer has one there, that is the one whose signer has been silent longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from shoal.base.containers import Ordered, Slot
from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, show_node_id
from shoal.protocols.dht.config import VALUE_OVERHEAD_BYTES, VALUES_MAX, DhtConfig
from shoal.protocols.dht.key_space import DhtId, id_of_key
from shoal.protocols.dht.validators import Judged

OLDER, FULL = "older", "full"


class Held(msgspec.Struct):
    """A value and why it is here."""

    key: bytes
    value: bytes
    judged: Judged
    storer: NodeId
    """The peer that brought it first, and whose share it uses."""
    expires_ns: int
    due_ns: int
    """When to give it to the k closest again."""
    cached: bool
    """A copy: nobody counts on it here, and it is not republished."""
    id: DhtId

    @property
    def slot(self) -> Slot:
        return self.key, self.judged.signer

    @property
    def size(self) -> int:
        return len(self.value) + VALUE_OVERHEAD_BYTES


class ValueStore:
    """Values by key."""

    def __init__(self, id: DhtId, config: DhtConfig) -> None:
        self.used = 0
        self._id = id
        self._config = config
        self._keys: dict[bytes, dict[NodeId | None, Held]] = {}
        self._storers: dict[NodeId, Ordered] = {}  # by distance, copies apart
        self._shares: dict[NodeId, int] = {}  # bytes of each storer, copies apart
        self._cached = Ordered()  # by expiry
        self._expiring = Ordered()
        self._due = Ordered()  # without copies

    def __len__(self) -> int:
        return len(self._expiring)

    def get(self, key: bytes, now_ns: int) -> list[Held]:
        """What is held under a key, the highest number first."""
        held = [held for held in self._keys.get(key, {}).values() if held.expires_ns > now_ns]
        return sorted(held, key=lambda one: (-one.judged.number, one.judged.signer or b""))

    def put(
        self,
        key: bytes,
        value: bytes,
        judged: Judged,
        storer: NodeId,
        life_ns: int,
        now_ns: int,
        *,
        cached: bool = False,
        due_ns: int = 0,
    ) -> str:
        """Hold a valid value; says why not, or nothing."""
        known = self._keys.get(key, {}).get(judged.signer)
        expires_ns = now_ns + min(life_ns, self._config.value_ns)
        if known is not None and known.judged.number >= judged.number:
            if known.judged.number > judged.number or known.value != value:
                return OLDER
            due_ns = max(known.due_ns, due_ns)  # whoever brought it told the others, too
            self._change(known, max(known.expires_ns, expires_ns), due_ns, known.cached)
            if not known.cached or cached:
                return ""
        new = Held(key, value, judged, storer, expires_ns, due_ns, cached, id_of_key(key))
        if known is not None:
            if not known.cached:
                new.storer, new.cached = known.storer, False
            self._remove(known)
        if not self._make_room(new):
            if known is not None and not known.cached:
                self._add(known)
            return FULL
        self._add(new)
        return ""

    def expire(self, now_ns: int) -> None:
        """Let go of what is past its time."""
        for slot in self._expiring.up_to(now_ns):
            self._remove(self._at(slot))

    def due(self, now_ns: int, count: int) -> list[Held]:
        """What has to be given to the k closest, the longest due first."""
        return [self._at(slot) for slot in self._due.up_to(now_ns, count)]

    def postpone(self, held: Held, due_ns: int) -> None:
        """It was its turn; the next one is then."""
        self._change(held, held.expires_ns, due_ns, held.cached)

    def release(self, slot: Slot) -> None:
        """Others answer for this value now: ours is a copy, if we still have it."""
        held = self._keys.get(slot[0], {}).get(slot[1])
        if held is not None:
            self._change(held, held.expires_ns, held.due_ns, True)

    def all(self) -> Iterable[Held]:
        """Everything, in no order that means anything."""
        return (held for records in self._keys.values() for held in records.values())

    def _make_room(self, new: Held) -> bool:
        records = list(self._keys.get(new.key, {}).values())
        if len(records) >= VALUES_MAX:
            going = _least([new, *records])
            if going is new:
                return False
            self._remove(going)
        limit = self._config.values_bytes_max - new.size
        while self.used > limit:
            victim = self._victim(new)
            if victim is None:
                return False
            self._remove(victim)
        return True

    def _victim(self, new: Held) -> Held | None:
        if self._cached:
            return self._at(self._cached.first())
        if new.cached or not self._shares:
            return None
        greatest = max(self._shares, key=lambda storer: (self._shares[storer], storer))
        if self._shares[greatest] <= self._shares.get(new.storer, 0) + new.size:
            return None
        return self._at(self._storers[greatest].last())

    def _at(self, slot: Slot) -> Held:
        return self._keys[slot[0]][slot[1]]

    def _change(self, held: Held, expires_ns: int, due_ns: int, cached: bool) -> None:
        if (expires_ns, due_ns, cached) != (held.expires_ns, held.due_ns, held.cached):
            self._remove(held)
            held.expires_ns, held.due_ns, held.cached = expires_ns, due_ns, cached
            self._add(held)

    def _add(self, held: Held) -> None:
        slot = held.slot
        self._keys.setdefault(held.key, {})[held.judged.signer] = held
        self.used += held.size
        self._expiring.add(held.expires_ns, slot)
        if held.cached:
            self._cached.add(held.expires_ns, slot)
            return
        self._due.add(held.due_ns, slot)
        self._storers.setdefault(held.storer, Ordered()).add(held.id ^ self._id, slot)
        self._shares[held.storer] = self._shares.get(held.storer, 0) + held.size

    def _remove(self, held: Held) -> None:
        slot = held.slot
        records = self._keys[held.key]
        del records[held.judged.signer]
        if not records:
            del self._keys[held.key]
        self.used -= held.size
        self._expiring.remove(held.expires_ns, slot)
        if held.cached:
            self._cached.remove(held.expires_ns, slot)
            return
        self._due.remove(held.due_ns, slot)
        self._storers[held.storer].remove(held.id ^ self._id, slot)
        self._shares[held.storer] -= held.size
        if not self._storers[held.storer]:
            del self._storers[held.storer], self._shares[held.storer]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if the books do not agree, or there is too much."""
        everything = list(self.all())
        if sum([held.size for held in everything]) != self.used:
            raise InvariantViolated(f"{self.used} bytes are counted, others are held")
        if self.used > self._config.values_bytes_max:
            raise InvariantViolated(f"{self.used} bytes are held, too many")
        if any(len(records) > VALUES_MAX for records in self._keys.values()):
            raise InvariantViolated("a key has too many records")
        shares: dict[NodeId, int] = {}
        for held in everything:
            if not held.cached:
                shares[held.storer] = shares.get(held.storer, 0) + held.size
        if shares != self._shares:
            names = [show_node_id(storer) for storer in shares.keys() ^ self._shares.keys()]
            raise InvariantViolated(f"shares are counted wrongly: {names}")
        self._check_orders(everything)

    def _check_orders(self, everything: list[Held]) -> None:
        earnest = [held for held in everything if not held.cached]
        orders = [
            (self._expiring, [(held.expires_ns, held.slot) for held in everything]),
            (self._cached, [(held.expires_ns, held.slot) for held in everything if held.cached]),
            (self._due, [(held.due_ns, held.slot) for held in earnest]),
        ]
        for storer, order in self._storers.items():
            theirs = [held for held in earnest if held.storer == storer]
            orders.append((order, [(held.id ^ self._id, held.slot) for held in theirs]))
        for order, expected in orders:
            entries = order.entries()
            ranks = [rank for rank, _ in entries]
            if ranks != sorted(ranks) or set(entries) != set(expected):
                raise InvariantViolated(f"{len(entries)} values are in order, not {len(expected)}")


def _least(records: list[Held]) -> Held:
    """Of too many records of one key, the first to expire of whoever stored most of them."""
    counts = Counter(held.storer for held in records)
    most = max(counts.values())
    theirs = [held for held in records if counts[held.storer] == most]
    return min(theirs, key=lambda held: held.expires_ns)
