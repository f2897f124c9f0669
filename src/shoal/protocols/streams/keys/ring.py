"""The group keys that a node holds, its own and others'; bounded for each publisher, too."""

from __future__ import annotations

from shoal.base.errors import DecryptionFailed
from shoal.base.ids import NodeId
from shoal.identity.group_key import GroupKey
from shoal.identity.group_key_file import GROUP_KEYS_MAX
from shoal.identity.keys import PrivateKey
from shoal.identity.wrapped_key import decode_announcement, unwrap_key
from shoal.protocols.streams.messages import VerifiedMessage

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
