"""The group keys that a node holds, its own and others'; bounded for each publisher, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.base.errors import DecryptionFailed
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity.entropy import Entropy
from shoal.identity.group_key import (
    GROUP_KEYS_MAX,
    GroupKey,
    Sealer,
    decode_announcement,
    unwrap_key,
)
from shoal.identity.keys import PrivateKey, PublicKey
from shoal.protocols.streams.config import SealingConfig
from shoal.protocols.streams.signed_message import VerifiedMessage

PUBLISHER_KEYS_MAX = 512  # one who announces keys for sport pushes nobody else's out
UNWRAPS_MAX = 128  # for one reader in one announcement: 15 ms


class KeyRing:
    """Keys by their id. Of too many, the oldest of whoever has most goes."""

    def __init__(
        self, keys_max: int = GROUP_KEYS_MAX, publisher_keys_max: int = PUBLISHER_KEYS_MAX
    ) -> None:
        self._keys_max = keys_max
        self._publisher_keys_max = publisher_keys_max
        self._keys: dict[bytes, GroupKey] = {}  # oldest first
        self._of: dict[NodeId, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key_id: bytes) -> GroupKey | None:
        """The key, if it is here."""
        return self._keys.get(key_id)

    def add(self, key: GroupKey) -> bool:
        """Hold it; False if it was here already."""
        if key.id in self._keys:
            return False
        self._keys[key.id] = key
        own = self._of.setdefault(key.publisher, {})
        own[key.id] = None
        if len(own) > self._publisher_keys_max:
            self._drop(key.publisher)
        elif len(self._keys) > self._keys_max:
            self._drop(max(self._of, key=lambda publisher: len(self._of[publisher])))
        return True

    def learn(self, message: VerifiedMessage, reader: PrivateKey) -> int:
        """Take the keys for a reader out of an announcement; how many are new. What is wrapped
        badly is left out: it harms nobody but its publisher's readers. MalformedMessage."""
        learned = tried = 0
        for wrap in decode_announcement(message.content).wraps:
            if wrap.reader != reader.address or self.get(wrap.key) is not None:
                continue
            tried += 1
            if tried > UNWRAPS_MAX:
                break
            id = message.id
            try:
                key = unwrap_key(id.stream, id.publisher, wrap.key, wrap.sealed, reader)
            except DecryptionFailed:
                continue
            learned += self.add(key)
        return learned

    def all(self) -> list[GroupKey]:
        """Every key, oldest first."""
        return list(self._keys.values())

    def _drop(self, publisher: NodeId) -> None:
        own = self._of[publisher]
        oldest = next(iter(own))
        del own[oldest], self._keys[oldest]
        if not own:
            del self._of[publisher]


# A publisher's own keys of one stream.
#
# A key is made when the first message is to be sealed, and another one when it has grown old, has
# sealed enough, or somebody who could have it may read no longer: then nothing that follows is
# readable to them. Every key is announced, wrapped for each reader whose public key is known,
# before anything is sealed with it. Readers who come later are given the keys of this process, for
# the history; those of earlier processes they find at storage nodes or ask others for.


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
