"""A simulated network whose storage nodes keep every stream, on real stores, as "*" says it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.base.ids import Contact, MessageId, StreamId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import (
    JoinStream,
    KeepDurably,
    KeepFailed,
    KeptDurably,
    MessageTaken,
    Publish,
    PublishAccepted,
)
from shoal.protocols.streams.history.anti_entropy import (
    FollowNodes,
    FollowStream,
    StorageSync,
    StreamListed,
)
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.storage_node import KeepMessage, StorageNode, StreamWanted
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import HistoryCodec, StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import MachineInvariants
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import StoreDisk

STREAMS, HISTORY = 0, 1  # the machines of every node
STORAGE, SYNC = 2, 3  # and of storage nodes


def stream_of(number: int) -> StreamId:
    return StreamId(f"0xowner/stream/{number}")


class OpenStorage:
    """Trackers, publishers and storage nodes. Close it: stores are files."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        storage: int = 3,
        publishers: int = 2,
        trackers: int = 1,
        make_tracker: Callable[..., Machine] = Tracker,
    ) -> None:
        entropy = SeededEntropy(seed)
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[StreamsCodec(), HistoryCodec()],
            wire=True,
            checkers=[MachineInvariants()],
        )
        self.acknowledged: dict[MessageId, None] = {}
        self.failed: dict[MessageId, str] = {}
        self.signed: dict[MessageId, bytes] = {}
        self.stores: list[Store] = []
        self._closing = ExitStack()
        self._make_tracker_machine = make_tracker
        keys = [PrivateKey.generate(entropy) for _ in range(trackers)]
        self._ring = TrackerRing([Contact(key.address) for key in keys])
        self.contacts: tuple[Contact, ...] = ()
        self.trackers = [
            self.simulation.add_node(key.address, self._make_tracker, role="tracker")
            for key in keys
        ]
        for node in self.trackers:
            node.start()
        self.publishers: list[SimNode] = []
        for _ in range(publishers):
            key = PrivateKey.generate(entropy)
            node = self.simulation.add_node(key.address, partial(self._make_node, key))
            node.listeners.append(partial(self._published, node))
            self.publishers.append(node)
        self.storage: list[SimNode] = []
        keys = [PrivateKey.generate(entropy) for _ in range(storage)]
        self.contacts = tuple(Contact(key.address) for key in keys)
        for number, key in enumerate(keys):
            store = Store(folder / f"store-{number}", SeededEntropy(f"{seed} {number}"))
            self.stores.append(self._closing.enter_context(store))
            node = self.simulation.add_node(
                key.address, partial(self._make_storage, key), role="storage"
            )
            node.disk = StoreDisk(store)
            node.disk_ns = 20 * MS_NS
            node.listeners.append(partial(self._heard, node))
            self.storage.append(node)

    def __enter__(self) -> OpenStorage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.close()

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        def policy(stream: StreamId) -> RandomPolicy:
            return RandomPolicy(4, self.simulation.random("policy", stream))

        return [self._make_tracker_machine(policy, storage_of=lambda stream: self.contacts)]

    def _make_node(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("node", node.index, node.incarnation)
        return [
            StreamNode(node.id, self._ring, key.sign, str(node.incarnation), rng),
            HistoryClient(node.id, self._ring.order),
        ]

    def _make_storage(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("sync", node.index, node.incarnation)
        sync = StorageSync(node.id, lambda stream: self.contacts, rng)
        storage = StorageNode(
            node.id,
            lambda stream: True,
            is_behind=sync.is_behind,
            missed=sync.missed,
            took=lambda id: sync.stored((id.stream, id.partition)),
            is_tracker=lambda peer: peer in {tracker.id for tracker in self.trackers},
        )
        return [*self._make_node(key, node), storage, sync]

    # What a test lets happen

    def start_storage(self, *numbers: int) -> None:
        """As the storage role begins: with the streams that its store holds."""
        for number in numbers:
            node = self.storage[number]
            node.start()
            node.command(SYNC, FollowNodes(self.contacts))
            for stream in dict.fromkeys(stream for stream, _ in self.stores[number].places()):
                self.keep(node, stream)

    def empty(self, number: int, folder: Path) -> None:
        """A storage node that does not run loses its disk, and has a new one."""
        store = self._closing.enter_context(Store(folder, SeededEntropy(str(folder))))
        self.stores[number] = store
        self.storage[number].disk = StoreDisk(store)

    def keep(self, node: SimNode, stream: StreamId) -> None:
        node.command(SYNC, FollowStream(stream))
        node.command(STREAMS, JoinStream(stream, subscribe=False, keep=True))

    def keeps(self, node: SimNode, stream: StreamId) -> bool:
        machine: Any = node.machines[STREAMS]
        return stream in machine.streams

    def join(self, node: SimNode, *streams: int) -> None:
        for number in streams:
            node.command(STREAMS, JoinStream(stream_of(number)))

    def publish(self, node: SimNode, number: int, *, durable: bool = False) -> None:
        """The node is in the stream, or comes into it now."""
        stream = stream_of(number)
        if not self.keeps(node, stream):
            self.join(node, number)
        node.command(STREAMS, Publish(stream, b"%d" % number), token=durable)

    def hand_in(self, node: SimNode, id: MessageId) -> None:
        """A publisher has storage keep what it published long before."""
        node.command(HISTORY, KeepDurably(id.stream, self.signed[id]), id)

    def _published(self, node: SimNode, event: Any) -> None:
        if isinstance(event, PublishAccepted):
            self.signed[event.id] = event.signed
            if event.token:
                node.command(HISTORY, KeepDurably(event.id.stream, event.signed), event.id)
        elif isinstance(event, KeptDurably):
            self.acknowledged[event.token] = None  # type: ignore[index]
        elif isinstance(event, KeepFailed):
            self.failed[event.token] = event.problem  # type: ignore[index]

    def _heard(self, node: SimNode, event: Any) -> None:
        """As the storage role does."""
        if isinstance(event, MessageTaken):
            node.command(STORAGE, KeepMessage(event.message))
        elif isinstance(event, StreamWanted | StreamListed) and not self.keeps(node, event.stream):
            self.keep(node, event.stream)

    # What a test looks at

    def held(self, number: int) -> set[MessageId]:
        """Every message in a store."""
        store = self.stores[number]
        return {
            row.id
            for stream, partition in store.places()
            for page in store.range(stream, partition)
            for row in page
        }

    def copies(self, number: int) -> Any:
        """What a storage node says of copies."""
        sync: Any = self.storage[number].machines[SYNC]
        return sync.copies()
