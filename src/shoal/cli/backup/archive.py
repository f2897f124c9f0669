"""The file of a backup: a tar that any tar reads, with a manifest in front.

manifest.json     format, version of Shoal, when; of each file its length, SHA-256 and mode
files/NAME        the files

A backup is written under another name, and gets its own when it is whole and on disk.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

import msgspec

from shoal import __version__
from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.cli.backup.contents import Item, Kind
from shoal.cli.backup.copying import CHUNK_BYTES, copy_item, digest_of
from shoal.identity import SystemEntropy
from shoal.storage.folder import data_file
from shoal.storage.owned_file import mark_restored
from shoal.storage.rows import LogId
from shoal.storage.store import Store

BACKUP_FORMAT = 2  # grows when an older Shoal would restore a newer backup wrongly
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 1 << 20
FILES = "files/"

Tell = Callable[[str], None]


class BackupDamaged(ShoalError):
    """A backup that is not as it was written; nothing was restored."""


class Entry(msgspec.Struct, frozen=True):
    """One file of a backup."""

    name: str
    bytes: int
    sha256: str
    mode: int
    kind: str


class NewLog(NamedTuple):
    """A store of messages that was restored."""

    folder: Path
    old: LogId
    new: LogId


class Manifest(msgspec.Struct, frozen=True):
    """What a backup says of itself."""

    format: int
    shoal: str
    made: datetime
    entries: list[Entry]
    checksum: str = ""

    def sealed(self) -> Manifest:
        """With a checksum over the rest."""
        plain = msgspec.structs.replace(self, checksum="")
        digest = hashlib.sha256(msgspec.json.encode(plain)).hexdigest()
        return msgspec.structs.replace(plain, checksum=digest)


def write_backup(path: Path, items: list[Item], tell: Tell) -> Manifest:
    """Copy everything, and write the archive; UsageError if there is one already."""
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already, and is not overwritten: choose another name")
    try:
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            return _write(path, items, Path(folder), tell)
    except OSError as error:
        raise UsageError(f"backup {path} cannot be written: {error.strerror}") from error


def _write(path: Path, items: list[Item], folder: Path, tell: Tell) -> Manifest:
    entries = []
    for number, item in enumerate(items):
        tell(item.name)
        copy = copy_item(item, folder)
        with copy.open("rb") as file:
            size, digest = digest_of(file)
        mode = item.path.stat().st_mode & 0o777
        entries.append(Entry(item.name, size, digest, mode, item.kind))
        os.replace(copy, folder / str(number))
    manifest = Manifest(BACKUP_FORMAT, __version__, datetime.now(UTC), entries).sealed()
    unfinished = folder / "archive"
    # It holds keys.
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            text = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
            tar.addfile(_info(MANIFEST, len(text), 0o600), io.BytesIO(text))
            for number, entry in enumerate(entries):
                tell(f"{entry.name}, into the archive")
                staged = folder / str(number)
                with staged.open("rb") as file:
                    tar.addfile(_info(FILES + entry.name, entry.bytes, entry.mode), file)
                staged.unlink()
        out.flush()
        os.fsync(out.fileno())
    os.link(unfinished, path)  # not a rename: it fails if there is one by now
    _sync(path.parent)
    return manifest


def read_manifest(path: Path) -> Manifest:
    """What a backup says of itself; nothing else of it is looked at."""
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()
            if first is None or first.name != MANIFEST or first.size > MANIFEST_BYTES_MAX:
                raise UsageError(f"{path} is no backup of Shoal: it has no manifest in front")
            text = _content(tar, first).read()
        known = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        number = msgspec.json.decode(known.get("format", msgspec.Raw(b"0")), type=int)
        if number > BACKUP_FORMAT:
            raise UsageError(
                f"{path} has format {number}, this Shoal reads up to {BACKUP_FORMAT}: upgrade Shoal"
            )
        if 0 < number < BACKUP_FORMAT:
            raise UsageError(
                f"{path} has format {number}, this Shoal reads {BACKUP_FORMAT} alone: restore it"
                " with the Shoal that made it"
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except FileNotFoundError:
        raise NotFound(f"there is no backup {path}: make one with `shoal backup {path}`") from None
    except tarfile.TarError as error:
        raise BackupDamaged(f"{path} is damaged, or no backup: {error}") from error
    except msgspec.MsgspecError as error:
        raise BackupDamaged(f"{path} is damaged: its {MANIFEST} makes no sense") from error
    except OSError as error:
        raise UsageError(f"backup {path} cannot be read: {error.strerror}") from error
    if manifest != manifest.sealed():
        raise BackupDamaged(f"{path} is damaged: its {MANIFEST} is not as it was written")
    return manifest


def verify(path: Path, manifest: Manifest, tell: Tell) -> None:
    """Read everything; BackupDamaged names the files that are not as they were written."""
    left = {FILES + entry.name: entry for entry in manifest.entries}
    bad = []
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                entry = left.get(member.name)
                if entry is not None:
                    tell(entry.name)
                    found = digest_of(_content(tar, member))
                    del left[member.name]
                    if found != (entry.bytes, entry.sha256):
                        bad.append(entry.name)
    except (tarfile.TarError, EOFError, OSError):
        pass  # it ends here: what was not read is missing
    bad += [entry.name for entry in left.values()]
    if bad:
        raise BackupDamaged(
            f"{path} is damaged, nothing was restored: {', '.join(bad)} not as written; take"
            " another backup"
        )


def restore_files(
    path: Path, manifest: Manifest, folder: Path, tell: Tell, now_ns: int
) -> list[NewLog]:
    """Write everything into a folder; UsageError if anything of it is there already. Stores of
    messages have new log ids, which are given back."""
    new_logs: list[NewLog] = []
    targets = {
        FILES + entry.name: (entry, _target(folder, entry.name)) for entry in manifest.entries
    }
    taken = [str(target) for _, target in targets.values() if os.path.lexists(target)]
    if taken:
        raise UsageError(
            f"{', '.join(taken)} would be overwritten: name a folder without, or move it away"
        )
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.name in targets:
                    entry, target = targets[member.name]
                    tell(entry.name)
                    if entry.kind == Kind.STORE:
                        new_logs.append(_restore_store(tar, member, entry, target, now_ns))
                    elif entry.kind == Kind.LMDB:
                        _restore_marked(tar, member, entry, target)
                    else:
                        _restore(tar, member, entry, target)
    except OSError as error:
        raise UsageError(f"restoring into {folder}: {error.strerror or error}") from error
    return new_logs


def _restore_store(
    tar: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, target: Path, now_ns: int
) -> NewLog:
    """A store may have given seqs since it was copied. So it gets its name when it has a new log
    id: a restore that is cut short must not leave one that gives them to other rows."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".restoring.", dir=target.parent) as folder:
        _restore(tar, member, entry, data_file(Path(folder)))
        with Store(Path(folder), SystemEntropy()) as store:
            old = store.log
            new = store.new_log(now_ns)
        os.link(data_file(Path(folder)), target)  # not a rename: it fails if there is one by now
    _sync(target.parent)
    return NewLog(target.parent, old, new)


