"""A simulated stream network with storage nodes on real stores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.base.ids import Contact, MessageId, StreamId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import JoinStream, MessageTaken, Publish, PublishAccepted
from shoal.protocols.streams.config import StorageConfig, SyncConfig
from shoal.protocols.streams.history.anti_entropy import FollowStream, StorageSync
from shoal.protocols.streams.history.storage_node import KeepMessage, StorageNode
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import HistoryCodec, StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import MachineInvariants
from shoal.storage.config import DEFAULTS, StoreConfig
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import StoreDisk
from shoal.storage.message_store.store_types import LogId, Row

STREAM = StreamId("0xowner/city/vehicles")
STREAMS, STORAGE, SYNC = 0, 1, 2  # the machines of a storage node


class StorageNetwork:
    """A tracker, publishers and storage nodes. Close it: stores are files."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        storage: int = 2,
        publishers: int = 3,
        storage_config: StorageConfig | None = None,
        sync_config: SyncConfig | None = None,
        store_config: StoreConfig = DEFAULTS,
    ) -> None:
        entropy = SeededEntropy(seed)
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[StreamsCodec(), HistoryCodec()],
            wire=True,
            checkers=[MachineInvariants()],
        )
        self.published: dict[MessageId, None] = {}
        self.stores: list[Store] = []
        self.storage: list[SimNode] = []
        self.publishers: list[SimNode] = []
        self._closing = ExitStack()
        self._storage_config = storage_config
        self._sync_config = sync_config
        tracker = PrivateKey.generate(entropy)
        self._tracker = Contact(tracker.address)
        self.simulation.add_node(tracker.address, self._make_tracker, role="tracker").start()
        for _ in range(publishers):
            key = PrivateKey.generate(entropy)
            node = self.simulation.add_node(key.address, partial(self._make_node, key))
            node.listeners.append(self._notified)
            self.publishers.append(node)
        keys = [PrivateKey.generate(entropy) for _ in range(storage)]
        self._contacts = tuple(Contact(key.address) for key in keys)
        for number, key in enumerate(keys):
            store = Store(
                folder / f"store-{number}", SeededEntropy(f"{seed} {number}"), store_config
            )
            self.stores.append(self._closing.enter_context(store))
            make = partial(self._make_storage, key, store)
            node = self.simulation.add_node(key.address, make, role="storage")
            node.disk = StoreDisk(store)
            node.disk_ns = 100 * MS_NS  # a slow one: batches are few, for their syncs are real
            node.listeners.append(partial(self._arrived, node))
            self.storage.append(node)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.close()

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        return [Tracker(lambda stream: RandomPolicy(4, self.simulation.random("policy", stream)))]

    def _make_node(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("node", node.index, node.incarnation)
        ring = TrackerRing([self._tracker])
        return [StreamNode(node.id, ring, key.sign, str(node.incarnation), rng)]

    def _make_storage(self, key: PrivateKey, store: Store, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("sync", node.index, node.incarnation)
        sync = StorageSync(
            node.id,
            lambda stream: self._contacts,
            rng,
            self._sync_config,
            has_damage=lambda: len(store.damage) > 0,
        )
        storage = StorageNode(
            node.id,
            lambda stream: True,
            self._storage_config,
            is_behind=sync.is_behind,
            replicas=sync.replicas,
            unaware=sync.unaware,
        )
        return [*self._make_node(key, node), storage, sync]

    # What a test lets happen

    def start(self) -> None:
        for node in self.publishers:
            node.start()
            node.command(STREAMS, JoinStream(STREAM, subscribe=False))
        for node in self.storage:
            self.start_storage(node)

    def start_storage(self, node: SimNode) -> None:
        node.start()
        node.command(SYNC, FollowStream(STREAM))
        node.command(STREAMS, JoinStream(STREAM, subscribe=False, keep=True))

    def publish(self, number: int, partition: int = 0, size: int = 100) -> None:
        node = self.publishers[number % len(self.publishers)]
        content = self.simulation.random("content", number).randbytes(size)
        node.command(STREAMS, Publish(STREAM, content, 1, partition))

    def _notified(self, event: Any) -> None:
        if isinstance(event, PublishAccepted):
            self.published[event.id] = None

    def _arrived(self, node: SimNode, event: Any) -> None:
        if isinstance(event, MessageTaken):
            node.command(STORAGE, KeepMessage(event.message))

    # What a test looks at

    def ids(self, store: Store, partitions: Sequence[int] = (0,)) -> set[MessageId]:
        """Every message of the stream in a store."""
        pages = (page for part in partitions for page in store.range(STREAM, part))
        return {row.id for page in pages for row in page}


def whole_log(store: Store, log: LogId, partition: int = 0) -> list[Row]:
    """Every row of a log that a store holds; it has no hole, or the store complains."""
    head = store.heads(STREAM, partition)[log]
    rows: list[Row] = []
    after = head.first - 1
    while after < head.last:
        page = store.log_read(log, STREAM, partition, after, 1000)
        rows += page.rows
        after = page.through
    return rows
