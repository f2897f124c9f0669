"""The routing table: k-buckets around our own place, for nodes that have shown that they live.

Bucket i holds nodes that share i leading bits with us; the last one holds all that share more, and
is split when it is full. In a bucket the least recently seen comes first. A full bucket takes
nobody in: a newcomer becomes a spare, and the oldest is asked whether it lives. Only if it does not
is its place given away. So nodes that stay cannot be washed out by nodes that come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from heapq import nsmallest
from ipaddress import ip_address, ip_network
from itertools import chain
from urllib.parse import urlsplit

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact, NodeId, short_node_id
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.key_space import ID_BITS, DhtId, common_bits, id_of_node


class Entry(msgspec.Struct):
    """A node of the table."""

    contact: Contact
    id: DhtId
    prefixes: tuple[str, ...]
    seen_ns: int
    failures: int = 0
    """Questions that it left unanswered since it was last seen."""


class Bucket(msgspec.Struct):
    """Nodes of one distance."""

    live: dict[NodeId, Entry] = {}
    """Least recently seen first."""
    spare: dict[NodeId, Entry] = {}
    """Those that wait for a place, most recently seen last."""
    doubted: NodeId | None = None
    """The one that is being asked whether it lives."""
    doubted_ns: int | None = None
    """When one was last asked that."""
    looked_ns: int = 0
    """When a place in here was last looked for."""


class RoutingTable:
    """The nodes that we know, many near us and few far away."""

    def __init__(self, node: NodeId, config: DhtConfig) -> None:
        self.node = node
        self.id = id_of_node(node)
        self.buckets = [Bucket()]
        self._config = config
        self._prefixes: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum([len(bucket.live) for bucket in self.buckets])

    def __contains__(self, node: NodeId) -> bool:
        return node in self._bucket(id_of_node(node)).live

    def contact(self, node: NodeId) -> Contact | None:
        """How a node of the table is reached."""
        entry = self._bucket(id_of_node(node)).live.get(node)
        return None if entry is None else entry.contact

    def seen(self, contact: Contact, now_ns: int) -> Contact | None:
        """A node lives; says whom to ask whether it still does, if that would make room."""
        if contact.node == self.node or not contact.addresses:
            return None  # others could not dial it
        id = id_of_node(contact.node)
        prefixes = prefixes_of(contact.addresses, self._config)
        entry = Entry(contact, id, prefixes, now_ns)
        while True:
            bucket = self._bucket(id)
            known = bucket.live.get(contact.node)
            if known is not None:
                self._seen_again(bucket, known, entry)
                return None
            full = len(bucket.live) >= self._config.k
            if full and bucket is self.buckets[-1] and len(self.buckets) < ID_BITS:
                self._split()
                continue
            if not self._has_room(bucket, prefixes):
                return None
            if full:
                return self._wait(bucket, entry)
            self._add(bucket, entry)
            return None

    def failed(self, node: NodeId) -> Contact | None:
        """A node left a question unanswered; gives its contact, if it leaves the table for that."""
        bucket = self._bucket(id_of_node(node))
        bucket.spare.pop(node, None)
        entry = bucket.live.get(node)
        if entry is None:
            return None
        if bucket.doubted == node:
            bucket.doubted = None
        entry.failures += 1
        del bucket.live[node]
        self._prefixes.subtract(entry.prefixes)
        replaced = self._promote(bucket)
        if not replaced and entry.failures < self._config.failures_max:
            # It may be us who are cut off. First in the bucket, it is also the first to be doubted.
            bucket.live = {node: entry, **bucket.live}
            self._prefixes.update(entry.prefixes)
            return None
        return entry.contact

    def closest(self, target: DhtId, count: int, *, failing: bool = False) -> list[Contact]:
        """The nearest nodes, nearest first; `failing` ones, which left their last question
        unanswered, are for ourselves to try: others are not told of them."""
        found: list[Entry] = []
        for group in self._groups(target):
            part = [entry for entry in group if failing or not entry.failures]
            found += nsmallest(count - len(found), part, key=lambda entry: entry.id ^ target)
            if len(found) >= count:
                break
        return [entry.contact for entry in found]

    def closer(self, target: DhtId) -> int:
        """How many nodes we know that are nearer to a place than we are."""
        ours = self.id ^ target
        groups = self._groups(target)
        return sum([entry.id ^ target < ours for group in groups for entry in group])

    def looked(self, target: DhtId, now_ns: int) -> None:
        """A lookup of this place has begun."""
        self._bucket(target).looked_ns = now_ns

    def stale(self, now_ns: int) -> list[int]:
        """Buckets in which nothing was looked for, longest first."""
        limit_ns = now_ns - self._config.refresh_ns
        stale = [(b.looked_ns, i) for i, b in enumerate(self.buckets) if b.looked_ns <= limit_ns]
        return [index for _, index in sorted(stale)]

    def _groups(self, target: DhtId) -> Iterator[Iterable[Entry]]:
        """All nodes, in groups of which each is nearer to the target than the next: those of its
        own bucket, those nearer to us, and then bucket after bucket outwards."""
        at = min(common_bits(self.id, target), len(self.buckets) - 1)
        yield self.buckets[at].live.values()
        yield chain.from_iterable([bucket.live.values() for bucket in self.buckets[at + 1 :]])
        for bucket in reversed(self.buckets[:at]):
            yield bucket.live.values()

    def _bucket(self, id: DhtId) -> Bucket:
        return self.buckets[min(common_bits(self.id, id), len(self.buckets) - 1)]

    def _seen_again(self, bucket: Bucket, known: Entry, entry: Entry) -> None:
        node = entry.contact.node
        if bucket.doubted == node:
            bucket.doubted = None
        del bucket.live[node]
        self._prefixes.subtract(known.prefixes)
        if known.prefixes != entry.prefixes and not self._has_room(bucket, entry.prefixes):
            entry = Entry(known.contact, known.id, known.prefixes, entry.seen_ns)
        self._add(bucket, entry)

    def _has_room(self, bucket: Bucket, prefixes: tuple[str, ...]) -> bool:
        if not any(self._prefixes[prefix] for prefix in prefixes):
            return True
        here = Counter(chain.from_iterable(entry.prefixes for entry in bucket.live.values()))
        return all(
            here[prefix] < self._config.prefix_bucket_max
            and self._prefixes[prefix] < self._config.prefix_table_max
            for prefix in prefixes
        )

    def _add(self, bucket: Bucket, entry: Entry) -> None:
        bucket.spare.pop(entry.contact.node, None)
        bucket.live[entry.contact.node] = entry
        self._prefixes.update(entry.prefixes)

    def _wait(self, bucket: Bucket, entry: Entry) -> Contact | None:
        bucket.spare.pop(entry.contact.node, None)
        bucket.spare[entry.contact.node] = entry
        if len(bucket.spare) > self._config.k:
            del bucket.spare[next(iter(bucket.spare))]
        oldest = next(iter(bucket.live.values()))
        quiet_ns = entry.seen_ns - oldest.seen_ns
        if bucket.doubted is not None or quiet_ns < self._config.ping_quiet_ns:
            return None
        before_ns = bucket.doubted_ns
        if before_ns is not None and entry.seen_ns - before_ns < self._config.ping_pause_ns:
            return None
        bucket.doubted, bucket.doubted_ns = oldest.contact.node, entry.seen_ns
        return oldest.contact

    def _promote(self, bucket: Bucket) -> bool:
        for node in reversed(list(bucket.spare)):
            entry = bucket.spare.pop(node)
            if self._has_room(bucket, entry.prefixes):
                self._add(bucket, entry)
                return True
        return False

    def _split(self) -> None:
        old = self.buckets.pop()
        depth = len(self.buckets)
        outer, inner = Bucket(looked_ns=old.looked_ns), Bucket(looked_ns=old.looked_ns)
        for entries, name in ((old.live, "live"), (old.spare, "spare")):
            for node, entry in entries.items():
                side = inner if common_bits(self.id, entry.id) > depth else outer
                getattr(side, name)[node] = entry
        for side in (outer, inner):
            side.doubted = old.doubted if old.doubted in side.live else None
        self.buckets += [outer, inner]

    def check_invariants(self) -> None:
        """Raise InvariantViolated if a node is where it must not be."""
        counted: Counter[str] = Counter()
        for index, bucket in enumerate(self.buckets):
            if len(bucket.live) > self._config.k or len(bucket.spare) > self._config.k:
                raise InvariantViolated(f"bucket {index} holds more than {self._config.k} nodes")
            if bucket.doubted is not None and bucket.doubted not in bucket.live:
                raise InvariantViolated(f"bucket {index} doubts a node that it does not hold")
            for node, entry in chain(bucket.live.items(), bucket.spare.items()):
                if node == self.node or self._bucket(entry.id) is not bucket:
                    raise InvariantViolated(f"{short_node_id(node)} is in bucket {index}")
            here = Counter(chain.from_iterable(entry.prefixes for entry in bucket.live.values()))
            if here and max(here.values()) > self._config.prefix_bucket_max:
                raise InvariantViolated(f"bucket {index} is full of one prefix: {here}")
            counted.update(here)
            if not bucket.live.keys().isdisjoint(bucket.spare):
                raise InvariantViolated(f"bucket {index} holds a node twice")
        if counted != +self._prefixes or any(
            count > self._config.prefix_table_max for count in counted.values()
        ):
            raise InvariantViolated(f"prefixes are counted as {self._prefixes}, not {counted}")


# Which part of the Internet an address belongs to: addresses are cheap there only by the block.


def prefixes_of(addresses: tuple[str, ...], config: DhtConfig) -> tuple[str, ...]:
    """The prefixes of a node's addresses, each once. They are what the node says: one that gives
    addresses of others cannot be dialled, and leaves the table for that."""
    bits = (config.prefix_bits_v4, config.prefix_bits_v6)
    return tuple(dict.fromkeys([_prefix(address, *bits) for address in addresses]))


@lru_cache(maxsize=16_384)
def _prefix(address: str, bits_v4: int, bits_v6: int) -> str:
    try:
        host = urlsplit(address).hostname or address
    except ValueError:
        return address
    try:
        ip = ip_address(host)
    except ValueError:
        return host  # a name: its owner may have many, but has to register the domain
    if ip.version == 6 and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return str(ip_network((ip, bits_v4 if ip.version == 4 else bits_v6), strict=False))
