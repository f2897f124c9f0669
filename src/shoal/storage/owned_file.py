"""An lmdb file of one node, with the number of its format: both are looked at before anything else.

What such a file keeps is its node's own (its place in a chain that it signs), and would make
another node say what it never said. A copy of it may be older than what its node has said since:
whoever restores one marks it (`mark_restored`), and a copy that was made by other means is another
file of the file system, which its inode tells, unless the number was given again meanwhile.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import ClassVar

import lmdb

from shoal.base.ids import NodeId, show_node_id
from shoal.storage.config import StoreConfig
from shoal.storage.errors import StoreDamaged, StoreError, StoreFormatUnknown
from shoal.storage.layout import Table, Txn
from shoal.storage.lmdb_file import LmdbFile

_FORMAT, _OWNER = b"format", b"owner"
_INODE, _RESTORED = b"inode", b"restored"
_NUMBER, _LONG = struct.Struct(">I"), struct.Struct(">Q")
_META_SUFFIX = b"-meta"  # how the names of first tables end
_TABLES_MAX = 32  # as many as any kind of file has


def with_checksum(value: bytes) -> bytes:
    """A value as it is written: lmdb does not check its pages."""
    return _NUMBER.pack(zlib.crc32(value)) + value


def without_checksum(raw: bytes) -> bytes | None:
    """The value; None if it is not as it was written."""
    value = raw[_NUMBER.size :]
    return value if raw == with_checksum(value) else None


class OwnedFile(LmdbFile):
    """Kinds say what their tables are; the first one has format and owner."""

    FORMAT: ClassVar[int]
    """Grows when a table changes its meaning; any other one is refused."""
    KIND: ClassVar[str]
    """What a file of this kind is, as in "an outbox"."""
    NAMES: ClassVar[tuple[bytes, ...]]
    """Of the tables: no other kind of file has such."""

    def __init__(self, folder: Path, owner: NodeId, config: StoreConfig) -> None:
        """Open the file of this node in this folder, or make one; StoreError if that cannot be."""
        self._owner = owner
        self._tables: list[Table] = []
        self.restored = False
        """This is a copy that may be older than what its node has said: until `settle_restored`."""
        super().__init__(folder, config)

    def _open_tables(self, environment: lmdb.Environment) -> None:
        with environment.begin() as txn:
            is_new = txn.stat()["entries"] == 0
        if not is_new:
            self._check(environment)
        # Handles last only if their transaction commits, which for lmdb a read does not.
        with environment.begin(write=True) as txn:
            self._tables = [environment.open_db(n, txn=txn, create=is_new) for n in self.NAMES]
            if is_new:
                txn.put(_FORMAT, _NUMBER.pack(self.FORMAT), db=self._tables[0])
                txn.put(_OWNER, self._owner, db=self._tables[0])
                self._born(txn)
            self._look_for_copy(txn, is_new)

    def _look_for_copy(self, txn: Txn, is_new: bool) -> None:
        meta = self._tables[0]
        inode = _LONG.pack(self.file.stat().st_ino & (1 << 64) - 1)
        if txn.get(_INODE, db=meta) != inode:
            txn.put(_INODE, inode, db=meta)
            if not is_new:
                txn.put(_RESTORED, b"1", db=meta)
        self.restored = txn.get(_RESTORED, db=meta) is not None

    def settle_restored(self, txn: Txn) -> None:
        """What follows from being a copy is written in this transaction: it is a file as any other
        one from then on."""
        txn.delete(_RESTORED, db=self._tables[0])
        self.restored = False

    def _born(self, txn: Txn) -> None:
        """What else a new file has, in the same transaction."""

    def _check(self, environment: lmdb.Environment) -> None:
        try:
            meta = environment.open_db(self.NAMES[0], create=False)
        except (lmdb.NotFoundError, lmdb.IncompatibleError):
            raise StoreFormatUnknown(
                f"{self.file} is an lmdb file, but not {self.KIND}: name another folder"
            ) from None
        with environment.begin(db=meta) as txn:
            raw, owner = txn.get(_FORMAT), txn.get(_OWNER)
        if raw is None or len(raw) != _NUMBER.size or owner is None:
            raise StoreDamaged(f"{self.file} has lost its format or its owner: restore a copy")
        (found,) = _NUMBER.unpack(raw)
        if found > self.FORMAT:
            raise StoreFormatUnknown(
                f"{self.file} has format {found}, this Shoal reads up to {self.FORMAT}:"
                " upgrade Shoal"
            )
        if found < self.FORMAT:
            raise StoreFormatUnknown(
                f"{self.file} has format {found}, this Shoal reads {self.FORMAT} alone: let"
                " the Shoal that wrote it end what waits there, and move it away then"
            )
        if owner != self._owner:
            raise StoreError(
                f"{self.file} belongs to node {show_node_id(NodeId(owner))}, this one is"
                f" {show_node_id(self._owner)}: give the node its key back (key under [node]), or"
                " name another folder"
            )


def mark_restored(folder: Path) -> None:
    """The file of a node in this folder was restored from an older copy: what it does not know may
    have been said since. Nobody has it open."""
    environment = lmdb.open(str(folder), create=False, max_dbs=_TABLES_MAX, lib_version=0)
    try:
        with environment.begin() as txn:
            names = [bytes(name) for name in txn.cursor().iternext(values=False)]
        for name in names:
            if name.endswith(_META_SUFFIX):
                meta = environment.open_db(name, create=False)
                with environment.begin(write=True, db=meta) as txn:
                    txn.put(_RESTORED, b"1")
    finally:
        environment.close()
