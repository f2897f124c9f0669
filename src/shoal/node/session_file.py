"""The number of the last session of a key, in a file beside its keystore, so that a later start has
a higher one whatever the clock says; and whether a newer session has taken this one's place.

A copied folder has the file too: both copies go on from the same number, and the one that starts
later is the newer one. Where the file cannot be written, the clock alone orders sessions.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import KeystoreError, NotFound
from shoal.base.ids import short_node_id
from shoal.identity import Entropy, PrivateKey
from shoal.identity.keystore_file import read_private, replace_private
from shoal.identity.session import NUMBER_MAX, SessionRecord, begin_session

SESSION_FORMAT = 1
SUFFIX = ".session"

_FILE_BYTES_MAX = 1024

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]

log = logging.getLogger("shoal.node")


class SessionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says."""

    format: Annotated[int, Meta(ge=1, le=SESSION_FORMAT)]
    number: Number
    """Of the last start."""
    replaced_by: Number = 0
    """A higher number that another session of the key had while this one ran; 0 if none."""


def session_path(keystore: Path) -> Path:
    """Where the number of a keystore's last session is."""
    return keystore.with_name(keystore.name + SUFFIX)


def read_session(keystore: Path) -> SessionState | None:
    """What is known of the last session; None without a file, or with a damaged one, which costs
    no more than the order of two sessions while a clock is wrong."""
    path = session_path(keystore)
    try:
        return msgspec.json.decode(read_private(path, _FILE_BYTES_MAX), type=SessionState)
    except NotFound:
        return None
    except (KeystoreError, msgspec.MsgspecError) as error:
        log.warning("%s is not used: %s", path, error)
        return None


class HeldSession:
    """The session of a node that runs."""

    def __init__(
        self, key: PrivateKey, entropy: Entropy, now_ms: int, keystore: Path | None = None
    ) -> None:
        """Begins it. Without a keystore there is nothing to remember: the key is new."""
        self._keystore, self._entropy = keystore, entropy
        before = None if keystore is None else read_session(keystore)
        above = 0 if before is None else max(before.number, before.replaced_by)
        self.record: SessionRecord = begin_session(key, entropy, now_ms, above)
        self._name = short_node_id(key.address)
        self._write()

    def replaced(self, newer: SessionRecord) -> None:
        """Another session has a higher number: remember it for the next start and the doctor."""
        self._write(newer.number)

    def _write(self, replaced_by: int = 0) -> None:
        if self._keystore is None:
            return
        state = SessionState(SESSION_FORMAT, self.record.number, replaced_by)
        unique = self._entropy.token(8).hex()
        try:
            replace_private(session_path(self._keystore), msgspec.json.encode(state), unique)
        except KeystoreError as error:
            log.warning(
                "the number of this session of %s is not kept (%s): until it is, only the clock"
                " tells which of two copies of this node is the newer one",
                self._name,
                error,
            )
