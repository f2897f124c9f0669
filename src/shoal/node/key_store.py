"""The group keys of a node on disk, beside its keystore: read at the start, written a little after
a key has come."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from shoal.base.errors import KeystoreError
from shoal.identity import Entropy, PrivateKey
from shoal.identity.group_key import GroupKey
from shoal.identity.group_key_file import read_group_keys, write_group_keys
from shoal.node.tasks import Tasks
from shoal.protocols.streams.keys.ring import KeyRing

SETTLE_S = 0.5  # keys come in bursts: whoever reads history gets many at once

log = logging.getLogger("shoal.keys")


class KeyStore:
    """A ring and its file. A node whose key is in no file keeps none."""

    def __init__(self, ring: KeyRing, owner: PrivateKey, entropy: Entropy) -> None:
        self._ring = ring
        self._path: Path | None = None
        self._owner = owner
        self._entropy = entropy
        self._tasks = Tasks()
        self._dirty = False
        self._closed = False

    def open(self, path: Path) -> None:
        """Read the file, and write it from now on; KeystoreError if it is unusable."""
        for key in read_group_keys(path, self._owner):
            self._ring.add(key)
        self._path = path

    def changed(self) -> None:
        """A key has come."""
        if self._path is not None and not self._dirty and not self._closed:
            self._dirty = True
            self._tasks.start(self._write_soon())

    async def close(self) -> None:
        """What has come is on disk; what comes from now on is not kept."""
        self._closed = True
        await self._tasks.close()
        await self._write()

    async def _write_soon(self) -> None:
        await asyncio.sleep(SETTLE_S)
        await self._write()

    async def _write(self) -> None:
        if not self._dirty or self._path is None:
            return
        self._dirty = False
        try:
            await asyncio.to_thread(self._replace, self._path, self._ring.all())
        except KeystoreError as error:
            log.error("group keys are not kept, and have to be asked for again: %s", error)

    def _replace(self, path: Path, keys: list[GroupKey]) -> None:
        """Another process of the same key may have written meanwhile: its keys stay."""
        held = {key.id for key in keys}
        others = [key for key in read_group_keys(path, self._owner) if key.id not in held]
        write_group_keys(path, others + keys, self._owner, self._entropy)
