"""The stream network of a scenario over real connections: trackers, n nodes, one stream.

    async with SocketsNetwork(scenario, seed, trace) as network:
        for number in joining_order(scenario, seed):
            await network.join(network.nodes[number])
        network.publish(network.nodes[0], b"hello")

The same keys, regions and dice as in the simulator. All nodes are in this process and this event
loop, each with a driver, a door and links of its own: WebSockets over loopback, handshakes,
frames with MACs, and signatures that are checked at every node.

What a tracker's topology becomes depends on the order in which nodes come to it, and on nothing
else while nothing fails. In the simulator that order is a matter of microseconds; here it would be
one of luck. So nodes come one after the other, in the simulator's order.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from time import monotonic, time_ns

from shoal.base.errors import ConfigError, ShoalError
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import ns_of_seconds, seconds
from shoal.identity import PrivateKey, SystemEntropy
from shoal.identity.stream_message import BINARY
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Input
from shoal.kernel.machine import Machine
from shoal.lab.policies import make_policy
from shoal.lab.scenario import NetworkSettings, Scenario, delay_model
from shoal.lab.sockets.delayed_transport import DelayedTransport, Lateness
from shoal.lab.stream_view import in_one_piece
from shoal.lab.streams import StreamsNetwork, make_keys, stream_of
from shoal.protocols.streams.commands import JoinStream, Publish, feeds_of
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.ring import TrackerRing
from shoal.protocols.streams.topology import TopologyPolicy
from shoal.protocols.streams.tracked_stream import TrackedStream
from shoal.protocols.streams.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.runtime import RuntimeHost
from shoal.sim.randomness import stable_random
from shoal.sim.trace import Trace
from shoal.transport.port import Credentials, LinkHandler, Transport
from shoal.transport.websocket import WebSocketTransport

EPOCH_NS = time_ns() - ns_of_seconds(monotonic())  # machines see Unix time
LOOPBACK = "ws://127.0.0.1:0"
INCARNATION = 1  # as the simulator counts them: here nobody comes back
JOIN_TIMEOUT_S = 30.0
JOIN_LOOK_S = 0.005
FILES_BESIDES = 200


def joining_order(scenario: Scenario, seed: int) -> list[int]:
    """The numbers of the nodes, in the order in which the simulated tracker takes them in."""
    network = StreamsNetwork(scenario, seed)
    network.join_all()
    numbers = {node.id: number for number, node in enumerate(network.nodes)}
    network.simulation.run_until_s(scenario.publishing_s[0])
    members = list(network.policy().nodes)
    if len(members) < len(numbers):
        raise ConfigError(
            f"workload.settle_s = {scenario.workload.settle_s}: {len(members)} of {len(numbers)} "
            "nodes have joined by then, in the simulator: give them longer"
        )
    return [numbers[member] for member in members]


class LabHost(RuntimeHost):
    """A driver whose machines and records know no other clock than the event loop's."""

    def now_ns(self) -> int:
        return EPOCH_NS + ns_of_seconds(self._loop.time())


class SocketNode:
    """A node or tracker: an identity, a place, and a driver while it runs."""

    def __init__(self, key: PrivateKey, index: int, region: str) -> None:
        self.key = key
        self.id: NodeId = key.address
        self.index = index
        self.region = region
        self.host: LabHost | None = None
        self.machine: Machine
        """Known once it runs."""


