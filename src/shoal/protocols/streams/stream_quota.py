"""Who may have a table of streams remember another name.

Without a registry anybody may make up streams, and keys cost nothing. So each name is charged to
the key that it came from, and to the part of the Internet that the key's link comes from. A source
gets another name while it holds less than half of what is free: the largest holders are refused
first, and however many there were before, whoever comes next still finds room. Names that are not
in use any more are given back.

Links from this machine, or from a private network, are charged to their keys alone: all nodes of
such a network may share one address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.ids import NodeId, StreamId

PrefixOf = Callable[[NodeId], str | None]
"""The address prefix that the link of a peer comes from; None: it is not counted."""


class Quotas(msgspec.Struct, frozen=True):
    """How many names a table has, and one source of them."""

    names_max: int
    per_key: int
    per_prefix: int


class NameQuota:
    """The names of one table that strangers asked for, and who did."""

    def __init__(
        self,
        quotas: Quotas,
        used: Callable[[], int],
        prefix_of: PrefixOf = lambda peer: None,
    ) -> None:
        """`used` says how many names the table has, whoever they came from."""
        self.quotas = quotas
        self._used = used
        self._prefix_of = prefix_of
        self._holders: dict[StreamId, tuple[NodeId, str | None]] = {}
        self._held: Counter[NodeId | str] = Counter()  # by each key, and each prefix

    def admit(self, name: StreamId, peer: NodeId) -> bool:
        """Charge a new name to a peer, if it may have one more."""
        return self.admit_from(name, peer, self._prefix_of(peer))

    def admit_from(self, name: StreamId, peer: NodeId, prefix: str | None) -> bool:
        """The same, for a peer of which somebody else says where it called from."""
        if name in self._holders:
            return True
        quotas = self.quotas
        free = quotas.names_max - self._used()
        sources = [(peer, quotas.per_key), (prefix, quotas.per_prefix)]
        charged = [(source, most) for source, most in sources if source is not None]
        for source, most in charged:
            held = self._held[source]
            if free <= 0 or held >= most or held >= max(1, free // 2):
                return False
        self._holders[name] = (peer, prefix)
        self._held.update([source for source, _ in charged])
        return True

    def holder(self, name: StreamId) -> tuple[NodeId, str | None] | None:
        """Whom a name is charged to: a key, and the prefix that it called from."""
        return self._holders.get(name)

    def release(self, name: StreamId) -> None:
        """A name is not in use any more, or never was."""
        for source in self._holders.pop(name, ()):
            if source is None:
                continue
            self._held[source] -= 1
            if not self._held[source]:
                del self._held[source]

    def held(self, source: NodeId | str) -> int:
        """Names that are charged to a key, or to a prefix."""
        return self._held.get(source, 0)

    def check_invariants(self) -> None:
        """Raise InvariantViolated on impossible state."""
        charged = [source for holder in self._holders.values() for source in holder]
        if self._held != Counter([source for source in charged if source is not None]):
            raise InvariantViolated("names are charged to nobody, or twice")
