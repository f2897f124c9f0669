"""One lmdb environment: read and write transactions, a map that grows, errors with names.

Work is a function of a transaction. Reads see one state; writes are durable when `write` returns
(lmdb syncs its data, then its root), or not there at all. A write may run more than once, as the
map may be full halfway, so its function must not keep anything of a run that failed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar

import lmdb
import lmdb.verify

from shoal.base.errors import NotFound, UsageError
from shoal.base.ids import NodeId, show_node_id
from shoal.base.units import MIB
from shoal.storage.config import StoreConfig
from shoal.storage.errors import (
    StoreDamaged,
    StoreError,
    StoreFormatUnknown,
    StoreFull,
    StoreGone,
    StoreInUse,
)

# In quotes: lmdb's classes have parameters, and this one a name, in its stubs only.
Txn: TypeAlias = "lmdb.Transaction[bytes]"

Table: TypeAlias = "lmdb._Database"

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


# The folder of a store: made durably, locked for one owner.
#
# lmdb lets several processes write in turn. A store does not: its owner hands out seqs and leases,
# and two owners of one log under two network addresses would be two nodes with one log.


DATA_FILE = "data.mdb"  # lmdb's own names
LOCK_FILE = "store.lock"


def data_file(folder: Path) -> Path:
    """The one file that holds everything."""
    return folder / DATA_FILE


def holds_something(folder: Path) -> bool:
    """Whether anything was ever written to a file of this folder's store; StoreError if nobody can
    say."""
    file = data_file(folder)
    try:
        return file.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error


def make_folder(folder: Path) -> None:
    """The folder exists when this returns, also after a power loss."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise StoreError(f"store {folder} is a file: name a folder") from None
        return
    except FileNotFoundError:
        raise NotFound(
            f"store {folder} has no folder to be in: run `mkdir -p {folder.parent}`"
        ) from None
    except OSError as error:
        raise StoreError(f"store {folder} cannot be made: {error.strerror}") from error
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """The names in a folder survive a power loss from here on."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FolderLock:
    """Held from open to close. The kernel gives it up when the process dies, however it dies."""

    def __init__(self, folder: Path) -> None:
        """Take it, or StoreInUse."""
        self._path = folder / LOCK_FILE
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"store {folder} cannot be opened: {error.strerror}") from error
        try:
            # Not lockf: its locks belong to the process, so a second open here would get it too.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            if not isinstance(error, BlockingIOError):
                raise StoreError(f"store {folder} cannot be locked: {error.strerror}") from error
            who = "this process" if owner == str(os.getpid()) else f"process {owner or 'unknown'}"
            raise StoreInUse(
                f"store {folder} is open in {who}: close it there, or use another folder"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give it up. The file stays: removing it would let two others lock two files."""
        os.close(self._descriptor)


# Many at once, or one alone: lmdb must not move its map under a running transaction.


class Gate:
    """Transactions pass together; whoever moves the map or closes it waits for them, and passes
    before those that come later. Not to be entered twice by one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside with others of this kind."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Go inside with others of this kind: `leave` must follow, whatever happens."""
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        """Inside no more."""
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside with nobody else."""
        with self._changed:
            while self._alone:
                self._changed.wait()
            self._alone = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


# What is checked before a file is trusted.
#
# lmdb maps its file and believes it: a page that is missing or wrong ends the process. So pages are
# walked without lmdb first where that takes no time, and otherwise when the file's length is wrong,
# which is what a full disk or a broken copy leaves behind.


def verify_pages(folder: Path) -> None:
    """Walk every page of a closed store; StoreDamaged says what is wrong. About 300 MB/s."""
    file = data_file(folder)
    try:
        problems: list[str] = lmdb.verify.verify(str(folder))  # type: ignore[no-untyped-call]
    except lmdb.verify.VerifyError as error:
        raise StoreDamaged(f"{file} is damaged, or no store: {error}; restore a copy") from None
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error
    # A page that nobody uses and nobody may reuse is lost room, not damage.
    wrong = [problem for problem in problems if "a leak" not in problem]
    if wrong:
        raise StoreDamaged(
            f"{file} is damaged ({len(wrong)} faults; the first: {wrong[0]}): restore a copy, or"
            " move it away and let another storage node fill a new one"
        )


def open_environment(
    folder: Path, config: StoreConfig, *, readonly: bool = False
) -> lmdb.Environment:
    """lmdb on a file that looks whole."""
    file = data_file(folder)
    try:
        size = file.stat().st_size if file.exists() else 0
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error
    if not readonly and 0 < size <= config.verify_bytes_max:  # pages of one that is written to move
        verify_pages(folder)
    map_bytes = max(config.map_bytes, (size * 5 // 4 // MIB + 1) * MIB)
    if (
        readonly
    ):  # its owner may have it grow meanwhile, and a map that is too small ends every read
        map_bytes = config.map_bytes_max
    try:
        environment = lmdb.open(
            str(folder),
            map_size=min(map_bytes, max(config.map_bytes_max, size)),
            max_dbs=_TABLES_MAX,
            max_readers=config.readers_max,
            mode=0o700,
            readonly=readonly,
            create=not readonly,
            # Files of 0.9 open in every lmdb; pinned, since the library's default may move.
            lib_version=0,
        )
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
        raise StoreDamaged(f"{file} is damaged, or no store: {error}; restore a copy") from error
    except lmdb.Error as error:
        raise StoreError(f"{file} cannot be opened: {error}") from error
    try:
        # Pages that were taken and given back in one transaction may lie behind the file's end.
        pages = environment.info()["last_pgno"] + 1
        if readonly:
            return environment
        if size and size < pages * environment.stat()["psize"] and size > config.verify_bytes_max:
            verify_pages(folder)
        if not size:
            sync_folder(folder)
    except BaseException:
        environment.close()
        raise
    return environment


# An lmdb file of one node, with the number of its format: both are looked at before anything else.
#
# What such a file keeps is its node's own (its place in a chain that it signs), and would make
# another node say what it never said. A copy of it may be older than what its node has said since:
# whoever restores one marks it (`mark_restored`), and a copy that was made by other means is
# another file of the file system, which its inode tells, unless the number was given again
# meanwhile.


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
