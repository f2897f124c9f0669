"""The blocks of an embedded chain in one file that only grows, for any number of processes.

    file    magic, then records
    record  length of the payload (4 bytes), its CRC-32 (4 bytes), the payload

One process writes at a time, behind a lock on the file that the kernel takes back when the process
dies. What it wrote is durable before anybody is told. Others read on from where they were, without
the lock: a record that is not whole yet is none yet. A writer that died in the middle of one leaves
a torn end, which the next writer cuts off. A record that is wrong with others behind it was whole
once: that is damage, and nothing is cut.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.base.errors import NotFound, RegistryDamaged, UsageError
from shoal.base.units import MIB

MAGIC = b"shoal registry 1\n"  # the number grows when the format changes
RECORD_BYTES_MAX = MIB  # a transaction has a few KiB
_HEAD = struct.Struct(">II")


class BlockFile:
    """One open file, and how far it was read."""

    def __init__(self, path: Path) -> None:
        """Open it; NotFound if there is none, RegistryDamaged if it is something else."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound(
                f"there is no registry {path}: make one with `shoal registry deploy`"
            ) from None
        except OSError as error:
            raise UsageError(f"registry {path} cannot be opened: {error.strerror}") from error
        magic = os.pread(self._descriptor, len(MAGIC), 0)
        if magic != MAGIC:
            os.close(self._descriptor)
            raise RegistryDamaged(
                f"{path} is no registry that this Shoal reads (it begins with {magic!r}):"
                " upgrade Shoal, restore a copy, or name another folder"
            )
        self._end = len(MAGIC)
        """Behind the last record that was read or written here."""

    @classmethod
    def create(cls, path: Path) -> BlockFile:
        """A new file, without records."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, MAGIC, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return cls(path)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def read_new(self) -> Iterator[bytes]:
        """The payloads of records that were not read yet."""
        size = os.fstat(self._descriptor).st_size
        while (payload := self._record(size)) is not None:
            self._end += _HEAD.size + len(payload)
            yield payload

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the one who writes. Read what is new inside, before writing."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def append(self, payload: bytes) -> None:
        """Add a record, durably, or none; only inside `writing`, with everything read."""
        record = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            # Whatever is here was torn: everything whole has been read.
            os.ftruncate(self._descriptor, self._end)
            _write_all(self._descriptor, record, self._end)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            raise UsageError(
                f"registry {self.path} cannot be written ({error.strerror}), nothing was changed:"
                " free some room, or mend the disk"
            ) from error
        self._end += len(record)

    def _record(self, size: int) -> bytes | None:
        """The record behind the last one; None: there is none, or it is not whole."""
        head = os.pread(self._descriptor, _HEAD.size, self._end)
        if len(head) < _HEAD.size:
            return None
        count, crc = _HEAD.unpack(head)
        start = self._end + _HEAD.size
        if 0 < count <= RECORD_BYTES_MAX:
            payload = os.pread(self._descriptor, count, start)
            if len(payload) == count and zlib.crc32(payload) == crc:
                return payload
            if start + count >= size:
                return None
        elif not any(os.pread(self._descriptor, size - self._end, self._end)):
            return None  # a file system that gave room, and then no content
        raise RegistryDamaged(
            f"registry {self.path} is damaged at byte {self._end} of {size}: restore a copy"
        )


def sync_folder(folder: Path) -> None:
    """The names in a folder survive a power loss from here on."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written
