"""What a node must not lose: what its network files name, in the order in which it is copied.

The outbox comes before the store: what is done with in the outbox of a backup is then in the store
of the same backup. What is in both is dropped when it is sent again. The registry comes last: every
stream that anything else speaks of is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from shoal.base.errors import UsageError
from shoal.identity import split_secret_source
from shoal.identity.group_key_file import group_key_path
from shoal.node.network_file import NetworkFile, load_network_file
from shoal.node.session_file import session_path
from shoal.node.storage_role import is_missing, marker_path
from shoal.node.unkept import unkept_path
from shoal.registry.opening import BLOCKS_FILE
from shoal.storage.folder import data_file

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
