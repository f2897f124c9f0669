"""Keys and values of machines on lmdb, behind the disk port.

Each machine has a space of its own, known by a name: the slot of a machine moves when a node gets
another role, its name does not. A file belongs to one node (owned_file.py).

    table    key                 value
    meta     "format" | "owner"  the format's number | the node's id
    values   space, NUL, key     CRC-32 of the value, the value

lmdb does not check its pages: a value that is not as it was written is told as none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.base.errors import ShoalError, UsageError
from shoal.base.ids import NodeId
from shoal.kernel.disk import DiskRequest, DiskResult
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed
from shoal.storage.config import DEFAULTS, StoreConfig
from shoal.storage.errors import StoreDamaged
from shoal.storage.lmdb_file import OwnedFile, Txn, with_checksum, without_checksum

KEY_VALUE_FORMAT = 1
KEY_BYTES_MAX = 256  # lmdb takes 511; machines need 100
FAILED, MALFORMED = "failed", "malformed"  # reasons of StoreFailed

log = logging.getLogger("shoal.storage")


class KeyValueFile(OwnedFile):
    """The file: values of one node, by space and key."""

    FORMAT = KEY_VALUE_FORMAT
    KIND = "of topics"
    NAMES = (b"key-value-meta", b"key-values")

    def __init__(self, folder: Path, owner: NodeId, config: StoreConfig = DEFAULTS) -> None:
        """Open the file of this node in this folder, or make one; StoreError if that cannot be."""
        super().__init__(folder, owner, config)
        self._values = self._tables[1]

    def put_all(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Store values, in this order and all in one transaction; None deletes."""
        self.write(self._put_all, changes)

    def settle_as(self, key: bytes) -> None:
        """Tell a machine that this is a copy, by a value of its own: it does what follows from
        that, and deletes the value."""
        self.write(self._settle_as, key)

    def get(self, key: bytes) -> bytes | None:
        """The value, or None; StoreDamaged if it is not what was written."""
        raw = self.read(lambda txn: txn.get(key, db=self._values))
        if raw is None:
            return None
        value = without_checksum(raw)
        if value is None:
            raise StoreDamaged(
                f"{self.file} holds a value under {key!r} that is not as it was written: restore a"
                " copy, or move it away and let the other nodes fill a new one"
            )
        return value

    def _settle_as(self, txn: Txn, key: bytes) -> None:
        self._put_all(txn, [(key, b"1")])
        self.settle_restored(txn)

    def _put_all(self, txn: Txn, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, value in changes:
            if value is None:
                txn.delete(key, db=self._values)
            else:
                txn.put(key, with_checksum(value), db=self._values)


class KeyValueDisk:
    """The disk port over a file. What goes wrong is in the log, and in `problem`."""

    def __init__(self, file: KeyValueFile, spaces: Mapping[int, str]) -> None:
        """Spaces are the names of machines, by the slots that they have this time."""
        self.file = file
        self.problem: str | None = None
        """Why the last batch could not be stored, or None if it was."""
        self._spaces = {slot: space_key(name) for slot, name in spaces.items()}

    def work(self, requests: Sequence[DiskRequest], now_ns: int) -> list[DiskResult]:
        changes: list[tuple[bytes, bytes | None]] = []
        keys = [self._key(slot, effect.key) for slot, effect in requests]
        for key, (_, effect) in zip(keys, requests, strict=True):
            if key is not None and isinstance(effect, Store):
                changes.append((key, effect.value))
        stored = self._store(changes)
        results: list[DiskResult] = []
        for key, (_, effect) in zip(keys, requests, strict=True):
            if isinstance(effect, Load):
                results.append(Loaded(effect.token, None if key is None else self._load(key)))
            elif key is None:
                results.append(StoreFailed(effect.token, MALFORMED))
            else:
                results.append(
                    Stored(effect.token) if stored else StoreFailed(effect.token, FAILED)
                )
        return results

    def clear(self) -> None:
        raise UsageError("this disk is not cleared: close it, and remove its folder")

    def close(self) -> None:
        self.file.close()

    def _key(self, slot: int, key: bytes) -> bytes | None:
        space = self._spaces.get(slot)
        if space is None or len(key) > KEY_BYTES_MAX:
            log.error("machine %d has no such key: %r", slot, key[: KEY_BYTES_MAX + 1])
            return None
        return space + key

    def _store(self, changes: Sequence[tuple[bytes, bytes | None]]) -> bool:
        if not changes:
            return True
        try:
            self.file.put_all(changes)
        except ShoalError as error:
            self._failed("nothing can be stored", error)
            return False
        self.problem = None
        return True

    def _load(self, key: bytes) -> bytes | None:
        try:
            return self.file.get(key)
        except ShoalError as error:
            self._failed("something cannot be read", error)
            return None

    def _failed(self, what: str, error: ShoalError) -> None:
        """Tell the operator, once for each new problem."""
        problem = str(error)
        if problem != self.problem:
            log.error("%s: %s", what, problem)
        self.problem = problem


def space_key(name: str, key: bytes = b"") -> bytes:
    """Where a value of a machine is, by the machine's name."""
    return name.encode() + b"\0" + key