def _restore_marked(
    tar: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, target: Path
) -> None:
    """What a node has said since the copy was made is not in it. So it gets its name when it says
    that it is a copy: a restore that is cut short must not leave one that passes for the original.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".restoring.", dir=target.parent) as folder:
        _restore(tar, member, entry, data_file(Path(folder)))
        mark_restored(Path(folder))
        os.link(data_file(Path(folder)), target)  # not a rename: it fails if there is one by now
    _sync(target.parent)


def _restore(tar: tarfile.TarFile, member: tarfile.TarInfo, entry: Entry, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    source = _content(tar, member)
    with os.fdopen(os.open(target, flags, entry.mode & 0o700), "wb") as out:
        while chunk := source.read(CHUNK_BYTES):
            out.write(chunk)
        out.flush()
        os.fchmod(out.fileno(), entry.mode & 0o777)
        os.fsync(out.fileno())
    _sync(target.parent)


def _target(folder: Path, name: str) -> Path:
    """Where a file goes; whoever made the archive must not choose a place outside of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise BackupDamaged(f"the backup names {name!r}, which is no file of a folder")
    return folder.joinpath(*parts)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    found = tar.extractfile(member)
    if found is None:
        raise tarfile.ReadError(f"{member.name} is no file")
    return found


def _info(name: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    return info


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
