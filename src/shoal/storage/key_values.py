"""Keys and values of machines on lmdb, behind the disk port.

Each machine has a space of its own, known by a name: the slot of a machine moves when a node gets
another role, its name does not. A file belongs to one node: what a machine keeps is its node's own
(its place in a chain that it signs), and would make another node say what it never said.

    table    key                 value
    meta     "format" | "owner"  the format's number | the node's id
    values   space, NUL, key     CRC-32 of the value, the value

lmdb does not check its pages: a value that is not as it was written is told as none.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import lmdb

from shoal.base.errors import ShoalError, UsageError
from shoal.base.ids import NodeId, show_node_id
from shoal.kernel.disk import DiskRequest, DiskResult
from shoal.kernel.effects import Load, Store
from shoal.kernel.inputs import Loaded, Stored, StoreFailed
from shoal.storage.config import DEFAULTS, StoreConfig
from shoal.storage.errors import StoreDamaged, StoreError, StoreFormatUnknown
from shoal.storage.layout import Table, Txn
from shoal.storage.lmdb_file import LmdbFile

KEY_VALUE_FORMAT = 1  # grows when a table changes its meaning; what is newer is refused
KEY_BYTES_MAX = 256  # lmdb takes 511; machines need 100
FAILED, MALFORMED = "failed", "malformed"  # reasons of StoreFailed

_FORMAT, _OWNER = b"format", b"owner"
_META, _VALUES = b"key-value-meta", b"key-values"  # no store of messages has tables of these names
_NUMBER = struct.Struct(">I")

log = logging.getLogger("shoal.storage")


class KeyValueFile(LmdbFile):
    """The file: values of one node, by space and key."""

    def __init__(self, folder: Path, owner: NodeId, config: StoreConfig = DEFAULTS) -> None:
        """Open the file of this node in this folder, or make one; StoreError if that cannot be."""
        self._owner = owner
        self._values: Table
        super().__init__(folder, config)

    def _open_tables(self, environment: lmdb.Environment) -> None:
        with environment.begin() as txn:
            is_new = txn.stat()["entries"] == 0
        if not is_new:
            self._check(environment)
        # Handles last only if their transaction commits, which for lmdb a read does not.
        with environment.begin(write=True) as txn:
            meta = environment.open_db(_META, txn=txn, create=is_new)
            self._values = environment.open_db(_VALUES, txn=txn, create=is_new)
            if is_new:
                txn.put(_FORMAT, _NUMBER.pack(KEY_VALUE_FORMAT), db=meta)
                txn.put(_OWNER, self._owner, db=meta)

    def _check(self, environment: lmdb.Environment) -> None:
        try:
            meta = environment.open_db(_META, create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError):
            raise StoreFormatUnknown(
                f"{self.file} is an lmdb file, but not of topics: name another folder"
            ) from None
        with environment.begin(db=meta) as txn:
            raw, owner = txn.get(_FORMAT), txn.get(_OWNER)
        if raw is None or len(raw) != _NUMBER.size or owner is None:
            raise StoreDamaged(f"{self.file} has lost its format or its owner: restore a copy")
        (found,) = _NUMBER.unpack(raw)
        if found > KEY_VALUE_FORMAT:
            raise StoreFormatUnknown(
                f"{self.file} has format {found}, this Shoal reads up to {KEY_VALUE_FORMAT}:"
                " upgrade Shoal"
            )
        if owner != self._owner:
            raise StoreError(
                f"{self.file} belongs to node {show_node_id(NodeId(owner))}, this one is"
                f" {show_node_id(self._owner)}: give the node its key back (key under [node]), or"
                " name another folder"
            )

    def put_all(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Store values, in this order and all in one transaction; None deletes."""
        self.write(self._put_all, changes)

    def get(self, key: bytes) -> bytes | None:
        """The value, or None; StoreDamaged if it is not what was written."""
        raw = self.read(lambda txn: txn.get(key, db=self._values))
        if raw is None:
            return None
        value = raw[_NUMBER.size :]
        if len(raw) < _NUMBER.size or _NUMBER.pack(zlib.crc32(value)) != raw[: _NUMBER.size]:
            raise StoreDamaged(
                f"{self.file} holds a value under {key!r} that is not as it was written: restore a"
                " copy, or move it away and let the other nodes fill a new one"
            )
        return value

    def _put_all(self, txn: Txn, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, value in changes:
            if value is None:
                txn.delete(key, db=self._values)
            else:
                txn.put(key, _NUMBER.pack(zlib.crc32(value)) + value, db=self._values)


class KeyValueDisk:
    """The disk port over a file. What goes wrong is in the log, and in `problem`."""

    def __init__(self, file: KeyValueFile, spaces: Mapping[int, str]) -> None:
        """Spaces are the names of machines, by the slots that they have this time."""
        self.file = file
        self.problem: str | None = None
        """Why the last batch could not be stored, or None if it was."""
        self._spaces = {slot: name.encode() + b"\0" for slot, name in spaces.items()}

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
