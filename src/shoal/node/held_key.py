"""One key is one node. While a node runs under a key, the keystore is locked: a second node with
the same id would take the links of the first, and neither would work.

A network file for people at a terminal may say `spare_key`: then a second process, which finds the
key in use, runs under a new one. Streams of its own ("/path") are those of the key all the same,
and what is decided in the registry is decided by the key.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time_ns

import msgspec

from shoal.base.errors import KeystoreError, UsageError
from shoal.base.ids import show_node_id
from shoal.base.units import MS_NS
from shoal.identity import Entropy, PrivateKey
from shoal.node.credentials import key_of
from shoal.node.network_file import NetworkFile
from shoal.node.session_file import HeldSession

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
