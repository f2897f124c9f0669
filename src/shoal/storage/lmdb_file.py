"""One lmdb environment: read and write transactions, a map that grows, errors with names.

Work is a function of a transaction. Reads see one state; writes are durable when `write` returns
(lmdb syncs its data, then its root), or not there at all. A write may run more than once, as the
map may be full halfway, so its function must not keep anything of a run that failed.
"""

from __future__ import annotations

import errno
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

import lmdb

from shoal.base.errors import UsageError
from shoal.storage.config import StoreConfig
from shoal.storage.errors import StoreDamaged, StoreError, StoreFull, StoreGone
from shoal.storage.folder import FolderLock, data_file, make_folder
from shoal.storage.gate import Gate
from shoal.storage.layout import Txn
from shoal.storage.opening import open_environment

P = ParamSpec("P")
T = TypeVar("T")

READERS_CHECKED = 256
"""Writes after which readers that died are looked for: a backup, or `shoal storage verify`, that
was killed in the middle would hold all pages back that are freed from then on."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


class LmdbFile(ABC):
    """A file of lmdb, open in this process and in no other. What its tables are, its kinds say."""

    def __init__(self, folder: Path, config: StoreConfig, *, readonly: bool = False) -> None:
        """Open it, or make it; StoreError of some kind if that cannot be. What is opened only to be
        read may be open elsewhere, too."""
        self.file = data_file(folder)
        self._config = config
        self._gate = Gate()
        self._closed = False
        self._writes = 0
        if not readonly:
            make_folder(folder)
        self._lock = None if readonly else FolderLock(folder)
        try:
            self._environment = open_environment(folder, config, readonly=readonly)
            try:
                try:
                    self._open_tables(self._environment)
                except self._errors as error:
                    raise self._named(error) from error
                self._name = str(self.file)
                self._identity = _identity_of(self._name)
            except BaseException:
                self._environment.close()
                raise
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    @abstractmethod
    def _open_tables(self, environment: lmdb.Environment) -> None:
        """Open what is in the file, or make it, all or none, if the file is new."""

    def close(self) -> None:
        """Once the transactions under way are done. Closing twice is fine."""
        with self._gate.alone():
            if not self._closed:
                self._closed = True
                self._environment.close()
                if self._lock is not None:
                    self._lock.release()

    # Both are written out, as each message that comes alone is a transaction.

    def read(self, work: Callable[Concatenate[Txn, P], T], *args: P.args, **named: P.kwargs) -> T:
        """What work finds in one state of the store."""
        self._gate.enter()
        try:
            self._check_open()
            with self._environment.begin() as txn:
                return work(txn, *args, **named)
        except self._errors as error:
            raise self._named(error) from error
        finally:
            self._gate.leave()

    def write(self, work: Callable[Concatenate[Txn, P], T], *args: P.args, **named: P.kwargs) -> T:
        """What work does, all of it durable; an exception undoes all of it."""
        while True:
            self._gate.enter()
            try:
                self._check_open()
                with self._environment.begin(write=True) as txn:
                    self._writes += 1
                    if not self._writes % READERS_CHECKED:
                        self._environment.reader_check()
                    return work(txn, *args, **named)
            except lmdb.MapFullError:
                full_bytes = self._environment.info()["map_size"]
            except self._errors as error:
                raise self._named(error) from error
            finally:
                self._gate.leave()
            self._grow(full_bytes)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"store {self.file.parent} is closed: open it again")
        self.check_present()

    def check_present(self) -> None:
        """StoreGone if the file that is open here is not the one under its name any more. What is
        written to it then is lost when this process ends: it costs a microsecond to know."""
        try:
            found = _identity_of(self._name)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            if found == self._identity:
                return
            reason = "another file is in its place"
        raise StoreGone(
            f"{self.file} is not there any more ({reason}), so nothing is stored or read: mount its"
            " disk again, or restore a backup, and start the node again"
        )

    def _grow(self, full_bytes: int) -> None:
        with self._gate.alone():
            if self._closed or self._environment.info()["map_size"] > full_bytes:
                return  # another thread was here first
            if full_bytes >= self._config.map_bytes_max:
                raise StoreFull(
                    f"{self.file} has filled its map of {full_bytes} bytes, nothing of this batch"
                    " was stored: raise map_bytes_max, or let retention keep less"
                )
            try:
                self._environment.set_mapsize(min(2 * full_bytes, self._config.map_bytes_max))
            except lmdb.Error as error:
                raise self._named(error) from error

    _errors: ClassVar[tuple[type[Exception], ...]] = (lmdb.Error,)
    """What `_named` takes."""

    def _named(self, error: Exception) -> StoreError:
        """The same with the file's name, and what to do."""
        if isinstance(error, _DAMAGE):
            return StoreDamaged(
                f"{self.file} is damaged or failed ({error}): close it and open it again; if that"
                " fails, restore a copy"
            )
        return self._failure(error)

    def _failure(self, error: Exception) -> StoreError:
        # A disk that fills up in the middle of a write is told as an input/output error.
        code = getattr(error, "code", 0)  # errors of the binding itself have none
        try:
            free_bytes = shutil.disk_usage(self.file.parent).free
        except OSError:
            free_bytes = 0  # the folder was deleted in this moment
        filled = code == errno.EIO and free_bytes < self._config.batch_bytes_max
        if code in _NO_ROOM or filled:
            return StoreFull(
                f"{self.file} has no room left on its disk ({free_bytes} bytes free), nothing of"
                " this batch was stored: free some, or let retention keep less"
            )
        return StoreError(
            f"{self.file} cannot be used ({error}; {free_bytes} bytes free on its disk): nothing"
            " was changed"
        )


def _identity_of(file: str) -> tuple[int, int]:
    """What tells a file from one that comes under the same name."""
    found = os.stat(file)  # a path object takes half as long again
    return found.st_dev, found.st_ino
