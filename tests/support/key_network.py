"""A simulated network with a stream that is encrypted: readers with keys, storage on a real store.

Nobody is kept out of the overlay, unless trackers are told to ask the registry: whoever may read no
longer still gets every message, and lacks the key alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from shoal.base.errors import DecryptionFailed
from shoal.base.ids import KEYS_PARTITION, Contact, NodeId, StreamId, show_node_id
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import encode_announcements, wrap_key
from shoal.identity.message_body import KEYS, TEXT
from shoal.kernel.access import Permission
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import (
    FindKey,
    HistoryPage,
    JoinStream,
    MessageArrived,
    MessageRange,
    MessageTaken,
    Publish,
    ReadHistory,
    ReadMore,
)
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.storage_node import KeepMessage, StorageNode
from shoal.protocols.streams.keys.key_exchange import KeyExchange
from shoal.protocols.streams.keys.key_ring import KeyRing, Reader, Sealing
from shoal.protocols.streams.keys.sealed_queue import key_of
from shoal.protocols.streams.member.stream_node import StreamNode, StreamVicinity
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import HistoryCodec, KeysCodec, StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import MachineInvariants
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import StoreDisk

OWNER = PrivateKey.generate(SeededEntropy("owner"))
STREAM = StreamId(f"{show_node_id(OWNER.address)}/private")
STREAMS, HISTORY, EXCHANGE, STORAGE = 0, 1, 2, 2
FOREVER_NS = 2**63 - 1


class Member:
    """A reader, or a publisher; its keys outlive it, as a file would have them."""

    def __init__(self, network: KeyNetwork, name: str) -> None:
        self.name = name
        self.key = PrivateKey.generate(SeededEntropy(name))
        self.ring = KeyRing()
        self.known = True
        """Its public key is in the registry."""
        self.messages: dict[VerifiedMessage, None] = {}
        """Whatever came to it, live or from storage."""
        self.sealing: Sealing | None = None
        self._network = network
        self.node = network.simulation.add_node(self.key.address, self._make)
        self.node.listeners.append(self._notified)

    def _make(self, node: SimNode) -> list[Machine]:
        simulation = self._network.simulation
        rng = simulation.random("member", node.index, node.incarnation)
        entropy = SeededEntropy(f"{self.name} {node.incarnation}")
        ring = TrackerRing(self._network.trackers)
        streams = StreamNode(node.id, ring, self.key.sign, str(node.incarnation), rng)
        self.sealing = Sealing(STREAM, node.id, entropy)
        exchange = KeyExchange(self.key, self.ring, StreamVicinity(streams), entropy)
        return [streams, HistoryClient(node.id, ring.order), exchange]

    def start(self, *, subscribe: bool = True) -> None:
        self.node.start()
        self.node.command(STREAMS, JoinStream(STREAM, subscribe=subscribe))

    def neighbours(self) -> set[str]:
        """The names of its neighbours in the overlay, as far as they have one."""
        streams: Any = self.node.machines[STREAMS]
        active = streams.streams[STREAM].channel.active
        members = self._network.members.values()
        return {member.name for member in members if member.key.address in active}

    def publish(self, text: str) -> None:
        """As a node does: prepare, announce, publish."""
        sealing, now_ns = self.sealing, self._network.simulation.scheduler.now_ns
        assert sealing is not None
        entropy = SeededEntropy(f"{text} {now_ns}")
        wraps = sealing.prepare(self._network.readers(), now_ns)
        for content in encode_announcements([wrap_key(*one, entropy) for one in wraps]):
            self.node.command(STREAMS, Publish(STREAM, content, KEYS, KEYS_PARTITION))
        assert sealing.sealer is not None
        self.ring.add(sealing.sealer.key)
        seal = sealing.sealer.seal
        self.node.command(STREAMS, Publish(STREAM, text.encode(), TEXT, 0, seal))

    def find_missing(self) -> None:
        """Ask for every key that a message lacks."""
        missing = {(key_of(m), m.id.publisher): None for m in self.messages}
        for key, publisher in missing:
            assert key is not None  # everything is sealed
            if self.ring.get(key) is None:
                self.node.command(EXCHANGE, FindKey(STREAM, NodeId(publisher), key), key)

    def read(self, partition: int) -> None:
        """Read all that is stored."""
        command = ReadHistory(STREAM, partition, MessageRange())
        self.node.host.command(self.node.machines[HISTORY], command, partition)  # type: ignore[union-attr]

    def texts(self) -> set[str]:
        """What it can read."""
        return set(filter(None, map(self._text, self.messages)))

    def _text(self, message: VerifiedMessage) -> str | None:
        needed = key_of(message)
        key = None if needed is None else self.ring.get(needed)
        if key is None:
            return None
        try:
            return key.open(message.id, message.content)[1].decode()
        except DecryptionFailed:
            raise AssertionError(f"{message.id} does not open under its own key") from None

    def _notified(self, event: Any) -> None:
        if isinstance(event, MessageArrived):
            self._take([event.message])
        elif isinstance(event, HistoryPage):
            self._take(row.message for row in event.rows)
            host = self.node.host
            assert host is not None
            host.command(self.node.machines[HISTORY], ReadMore(), event.token)

    def _take(self, messages: Iterable[VerifiedMessage]) -> None:
        for message in messages:
            if message.id.partition == KEYS_PARTITION:
                self.ring.learn(message, self.key)
            else:
                self.messages[message] = None


class KeyNetwork:
    """Trackers, a storage node, and members. Close the store."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        names: Iterable[str],
        *,
        trackers: int = 1,
        closed: bool = False,
    ) -> None:
        """If it is closed, trackers ask the registry who may be in the stream."""
        self._closed = closed
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[StreamsCodec(), HistoryCodec(), KeysCodec()],
            wire=True,
            checkers=[MachineInvariants()],
        )
        storage = PrivateKey.generate(SeededEntropy("storage"))
        self._storage = Contact(storage.address)
        names_of_trackers = ["tracker", *(f"tracker {n}" for n in range(1, trackers))]
        ids = [PrivateKey.generate(SeededEntropy(name)).address for name in names_of_trackers]
        self.trackers = [Contact(id) for id in ids]
        for id in ids:
            self.simulation.add_node(id, self._make_tracker, role="tracker").start()
        self.store = Store(folder / "store", SeededEntropy("store"))
        self.storage = self.simulation.add_node(
            storage.address, partial(self._make_storage, storage), role="storage"
        )
        self.storage.disk = StoreDisk(self.store)
        self.storage.listeners.append(self._taken)
        self.members = {name: Member(self, name) for name in names}

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        def policy(stream: StreamId) -> RandomPolicy:
            return RandomPolicy(4, self.simulation.random("policy", stream))

        access = AccessTable() if self._closed else None
        return [Tracker(policy, storage_of=lambda stream: (self._storage,), access=access)]

    def _make_storage(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("storage", node.incarnation)
        ring = TrackerRing(self.trackers)
        streams = StreamNode(node.id, ring, key.sign, str(node.incarnation), rng)
        return [streams, HistoryClient(node.id, ring.order), StorageNode(node.id, lambda s: True)]

    def start_storage(self) -> None:
        self.storage.start()
        self.storage.command(STREAMS, JoinStream(STREAM, subscribe=False, keep=True))

    def _taken(self, event: Any) -> None:
        if isinstance(event, MessageTaken):
            self.storage.command(STORAGE, KeepMessage(event.message))

    def grant(
        self,
        name: str,
        until_ns: int = FOREVER_NS,
        kinds: Permission = Permission.SUBSCRIBE,
    ) -> None:
        node = self.members[name].key.address
        self.simulation.access.grant(STREAM, node, kinds, until_ns)

    def revoke(self, name: str) -> None:
        self.simulation.access.revoke(STREAM, self.members[name].key.address, Permission.SUBSCRIBE)

    def readers(self) -> list[Reader]:
        """Who may read now, as the registry has it."""
        found = []
        for member in self.members.values():
            key = member.key
            ends_ns = self.simulation.access._ends_ns.get(
                (STREAM, key.address, Permission.SUBSCRIBE), 0
            )
            if ends_ns:
                found.append(Reader(key.address, key.public if member.known else None, ends_ns))
        return found
