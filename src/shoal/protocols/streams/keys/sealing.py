"""A publisher's own keys of one stream.

A key is made when the first message is to be sealed, and another one when it has grown old, has
sealed enough, or somebody who could have it may read no longer: then nothing that follows is
readable to them. Every key is announced, wrapped for each reader whose public key is known, before
anything is sealed with it. Readers who come later are given the keys of this process, for the
history; those of earlier processes they find at storage nodes or ask others for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity.entropy import Entropy
from shoal.identity.group_key import GroupKey, Sealer
from shoal.identity.keys import PublicKey
from shoal.protocols.streams.keys.config import SealingConfig

AHEAD_NS = 60 * S_NS  # of a clock that was set back since: less does not matter


class Reader(NamedTuple):
    """Somebody who may read a stream."""

    node: NodeId
    public: PublicKey | None
    """None: not known, keys cannot be wrapped; it asks for them."""
    until_ns: int
    """When that ends, by Unix time."""


class ToWrap(NamedTuple):
    """A key that a reader is to be given."""

    key: GroupKey
    reader: PublicKey


class Sealing:
    """Which key is in use, and who has been given it."""

    def __init__(
        self,
        stream: StreamId,
        publisher: NodeId,
        entropy: Entropy,
        config: SealingConfig | None = None,
    ) -> None:
        self.stream = stream
        self.sealer: Sealer | None = None
        """Seals, unless it is due."""
        self.config = config or SealingConfig()
        self._publisher = publisher
        self._entropy = entropy
        self._keys: list[GroupKey] = []  # of this process, oldest first
        self._given: frozenset[NodeId] = frozenset()  # who may have the key in use
        self._informed: dict[NodeId, None] = {}  # for whom all our keys were wrapped
        self._made_ns = 0
        self._ends_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether nothing may be sealed before `prepare`."""
        sealer = self.sealer
        if sealer is None or now_ns >= self._ends_ns or sealer.count >= self.config.seals_max:
            return True
        return self._is_ahead(now_ns)

    def prepare(self, readers: Sequence[Reader], now_ns: int) -> list[ToWrap]:
        """Take a key that only these may have, if the one in use is not; what is returned is to be
        announced before anything is sealed."""
        permitted = {reader.node: reader for reader in readers if now_ns < reader.until_ns}
        outdated = self._made_ns + self.config.age_ns <= now_ns or self._is_ahead(now_ns)
        used_up = self.sealer is None or self.sealer.count >= self.config.seals_max
        fresh = outdated or used_up or not self._given <= permitted.keys()
        if fresh:
            self._renew(now_ns)
        self._given = frozenset(permitted)
        ends = [reader.until_ns for reader in permitted.values()]
        self._ends_ns = min([self._made_ns + self.config.age_ns, *ends])
        self._informed = {node: None for node in self._informed if node in permitted}
        wraps: list[ToWrap] = []
        for reader in list(permitted.values())[: self.config.readers_max]:
            if reader.public is None:
                continue
            known = reader.node in self._informed
            self._informed[reader.node] = None
            keys = self._keys[-1:] if known else self._keys
            if fresh or not known:
                wraps.extend(ToWrap(key, reader.public) for key in keys)
        return wraps

    def forget(self) -> None:
        """Anybody may have the key in use, or nobody knows who was given it: the next is a new one,
        and everybody is told."""
        self.sealer = None
        self._informed.clear()

    def _is_ahead(self, now_ns: int) -> bool:
        """Whether the key in use was made by a clock that was ahead: it would last too long."""
        return self._made_ns - now_ns > AHEAD_NS

    def _renew(self, now_ns: int) -> None:
        key = GroupKey.generate(self.stream, self._publisher, self._entropy)
        self.sealer = Sealer(key)
        self._keys = [*self._keys, key][-self.config.own_keys_max :]
        self._made_ns = now_ns
