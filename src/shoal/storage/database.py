"""The lmdb file of a store of messages: its tables, and the id of its own log."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import lmdb

from shoal.identity import Entropy
from shoal.storage.config import StoreConfig
from shoal.storage.damage import Damage
from shoal.storage.errors import RowDamaged, StoreError, StoreGone
from shoal.storage.folder import data_file, holds_something
from shoal.storage.layout import Rotten, Txn
from shoal.storage.lmdb_file import LmdbFile
from shoal.storage.opening import new_log_id, open_tables


class Database(LmdbFile):
    """The file of a store, open in this process and in no other."""

    def __init__(
        self,
        folder: Path,
        entropy: Entropy,
        config: StoreConfig,
        *,
        may_create: bool = True,
        readonly: bool = False,
    ) -> None:
        """Open it, or make it if it may be made; StoreError of some kind if that cannot be."""
        if not may_create and not holds_something(folder):
            raise StoreGone(f"there is no store in {folder}")
        self._entropy = entropy
        self.damage = Damage(str(data_file(folder)))
        self._readonly = readonly
        super().__init__(folder, config, readonly=readonly)
        self._page_bytes = self._environment.stat()["psize"]

    def _open_tables(self, environment: lmdb.Environment) -> None:
        self.tables, log = open_tables(
            environment, self.file, self._entropy, readonly=self._readonly
        )
        self.log = UUID(bytes=log)

    def new_log_id(self) -> UUID:
        """The id of a log that was never heard of here. Entropy that is seeded, as in tests, gives
        the same again."""
        while True:
            log = new_log_id(self._entropy)
            if self.read(lambda txn, id: txn.get(id, db=self.tables.log_numbers), log) is None:
                return UUID(bytes=log)

    def file_bytes(self) -> int:
        """Of the whole file."""
        try:
            return self.file.stat().st_size
        except OSError as error:
            raise StoreGone(f"{self.file} is not there any more: {error.strerror}") from error

    def size_bytes(self, txn: Txn) -> int:
        """Pages in use. The file may be larger: pages that were freed wait in it for reuse."""
        pages = 0
        for table in self.tables:
            stat = txn.stat(table)
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * self._page_bytes

    _errors = (lmdb.Error, Rotten)

    def _named(self, error: Exception) -> StoreError:
        if isinstance(error, Rotten):
            return RowDamaged(
                f"{self.file} holds a message that is not as it was written, {error}: run"
                " `shoal storage repair`, or restore a copy"
            )
        return super()._named(error)
