"""The folder of `shoal up`: what its network is, kept from one start to the next.

shoal.toml               the network file of whoever works in this folder
shoal-data/up.toml       that of the node with all roles; written last: the folder is whole then
shoal-data/node.key      its key
shoal-data/you.key       yours, which owns the streams that are made here
shoal-data/registry      streams and permissions
shoal-data/store         messages of streams
shoal-data/topics        durable topics

A start that was cut short goes on where it was: what is there is never made again.
"""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.base.errors import NotFound, UsageError
from shoal.base.ids import NodeId, parse_stream_id, show_node_id
from shoal.config.network_file import NetworkFile, load_network_file
from shoal.identity import PrivateKey, ScryptCost, SystemEntropy, create_keystore, open_keystore
from shoal.storage.errors import StoreInUse
from shoal.storage.lmdb_file import FolderLock

if TYPE_CHECKING:
    from shoal.registry.port import Registry

DATA = "shoal-data"
YOURS = "shoal.toml"
PORT, GATEWAY_PORT = 7700, 7780  # if they are free
GREETINGS = "/greetings"
"""A stream that everybody may use, to begin with."""

# Keys without a passphrase are protected by the mode of their file alone: guesses need no price.
_CHEAP = ScryptCost(n=2, r=1, p=1)


class UpFolder:
    """Held by one process at a time, from `open` to `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / DATA
        self.yours = folder / YOURS
        self.file = self.data / "up.toml"
        self._lock: FolderLock | None = None

    @property
    def is_new(self) -> bool:
        """Whether no start was finished here."""
        return not self.file.exists()

    async def open(self) -> NetworkFile:
        """The network file of the node with all roles; everything is made if it is not there."""
        if self.is_new and self.yours.exists():
            raise UsageError(
                f"{self.yours} is there already, and not of `shoal up`: move it away, or name"
                " another folder"
            )
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"folder {self.data} cannot be made: {error.strerror}") from error
        try:
            self._lock = FolderLock(self.data)
        except StoreInUse:
            raise UsageError(
                f"`shoal up` runs in {self.folder} already: stop it, or name another folder"
            ) from None
        try:
            # Keys must not be published by accident.
            (self.data / ".gitignore").write_text("*\n")
            if self.is_new:
                await self._make()
            return load_network_file(self.file)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another process have it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def key(self, name: str) -> PrivateKey:
        """One of its keys, made if it is not there."""
        path = self.data / name
        if not path.exists():
            key = PrivateKey.generate(SystemEntropy())
            entropy = SystemEntropy()
            create_keystore(path, key, "", entropy, cost=_CHEAP, allow_empty_passphrase=True)
        return open_keystore(path, "")

    # Steps

    async def _make(self) -> None:
        node, you = self.key("node.key"), self.key("you.key")
        address, gateway = f"ws://127.0.0.1:{_port(PORT)}", f"127.0.0.1:{_port(GATEWAY_PORT)}"
        has_registry = find_spec("pyrevm") is not None
        common = _common(node.address, you.address, address, gateway)
        if has_registry:
            await self._make_registry(node, you, address)
        file = _all_roles(address, gateway) + common
        yours = _yours(node.address, address) + common
        if has_registry:
            file += '\n[registry]\nfolder = "registry"\n'
            yours += f'\n[registry]\nfolder = "{DATA}/registry"\n'
        self.yours.write_text(yours)
        load_network_file(self.yours)
        unfinished = self.file.with_suffix(".new")
        unfinished.write_text(file)
        load_network_file(unfinished)
        unfinished.rename(self.file)

    async def _make_registry(self, node: PrivateKey, you: PrivateKey, address: str) -> None:
        from shoal.base.ids import Contact
        from shoal.registry.config import RegistrySection
        from shoal.registry.contract_registry import put_public_key
        from shoal.registry.opening import BLOCKS_FILE, deploy_registry, open_registry
        from shoal.registry.port import Directory

        section = RegistrySection(folder="registry")
        if not (self.data / "registry" / BLOCKS_FILE).exists():
            await deploy_registry(section, self.data, node, SystemEntropy())
        listing = await open_registry(section, self.data, node)
        try:
            for directory in (Directory.TRACKERS, Directory.STORAGE_NODES):
                await listing.put_node(directory, Contact(node.address, (address,)))
        finally:
            await listing.close()
        owning = await open_registry(section, self.data, you)
        try:
            await put_public_key(owning, you.public)  # so that whoever publishes can write to you
            await _make_greetings(owning, you.address, node.address)
        finally:
            await owning.close()


async def _make_greetings(registry: Registry, you: NodeId, storage: NodeId) -> None:
    from shoal.kernel.access import Permission
    from shoal.registry.port import EVERYBODY, StreamTerms

    stream = parse_stream_id(show_node_id(you) + GREETINGS)
    try:
        await registry.stream(stream)
    except NotFound:
        await registry.create(GREETINGS, StreamTerms(storage_nodes=(storage,)))
    await registry.grant(stream, [EVERYBODY], Permission.PUBLISH | Permission.SUBSCRIBE)


def _all_roles(address: str, gateway: str) -> str:
    return f"""\
# The node of `shoal up`, with all roles. It is read at each start; see docs/network-file.md.

[node]
key = "node.key"
listen = ["{address}"]

[tracker]

[storage]
folder = "store"

[dht]

[topics]
folder = "topics"

[search]

[gateway]
listen = "{gateway}"
"""


def _yours(node: NodeId, address: str) -> str:
    peer = f'id = "{show_node_id(node)}"\naddresses = ["{address}"]\n'
    return f"""\
# How commands in this folder find the network of `shoal up`; see docs/network-file.md.

[node]
key = "{DATA}/you.key"
spare_key = true

[dht]

[[dht.bootstrap]]
{peer}
[search]
client = true

[[search.bootstrap]]
{peer}"""


def _common(node: NodeId, you: NodeId, address: str, gateway: str) -> str:
    id = show_node_id(node)
    return f"""
[[trackers]]
id = "{id}"
addresses = ["{address}"]
gateway = "http://{gateway}"

[[storage_nodes]]
id = "{id}"
addresses = ["{address}"]

[[streams]]
id = "{show_node_id(you)}{GREETINGS}"
storage = ["{id}"]

[[streams]]
id = "*"
storage = ["{id}"]
"""


def relay_of(network: NetworkFile, id: NodeId) -> NetworkFile:
    """What another node of the same network is told: it carries streams, and keeps nothing."""
    from shoal.config.sections import DhtSection, PeerEntry, SearchSection

    first = (PeerEntry(show_node_id(id), network.node.listen),)
    return NetworkFile(
        trackers=network.trackers,
        storage_nodes=network.storage_nodes,
        streams=network.streams,
        dht=DhtSection(bootstrap=first),
        search=SearchSection(bootstrap=first),
        folder=network.folder,
    )


def _port(wanted: int) -> int:
    """This one if it is free, else another."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            # As servers do: a port whose last user has just gone is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise UsageError("no port is free on 127.0.0.1: end some programs that listen")
