"""The file of a backup: a tar that any tar reads, with a manifest in front.

manifest.json     format, version of Shoal, when; of each file its length, SHA-256 and mode
files/NAME        the files

A backup is written under another name, and gets its own when it is whole and on disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

import lmdb
import msgspec

from shoal import __version__
from shoal.base.errors import NotFound, ShoalError, UsageError
from shoal.config.network_file import NetworkFile, load_network_file
from shoal.identity import SystemEntropy, split_secret_source
from shoal.identity.group_key import group_key_path
from shoal.node.keys.key_lock import session_path
from shoal.node.roles.storage import is_missing, marker_path
from shoal.node.streams.publishing import unkept_path
from shoal.registry.opening import BLOCKS_FILE
from shoal.storage.config import DEFAULTS
from shoal.storage.lmdb_file import data_file, mark_restored, verify_pages
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import LogId

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


# What a node must not lose: what its network files name, in the order in which it is copied.
#
# The outbox comes before the store: what is done with in the outbox of a backup is then in the
# store of the same backup. What is in both is dropped when it is sent again. The registry comes
# last: every stream that anything else speaks of is in it.


OUTSIDE = "outside"
"""Where a backup has what is not in its folder: under the whole path."""


class Kind(StrEnum):
    """How something is copied while its node runs."""

    FILE = "file"
    BLOCKS = "blocks"
    """Of an embedded registry: it only grows."""
    LMDB = "lmdb"
    STORE = "store"
    """Of messages, in such a file: what is restored goes on under a new log id."""


class Item(msgspec.Struct, frozen=True):
    """One file."""

    path: Path
    name: str
    """In the archive: relative to the folder of the first network file."""
    kind: Kind = Kind.FILE


def items_of(configs: list[Path]) -> list[Item]:
    """All files of these network files; UsageError if one that is named is not there."""
    root = configs[0].resolve().parent
    found: dict[str, Item] = {}
    for config in configs:
        network = load_network_file(config)
        for path, kind, needed in [(config, Kind.FILE, True), *_named(network)]:
            whole = path.resolve()
            if whole.is_file():
                name = _name(whole, root)
                found.setdefault(name, Item(whole, name, kind))
            elif needed:
                raise UsageError(f"{config} names {path}, which is not there: correct the file")
    return sorted(found.values(), key=lambda item: item.kind is Kind.BLOCKS)


def _named(network: NetworkFile) -> Iterator[tuple[Path, Kind, bool]]:
    """What a network file names; whether it has to be there before a node ever ran."""
    node, outbox, gateway, mqtt = network.node, network.outbox, network.gateway, network.mqtt
    if node.key is not None:
        keystore = network.path(node.key)
        yield keystore, Kind.FILE, True
        yield group_key_path(keystore), Kind.FILE, False
        yield unkept_path(keystore), Kind.FILE, False
        yield session_path(keystore), Kind.FILE, False
        yield marker_path(keystore), Kind.FILE, False
    secrets = [
        node.passphrase,
        None if outbox is None else outbox.token,
        None if mqtt is None else mqtt.password,
        None if network.webrtc is None else network.webrtc.password,
    ]
    for source in secrets:
        if source is not None:
            where, name = split_secret_source("secret", source)
            if where == "file":
                yield network.path(name), Kind.FILE, True
    files = [node.certificate]
    if gateway is not None:
        files += [gateway.keys, gateway.certificate, gateway.private_key]
    if mqtt is not None:
        files.append(mqtt.authority)
    for file in files:
        if file is not None:
            yield network.path(file), Kind.FILE, True
    for section in (outbox, network.topics):
        if section is not None:
            yield data_file(network.path(section.folder)), Kind.LMDB, False
    if network.storage is not None:
        folder = network.path(network.storage.folder)
        if not network.storage.create and is_missing(network, network.storage):
            raise UsageError(
                f"there is no store in {folder}, where this key has had one: a backup without it"
                " would look whole; mount its disk, or restore an older backup first"
            )
        yield data_file(network.path(network.storage.folder)), Kind.STORE, False
    if network.registry is not None and network.registry.folder is not None:
        yield network.path(network.registry.folder) / BLOCKS_FILE, Kind.BLOCKS, True


def _name(path: Path, root: Path) -> str:
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return f"{OUTSIDE}/{path.relative_to(path.anchor).as_posix()}"


# Copies of files while a node writes to them: each is of one moment.


CHUNK_BYTES = 1 << 20


def copy_item(item: Item, folder: Path) -> Path:
    """A copy in a folder, for the time being; readable by its owner only."""
    copy = folder / "copy"
    try:
        if item.kind in (Kind.LMDB, Kind.STORE):
            _copy_lmdb(item.path.parent, folder / "lmdb")
            os.replace(folder / "lmdb" / item.path.name, copy)
        else:
            with item.path.open("rb") as source, copy.open("wb") as target:
                if item.kind is Kind.BLOCKS:
                    fcntl.flock(source, fcntl.LOCK_SH)  # not in the middle of a record
                shutil.copyfileobj(source, target, CHUNK_BYTES)
    except (OSError, lmdb.Error) as error:
        raise UsageError(f"{item.path} cannot be copied: {error}") from error
    return copy


def _copy_lmdb(folder: Path, into: Path) -> None:
    """What is committed now, whole, without the pages that are free. A node that runs goes on."""
    into.mkdir(mode=0o700, exist_ok=True)
    # As in storage/opening.py; as many tables as any kind of file has.
    environment = lmdb.open(
        str(folder),
        map_size=DEFAULTS.map_bytes_max,  # the file may grow meanwhile
        readonly=True,
        create=False,
        max_dbs=32,
        lib_version=0,
        readahead=False,
    )
    try:
        environment.copy(str(into), compact=True)
    finally:
        environment.close()
    verify_pages(into)


def digest_of(file: IO[bytes]) -> tuple[int, str]:
    """Length and SHA-256 of the rest of a file."""
    digest, count = hashlib.sha256(), 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        count += len(chunk)
    return count, digest.hexdigest()
