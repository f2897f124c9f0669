"""A network with an embedded registry on loopback: a tracker, a storage node, and keys in files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.base.ids import StreamId, show_node_id
from shoal.config.sections import (
    NodeSection,
    PeerEntry,
    StorageSection,
    TrackerSection,
    WebRTCSection,
)
from shoal.identity import PrivateKey, ScryptCost, SeededEntropy, create_keystore
from shoal.kernel.access import Permission
from shoal.node import NetworkFile, Node
from shoal.registry.config import RegistrySection
from shoal.registry.contract_registry import ContractRegistry, put_public_key
from shoal.registry.opening import deploy_registry, open_registry
from shoal.registry.port import StreamTerms
from tests.node.network import free_port

REGISTRY = RegistrySection(folder="registry", poll_s=0.05)
CHEAP = ScryptCost(n=2, r=8, p=1)
SERVERS = ("tracker", "storage")


def key_of(name: str) -> PrivateKey:
    return PrivateKey.generate(SeededEntropy(f"private {name}"))


class PrivateTown:
    """Network files by name; the owner of streams is "alice"."""

    def __init__(self, folder: Path, called: Collection[str] = ()) -> None:
        """Those who are called have WebRTC, and nobody can dial them."""
        self.folder = folder
        self._called = called
        self._entries = {
            name: PeerEntry(show_node_id(key_of(name).address), (f"ws://127.0.0.1:{free_port()}",))
            for name in SERVERS
        }

    def network(self, name: str) -> NetworkFile:
        """The file of somebody, whose key is made at the first time."""
        path = self.folder / f"{name}.key"
        if not path.exists():
            entropy = SeededEntropy(f"salt {name}")
            key = key_of(name)
            create_keystore(path, key, "", entropy, cost=CHEAP, allow_empty_passphrase=True)
        entry = self._entries.get(name)
        listen = ("ws://127.0.0.1:0",) if entry is None else entry.addresses
        called = name in self._called
        return NetworkFile(
            node=NodeSection(key=path.name, listen=("webrtc:",) if called else listen),
            webrtc=WebRTCSection() if called else None,
            trackers=(self._entries["tracker"],),
            storage_nodes=(self._entries["storage"],),
            tracker=TrackerSection() if name == "tracker" else None,
            storage=StorageSection(folder="store") if name == "storage" else None,
            registry=REGISTRY,
            folder=str(self.folder),
        )

    @asynccontextmanager
    async def registry(self) -> AsyncIterator[ContractRegistry]:
        """As alice, who made it, sees it."""
        if not (self.folder / "registry").exists():
            await deploy_registry(REGISTRY, self.folder, key_of("alice"), SeededEntropy("chain"))
        registry = await open_registry(REGISTRY, self.folder, key_of("alice"))
        try:
            yield registry
        finally:
            await registry.close()

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Node]:
        async with Node.open(self.network(name)) as node:
            yield node


async def make_stream(registry: ContractRegistry, path: str, degree: int | None = None) -> StreamId:
    """A stream of alice's, kept by the storage node."""
    terms = StreamTerms(degree=degree, storage_nodes=(key_of("storage").address,))
    return await registry.create(path, terms)


async def grant(
    registry: ContractRegistry,
    stream: StreamId,
    *names: str,
    kinds: Permission = Permission.SUBSCRIBE,
    known: bool = True,
) -> None:
    """Permit somebody something, and make their public keys known."""
    for name in names if known else ():
        await put_public_key(registry, key_of(name).public)
    await registry.grant(stream, [key_of(name).address for name in names], kinds)
