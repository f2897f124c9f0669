"""A stream under the simulator that not everybody may be in, and all that happened in it."""

from __future__ import annotations

from functools import partial
from typing import Any

from shoal.base.ids import Contact, MessageId, NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.access import Permission
from shoal.kernel.machine import Machine
from shoal.kernel.records import Delivered, LinkUp, Published, ReceivedFirst, Rejected
from shoal.protocols.streams.commands import JoinStream, Publish, StreamRefused
from shoal.protocols.streams.config import AccessConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.permissions import AccessTable
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import DeliveredOnce, MachineInvariants
from shoal.sim.simulation import START_NS
from shoal.sim.trace import Row

STREAM = StreamId("city/vehicles")
BOTH = Permission.PUBLISH | Permission.SUBSCRIBE
DEGREE = 4


class PrivateNetwork:
    """Members come one after the other, all of them permitted from the start."""

    def __init__(self, seed: int, members: int, staleness_s: int) -> None:
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[StreamsCodec()],
            checkers=[MachineInvariants(), DeliveredOnce()],
        )
        self.access = self.simulation.access
        self.access.staleness_ns = staleness_s * S_NS
        self.published: dict[MessageId, float] = {}
        self.delivered: dict[MessageId, set[NodeId]] = {}
        self.taken: dict[MessageId, list[tuple[NodeId, int]]] = {}
        self.rejected: list[tuple[float, NodeId, NodeId, str]] = []
        self.links: set[tuple[NodeId, NodeId]] = set()
        self.refused: dict[NodeId, StreamRefused] = {}
        self._entropy = SeededEntropy(seed)
        self._tracker = PrivateKey.generate(self._entropy).address
        self.simulation.trace.to(self._rows)
        self.simulation.add_node(self._tracker, self._make_tracker, role="tracker").start()
        self.members: list[SimNode] = []
        for number in range(members):
            member = self.add()
            self.members.append(member)
            self.access.grant(STREAM, member.id, BOTH)
            self.simulation.at_s(number * 0.05, partial(self.join, member))

    @property
    def tracker(self) -> NodeId:
        return self._tracker

    def add(self) -> SimNode:
        """One more node; nobody has granted it anything."""
        key = PrivateKey.generate(self._entropy)
        node = self.simulation.add_node(key.address, partial(self._make_node, key))
        node.listeners.append(partial(self._told, node.id))
        return node

    def join(self, node: SimNode) -> None:
        """It comes up, and wants into the stream."""
        node.start()
        node.command(0, JoinStream(STREAM))

    def publish(self, node: SimNode, first_s: float, last_s: float, every_s: float = 0.5) -> None:
        """It sends, whether it may or not."""
        for number in range(int((last_s - first_s) / every_s)):
            command = partial(node.command, 0, Publish(STREAM, b"{}"))
            self.simulation.at_s(first_s + number * every_s, command)

    def of(self, node: SimNode, first_s: float = 0, last_s: float = 1e9) -> list[MessageId]:
        """What a node published within a time."""
        return [
            id
            for id, time_s in self.published.items()
            if id.publisher == node.id and first_s <= time_s < last_s
        ]

    def _make_node(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("node", node.index, node.incarnation)
        ring = TrackerRing([Contact(self._tracker)])
        return [StreamNode(node.id, ring, key.sign, "c", rng, access=self._table())]

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("policy")
        return [Tracker(lambda stream: RandomPolicy(DEGREE, rng), access=self._table())]

    def _table(self) -> AccessTable:
        return AccessTable(AccessConfig(staleness_ns=self.access.staleness_ns))

    def _told(self, node: NodeId, event: Any) -> None:
        if isinstance(event, StreamRefused):
            self.refused[node] = event

    def _rows(self, rows: list[Row]) -> None:
        for time_ns, node, record in rows:
            time_s = (time_ns - START_NS) / S_NS
            match record:
                case Published(id):
                    self.published[id] = time_s
                case Delivered(id):
                    self.delivered.setdefault(id, set()).add(node)
                case ReceivedFirst(id, _, hops):
                    self.taken.setdefault(id, []).append((node, hops))
                case Rejected(peer, reason):
                    self.rejected.append((time_s, node, peer, reason))
                case LinkUp(peer):
                    self.links.add((node, peer))
