"""Search nodes: one with a test for its peers, or a few with a test for their network."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from shoal.base.ids import Contact, NodeId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.records import Rejected
from shoal.protocols.search.circle.circle import EDGE_MESSAGES, Circle
from shoal.protocols.search.circle.locations import Location, Ring
from shoal.protocols.search.commands import Leave, Left
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.machine import SearchNode
from shoal.protocols.search.messages import (
    EdgeName,
    MasterHello,
    Ping,
    SlaveHello,
    SplitEdge,
    Totals,
)
from shoal.protocols.search.signed_records import AddressRecord, sign_address

UNKNOWN = Totals(0.0, 0.0, 0.0)
BEAT_S = 5


class Peer:
    """Somebody else: a key, an address, a signed record."""

    def __init__(self, number: int) -> None:
        self.key = PrivateKey.generate(SeededEntropy(f"search peer {number}"))
        self.node: NodeId = self.key.address
        self.contact = Contact(self.node, (f"ws://10.0.1.{number}:7700",))
        self.record: AddressRecord = sign_address(self.key, self.contact.addresses, 0)

    def master_hello(self, mine: int, theirs: int, *, slave: bool = True) -> MasterHello:
        return MasterHello(mine, theirs, slave, UNKNOWN, self.record)

    def slave_hello(self, mine: int, theirs: int) -> SlaveHello:
        return SlaveHello(mine, theirs, UNKNOWN, self.record)

    def split(self, location: int, hops: int = 1, edge: EdgeName | None = None) -> SplitEdge:
        """A request of this peer, whose walk ends at whoever gets it."""
        return SplitEdge(edge, self.record, location, hops)


ME = Peer(0)


class CircleBench:
    """One search node. Links to peers come up as soon as they are asked for, unless held."""

    def __init__(self, *bootstrap: Peer, config: SearchConfig | None = None) -> None:
        contacts = [peer.contact for peer in bootstrap]
        self.machine = SearchNode(ME.key, contacts, Random(1), config, ME.contact.addresses)
        self.host = FakeHost(ME.node, [self.machine])
        self.held: dict[NodeId, None] = {}
        """Peers whose dials a test answers itself."""
        self.asked: list[SplitEdge] = []
        """Requests for neighbours, as they left."""
        self._read = 0
        self._dialled = 0
        self.host.start()
        self.run()

    @property
    def circle(self) -> Circle:
        return self.machine.parts.circle

    @property
    def ring(self) -> Ring:
        return self.machine.parts.circle.ring

    @property
    def rejected(self) -> list[str]:
        return [r.reason for r in self.host.records if isinstance(r, Rejected)]

    @property
    def left(self) -> bool:
        return Left() in self.host.notified

    def says(self, peer: Peer, *messages: Any, valid: bool = True) -> list[tuple[NodeId, Any]]:
        """Let a peer say something; gives what we say about the circle, and to whom."""
        if not self.host.links.is_up(peer.node):
            self.host.link_opened(peer.node)
        for message in messages:
            self.host.received(peer.node, message)
        return self.run(valid=valid)

    def run(self, *, valid: bool = True) -> list[tuple[NodeId, Any]]:
        """Let everything happen that does not take time."""
        while True:
            self.host.finish_all(valid=valid)
            dialled = self.host.dialled[self._dialled :]
            self._dialled += len(dialled)
            if not dialled:
                break
            for contact in dialled:
                if contact.node not in self.held:
                    self.host.link_opened(contact.node)
        self.machine.check_invariants()
        return self._take()

    def up(self, peer: Peer) -> list[tuple[NodeId, Any]]:
        """A dial that was held succeeds."""
        self.host.link_opened(peer.node)
        return self.run()

    def fail(self, peer: Peer) -> list[tuple[NodeId, Any]]:
        """A dial that was held does not succeed."""
        self.host.dial_failed(peer.node, "refused")
        return self.run()

    def crash(self, peer: Peer) -> list[tuple[NodeId, Any]]:
        """A peer is gone, and its link with it."""
        self.host.link_closed(peer.node, "crashed")
        return self.run()

    def leave(self) -> list[tuple[NodeId, Any]]:
        self.host.command(self.machine, Leave())
        return self.run()

    def wait(self, wait_s: float, *, alive: bool = True) -> list[tuple[NodeId, Any]]:
        """Let time pass, in which all neighbours are heard of or none."""
        sent: list[tuple[NodeId, Any]] = []
        end_ns = self.host.time_ns + round(wait_s * S_NS)
        while self.host.time_ns < end_ns:
            if alive:
                self.hear()
            self.host.advance(min(S_NS, end_ns - self.host.time_ns))
            sent += self.run()
        return sent

    def hear(self) -> None:
        """Every neighbour shows that it lives."""
        for edge in list(self.ring.edges):
            name = EdgeName(edge.theirs, edge.mine, not edge.master)
            self.host.received(edge.peer, Ping(name, 0, 0, UNKNOWN, 0.0))

    def stand(self, master: Peer | None, slave: Peer | None) -> Location:
        """A place between two peers, who call theirs 1 and 2, of those that we have asked for."""
        id = self.asked.pop(0).location
        if master is not None:
            self.says(master, master.master_hello(1, id, slave=slave is not None))
        if slave is not None:
            self.says(slave, slave.slave_hello(2, id))
        location = self.ring.locations.get(id)
        assert location is not None
        if master is None:
            location.phase = "standing"  # as when its master has died
        self.hear()
        return location

    def _take(self) -> list[tuple[NodeId, Any]]:
        sent = [entry for entry in self.host.sent[self._read :] if type(entry[1]) in EDGE_MESSAGES]
        self._read = len(self.host.sent)
        ours = [m for _, m in sent if type(m) is SplitEdge and m.origin.node == ME.node]
        self.asked += ours
        return [(peer, m) for peer, m in sent if m not in ours]


class _Wire(msgspec.Struct):
    sender: NodeId
    receiver: NodeId
    message: Any


class SmallNetwork:
    """A few search nodes. Messages wait until the test lets them arrive, in order on each link."""

    def __init__(self, nodes: int, *, locations: int = 2) -> None:
        config = SearchConfig(locations=locations)
        self.peers = [Peer(number) for number in range(nodes)]
        self.machines: dict[NodeId, SearchNode] = {}
        self.hosts: dict[NodeId, FakeHost] = {}
        self.started: dict[NodeId, None] = {}
        self.waiting: list[_Wire] = []
        self.cut: list[tuple[NodeId, NodeId]] = []
        """Who cannot dial whom."""
        self._read: dict[NodeId, int] = {}
        for number, peer in enumerate(self.peers):
            known = [] if number == 0 else [self.peers[0].contact]
            machine = SearchNode(peer.key, known, Random(number), config, peer.contact.addresses)
            self.machines[peer.node] = machine
            self.hosts[peer.node] = FakeHost(peer.node, [machine])
            self._read[peer.node] = 0

    def circle(self, node: NodeId) -> Circle:
        return self.machines[node].parts.circle

    @property
    def circles(self) -> dict[NodeId, Circle]:
        """Of nodes that have started and did not leave."""
        return {
            node: self.machines[node].parts.circle
            for node, host in self.hosts.items()
            if node in self.started and Left() not in host.notified
        }

    def start(self, peer: Peer) -> None:
        self.started[peer.node] = None
        self.hosts[peer.node].start()
        self._gather()

    def leave(self, peer: Peer) -> None:
        self.hosts[peer.node].command(self.machines[peer.node], Leave())
        self._gather()

    def deliver(self, *but: type) -> None:
        """Let messages arrive until none is left, or only such as are held back: those, and what
        is behind them on their link."""
        while True:
            held: dict[tuple[NodeId, NodeId], None] = {}
            for wire in self.waiting:
                link = (wire.sender, wire.receiver)
                if type(wire.message) in but:
                    held[link] = None
                if link not in held:
                    break
            else:
                return
            self.waiting.remove(wire)
            self.hosts[wire.receiver].received(wire.sender, wire.message)
            self._gather()

    def held(self, kind: type) -> list[_Wire]:
        return [wire for wire in self.waiting if type(wire.message) is kind]

    def pass_time(self, pass_s: float) -> None:
        """Let time pass at all nodes; what they say arrives each second."""
        for _ in range(round(pass_s)):
            for node, host in self.hosts.items():
                if node in self.started:
                    host.advance(S_NS)
                    self._gather()
            self.deliver()

    def check_invariants(self) -> None:
        for circle in self.circles.values():
            circle.check_invariants()

    def _gather(self) -> None:
        """Links come up, signatures are checked, and what was sent waits."""
        busy = True
        while busy:
            busy = False
            for node, host in self.hosts.items():
                if host.slow_work or host.dialled:
                    busy = True
                host.finish_all()
                dialled, host.dialled = host.dialled, []
                for contact in dialled:
                    self._dial(node, contact.node)
                hung_up, host.hung_up = host.hung_up, []
                for peer in hung_up:
                    self.hosts[peer].link_closed(node, "closed")
                sent = host.sent[self._read[node] :]
                self._read[node] = len(host.sent)
                self.waiting += [_Wire(node, peer, message) for peer, message in sent]
        self.check_invariants()

    def _dial(self, dialler: NodeId, target: NodeId) -> None:
        if (dialler, target) in self.cut or target not in self.started:
            self.hosts[dialler].dial_failed(target, "refused")
            return
        for one, other in ((dialler, target), (target, dialler)):
            if not self.hosts[one].links.is_up(other):
                self.hosts[one].link_opened(other)
