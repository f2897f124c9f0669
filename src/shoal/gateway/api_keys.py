"""API keys: who may do what, in a file that holds no key, only what tells one when it is shown.

    shoal_ID_SECRET

The secret is 32 random bytes, so a plain digest of it cannot be guessed back. The file is read
again when it has changed: a key that is revoked is refused within a second.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError, NotFound, UsageError
from shoal.gateway.route_table import Scope
from shoal.identity import Entropy

PREFIX = "shoal"
SECRET_BYTES = 32
ID_BYTES = 4
LOOK_AGAIN_S = 1.0
KEYS_MAX = 10_000
EVERYTHING = "*"

log = logging.getLogger("shoal.gateway")


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key, as the file knows it."""

    id: str
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Annotated[list[Scope], Meta(min_length=1)]
    streams: Annotated[list[str], Meta(min_length=1)]
    """Patterns of stream ids and of topics' CIDs: * is any text, slashes too."""
    digest: str
    created: datetime

    def may(self, scope: Scope, subject: str | None) -> bool:
        """Whether it allows something with a stream or topic, or with the node as a whole."""
        if scope not in self.scopes:
            return False
        if subject is None:
            return EVERYTHING in self.streams
        return any(fnmatchcase(subject, pattern) for pattern in self.streams)


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: Annotated[list[ApiKey], Meta(max_length=KEYS_MAX)]


class KeyFile:
    """The file of keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[ApiKey]:
        """All keys; none if there is no file yet."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"keys {self.path} cannot be read: {error.strerror}") from error
        try:
            return msgspec.json.decode(raw, type=_KeyFile).keys
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.path} is no file of keys ({error}): `shoal gateway key new` makes one"
            ) from error

    def add(
        self, name: str, scopes: Sequence[Scope], streams: Sequence[str], entropy: Entropy
    ) -> str:
        """A new key: its only copy."""
        if not name:
            raise UsageError("a key's name is empty: say who or what it is for")
        secret, id = entropy.token(SECRET_BYTES).hex(), entropy.token(ID_BYTES).hex()
        now = datetime.now(UTC).replace(microsecond=0)
        key = ApiKey(id, name, list(scopes), list(streams), _digest(secret), now)
        self._write([*self.read(), key])
        return f"{PREFIX}_{id}_{secret}"

    def revoke(self, id: str) -> ApiKey:
        """A key is none any more."""
        keys = self.read()
        for key in keys:
            if key.id == id:
                self._write([other for other in keys if other is not key])
                return key
        raise NotFound(f"no key {id} in {self.path}: `shoal gateway key list` shows them")

    def _write(self, keys: list[ApiKey]) -> None:
        """All or nothing, for the owner's eyes only."""
        text = msgspec.json.format(msgspec.json.encode(_KeyFile(keys)), indent=2)
        try:
            file, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            with os.fdopen(file, "wb") as new:
                new.write(text + b"\n")
                new.flush()
                os.fsync(new.fileno())
            os.replace(name, self.path)
        except OSError as error:
            raise ConfigError(f"keys {self.path} cannot be written: {error.strerror}") from error


class KeyRing:
    """The keys that hold now."""

    def __init__(self, file: KeyFile) -> None:
        self._file = file
        self._keys = {key.id: key for key in file.read()}
        self._stamp = self._stamp_now()
        self._looked_s = monotonic()

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, shown: str) -> ApiKey | None:
        """Whose key it is, if it is one."""
        self.look_again()
        prefix, _, rest = shown.partition("_")
        id, _, secret = rest.partition("_")
        key = self._keys.get(id)
        # The same work for ids that are not there: how long it takes tells nothing.
        right = hmac.compare_digest(_digest(secret), "" if key is None else key.digest)
        return key if right and prefix == PREFIX else None

    def holding(self, key: ApiKey) -> ApiKey | None:
        """A key that was found before, as the file has it now: None if it is revoked."""
        found = self._keys.get(key.id)
        return found if found is not None and found.digest == key.digest else None

    def look_again(self) -> None:
        """Read the file, if it has changed."""
        if monotonic() - self._looked_s < LOOK_AGAIN_S:
            return
        self._looked_s = monotonic()
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._keys, self._stamp = {}, stamp
            try:
                self._keys = {key.id: key for key in self._file.read()}
            except ConfigError as error:
                log.error("nobody is let in: %s", error)

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            stat = self._file.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
