"""Copies of files while a node writes to them: each is of one moment."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import IO

import lmdb

from shoal.base.errors import UsageError
from shoal.cli.backup.contents import Item, Kind
from shoal.storage.config import DEFAULTS
from shoal.storage.opening import verify_pages

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
