"""The file under a keystore: private from its first byte, whole or absent, never overwritten."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from shoal.base.errors import KeystoreError, NotFound

# Windows has neither meaningful mode bits nor directories that can be synced.
_POSIX = os.name == "posix"
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def read_private(path: Path, size_max: int) -> bytes:
    """All bytes of a file that only its owner can read; KeystoreError if others can, too."""
    try:
        # Without O_NONBLOCK, a named pipe put in place of the file would hang us.
        descriptor = os.open(path, _READ_FLAGS)
        try:
            _check_private(path, os.fstat(descriptor))  # of what we opened, not of the name
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(size_max + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise NotFound(
            f"there is no keystore at {path}: check the path, or make one with `shoal up`"
        ) from None
    except OSError as error:
        raise KeystoreError(f"keystore {path} cannot be read: {error.strerror}") from error
    if len(data) > size_max:
        raise KeystoreError(f"{path} is no keystore: it has more than {size_max} bytes")
    return data


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeystoreError(f"{path} is no keystore: not a regular file")
    if _POSIX and status.st_mode & 0o077:
        raise KeystoreError(
            f"keystore {path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}):"
            f" run `chmod 600 {shlex.quote(str(path))}`"
        )


def refuse_existing(path: Path) -> None:
    """KeystoreError if anything, even a dangling link, has this name."""
    if os.path.lexists(path):
        raise KeystoreError(
            f"{path} exists and is not overwritten, since the key in it would be lost:"
            " choose another path, or move it away"
        )


def create_private(path: Path, data: bytes, unique: str) -> None:
    """Write a new file, mode 0600, that survives power loss once this returns, or none at all."""
    refuse_existing(path)
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        try:
            _write_synced(temporary, data)
            _give_name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileNotFoundError:
        raise KeystoreError(
            f"keystore {path} has no directory to be in:"
            f" run `mkdir -p {shlex.quote(str(path.parent))}`"
        ) from None
    except OSError as error:
        raise KeystoreError(f"keystore {path} cannot be written: {error.strerror}") from error
    try:
        _sync_directory(path.parent)
    except OSError as error:
        raise KeystoreError(
            f"keystore {path} is written, but its directory could not be synced"
            f" ({error.strerror}): copy it elsewhere before you rely on it"
        ) from error


def replace_private(path: Path, data: bytes, unique: str) -> None:
    """Write a file, mode 0600, in place of the one that is there, if any: one of them is whole,
    whatever happens. KeystoreError if that cannot be."""
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        try:
            _write_synced(temporary, data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as error:
        raise KeystoreError(f"{path} cannot be written: {error.strerror}") from error


def _write_synced(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, _CREATE_FLAGS, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _give_name(temporary: Path, path: Path) -> None:
    # A link and not a rename: as atomic, but it fails if another process took the name meanwhile.
    try:
        os.link(temporary, path)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError:
        # A file system without hard links (some network mounts): the check, then the rename.
        refuse_existing(path)
        os.rename(temporary, path)


def _sync_directory(directory: Path) -> None:
    if not _POSIX:
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
