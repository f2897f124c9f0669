"""One key is one node. While a node runs under a key, the keystore is locked: a second node with
the same id would take the links of the first, and neither would work.

A network file for people at a terminal may say `spare_key`: then a second process, which finds the
key in use, runs under a new one. Streams of its own ("/path") are those of the key all the same,
and what is decided in the registry is decided by the key.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time_ns
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError, KeystoreError, NotFound, UsageError, WrongPassphrase
from shoal.base.ids import short_node_id, show_node_id
from shoal.base.units import MS_NS
from shoal.config.network_file import NetworkFile
from shoal.identity import Entropy, PrivateKey, open_keystore
from shoal.identity.keystore import read_private, replace_private
from shoal.identity.session_record import NUMBER_MAX, SessionRecord, begin_session

log = logging.getLogger("shoal.node")


class HeldKey(msgspec.Struct, frozen=True):
    """What a node runs under."""

    key: PrivateKey
    owner: PrivateKey
    """Whose "/path" is: the key that the network file names, also for a node with a spare one."""
    session: HeldSession
    """This run of the node."""


@asynccontextmanager
async def held_key(network: NetworkFile, entropy: Entropy) -> AsyncIterator[HeldKey]:
    """The key that the file names, or a new one, for as long as a node runs under it."""
    key = await key_of(network, entropy)
    if network.node.key is None:
        yield HeldKey(key, key, HeldSession(key, entropy, time_ns() // MS_NS))
        return
    path = network.path(network.node.key)
    descriptor = _lock(path)
    if descriptor is None:
        if not network.node.spare_key:
            raise UsageError(
                f"keystore {path} is in use by another node of this machine, and one key is one"
                " node: stop that one, or give this one a key of its own (`shoal key new`)"
            )
        spare = PrivateKey.generate(entropy)
        log.warning(
            "%s is in use by another node of this machine, so this one signs as %s on its behalf",
            path,
            show_node_id(spare.address),
        )
        yield HeldKey(spare, key, HeldSession(spare, entropy, time_ns() // MS_NS))
        return
    try:
        yield HeldKey(key, key, HeldSession(key, entropy, time_ns() // MS_NS, path))
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Held until it is closed, or the process dies. None: another has it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KeystoreError(f"keystore {path} cannot be read: {error.strerror}") from error
    try:
        # Not lockf: its locks belong to the process, so a second node in it would get it too.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        return descriptor  # a file system without locks
    return descriptor


# What a node proves itself with: its key, and its certificate.


async def key_of(network: NetworkFile, entropy: Entropy) -> PrivateKey:
    """The key that the file names, or a new one."""
    if network.node.key is None:
        return PrivateKey.generate(entropy)
    path, passphrase = network.path(network.node.key), network.passphrase()
    try:
        # It takes a third of a second of one core, on purpose.
        return await asyncio.to_thread(open_keystore, path, passphrase)
    except WrongPassphrase as error:
        if network.node.passphrase is not None:
            raise
        raise ConfigError(
            f"node.passphrase: {path} needs one: write env:NAME or file:PATH"
        ) from error


def tls_of(network: NetworkFile) -> ssl.SSLContext | None:
    """How wss:// addresses are served, if there is a certificate."""
    if network.node.certificate is None:
        return None
    path = network.path(network.node.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"node.certificate: {path}: {error}: give a PEM file with certificate and key"
        ) from error
    return context


# The number of the last session of a key, in a file beside its keystore, so that a later start has
# a higher one whatever the clock says; and whether a newer session has taken this one's place.
#
# A copied folder has the file too: both copies go on from the same number, and the one that starts
# later is the newer one. Where the file cannot be written, the clock alone orders sessions.


SESSION_FORMAT = 1
SUFFIX = ".session"

_FILE_BYTES_MAX = 1024

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


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
