"""The folder of a store: made durably, locked for one owner.

lmdb lets several processes write in turn. A store does not: its owner hands out seqs and leases,
and two owners of one log under two network addresses would be two nodes with one log.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from shoal.base.errors import NotFound
from shoal.storage.errors import StoreError, StoreInUse

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