class SocketsNetwork:
    """Opens the network, and plays its applications."""

    def __init__(self, scenario: Scenario, seed: int, trace: Trace) -> None:
        settings = scenario.network
        self.scenario = scenario
        self.seed = seed
        self.delays = delay_model(settings.delays)
        self.late = Lateness()
        self.steps = 0
        """Inputs handled by machines."""
        self.started_ns: dict[NodeId, int] = {}
        self._trace = trace
        tracker_keys, node_keys = make_keys(settings, seed)
        self.stream: StreamId = stream_of(node_keys)
        # Nodes first, as in the simulator: who is where depends on it.
        everybody = [
            SocketNode(key, index, self.delays.region(index))
            for index, key in enumerate([*node_keys, *tracker_keys])
        ]
        self._index = {member.id: member.index for member in everybody}
        self.nodes: Sequence[SocketNode] = everybody[: settings.nodes]
        self.trackers: Sequence[SocketNode] = everybody[settings.nodes :]
        self._ring: TrackerRing
        self.publishers = self.nodes
        count = scenario.workload.publisher_count
        if count is not None:
            drawn = stable_random(seed, "publishers")
            self.publishers = drawn.sample(self.nodes, min(count, len(self.nodes)))

    # Life

    async def __aenter__(self) -> SocketsNetwork:
        try:
            contacts = []
            for tracker in self.trackers:
                addresses = await self._open(tracker, self._make_tracker())
                contacts.append(Contact(tracker.id, addresses))
        except BaseException:
            await self._stop()
            raise
        self._ring = TrackerRing(contacts)
        order = [contact.node for contact in self._ring.order(self.stream)]
        self.trackers = sorted(self.trackers, key=lambda tracker: order.index(tracker.id))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def join(self, node: SocketNode) -> None:
        """Start a node, and wait until the tracker has taken it in."""
        rng = stable_random(self.seed, "node", node.index, INCARNATION)
        machine = StreamNode(node.id, self._ring, node.key.sign, str(INCARNATION), rng)
        await self._open(node, machine)
        assert node.host is not None
        self.started_ns[node.id] = node.host.now_ns()
        feeds = feeds_of(self.scenario.network.redundant_feeds)
        node.host.command(machine, JoinStream(self.stream, redundant_feeds=feeds))
        deadline_s = asyncio.get_running_loop().time() + JOIN_TIMEOUT_S
        while not self._is_member(node):
            if asyncio.get_running_loop().time() > deadline_s:
                raise ShoalError(
                    f"node {node.index} was not taken in within {JOIN_TIMEOUT_S:g} s: is this "
                    "machine busy with something else?"
                )
            await asyncio.sleep(JOIN_LOOK_S)

    def publish(self, node: SocketNode, content: bytes) -> None:
        """The application on a node publishes a message."""
        assert node.host is not None
        node.host.command(node.machine, Publish(self.stream, content, BINARY))

    def join_s(self, node: SocketNode) -> float:
        """About how long it takes a node to be taken in: dial, handshake, and its first word."""
        return seconds(5 * self._one_way_ns(node.id, self.trackers[0].id))

    # Looking into it

    def tracked(self) -> TrackedStream:
        """All that the stream's tracker knows of it."""
        tracker = self.trackers[0].machine
        assert isinstance(tracker, Tracker)
        return tracker.streams[self.stream]

    def policy(self) -> TopologyPolicy:
        return self.tracked().policy

    def running(self) -> list[SocketNode]:
        return [node for node in self.nodes if node.host is not None]

    def active(self, node: SocketNode) -> tuple[NodeId, ...]:
        assert isinstance(node.machine, StreamNode)
        state = node.machine.streams.get(self.stream)
        return () if state is None else state.channel.active

    def is_connected(self) -> bool:
        return in_one_piece({node.id: self.active(node) for node in self.running()})

    # Steps

    async def _open(self, member: SocketNode, machine: Machine) -> tuple[str, ...]:
        rng = stable_random(self.seed, "driver", member.index)
        host = LabHost(member.id, [machine], [StreamsCodec()], rng=rng)
        host.watch = self._count
        host.observers.append(lambda now_ns, record: self._trace.add(now_ns, member.id, record))
        role = "tracker" if isinstance(machine, Tracker) else "node"
        # Nonces must differ from run to run; nothing that is measured depends on them.
        credentials = Credentials(member.key, SystemEntropy(), (role,))

        def make(handler: LinkHandler) -> Transport:
            return WebSocketTransport(credentials, handler)

        transport = DelayedTransport(member.id, make, host, self._one_way_ns, self.late)
        member.host, member.machine = host, machine
        return await host.open([transport], [LOOPBACK])

    def _count(self, event: Input, effects: Sequence[Effect]) -> None:
        self.steps += 1

    async def _stop(self) -> None:
        """All at once: what one says of the other's end concerns nobody any more."""
        hosts = [m.host for m in (*self.nodes, *self.trackers) if m.host is not None]
        for host in hosts:
            host.observers.clear()
        await asyncio.gather(*(host.stop() for host in hosts))

    def _make_tracker(self) -> Tracker:
        settings = self.scenario.network

        def policy_of(stream: StreamId) -> TopologyPolicy:
            rng = stable_random(self.seed, "policy", stream, INCARNATION)
            return make_policy(settings, rng, self.delays, self._index)

        return Tracker(policy_of, TrackerConfig(degree=settings.degree))

    def _is_member(self, node: SocketNode) -> bool:
        tracker = self.trackers[0].machine
        assert isinstance(tracker, Tracker)
        state = tracker.streams.get(self.stream)
        return state is not None and node.id in state.members

    def _one_way_ns(self, sender: NodeId, receiver: NodeId) -> int:
        return self.delays.one_way_ns(self._index[sender], self._index[receiver])


def allow_files(settings: NetworkSettings) -> None:
    """Ask the system for as many open files as that takes; ConfigError if it allows fewer."""
    # Both ends of every link, old ones that are being closed included; the tracker's; the door.
    needed = settings.nodes * (2 * settings.degree + 6) + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"network.nodes = {settings.nodes}: over sockets that takes up to {needed:,} open "
            f"files, and the system allows {hard:,}: raise it (ulimit -n), or take fewer nodes"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
