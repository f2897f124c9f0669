"""Plays a scenario over sockets, in real time: the same figures and tables as of a simulation."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, time_ns
from typing import TYPE_CHECKING

import msgspec

from shoal.base.errors import ConfigError, ShoalError
from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import S_NS, ns_of_seconds, seconds
from shoal.identity import PrivateKey, SystemEntropy
from shoal.identity.message_body import BINARY
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Input
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import JoinStream, Publish, feeds_of
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.topology.policy import TopologyPolicy
from shoal.protocols.streams.tracker.stream_record import TrackedStream, overlay_of
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.runtime import RuntimeHost
from shoal.sim.simulation import SimulationFailure, stable_random
from shoal.sim.trace import Trace
from shoal.transport.port import Credentials, LinkHandler, Transport
from shoal.transport.websocket import WebSocketTransport
from shoal_lab.experiments.streams.delivery import stream_figures, surroundings
from shoal_lab.experiments.streams.figures import Held, StreamFigures, StreamResults
from shoal_lab.experiments.streams.network_view import check_deliveries, check_overlay, in_one_piece
from shoal_lab.experiments.streams.simulated_network import (
    StreamsNetwork,
    make_keys,
    make_policy,
    stream_of,
)
from shoal_lab.experiments.streams.tables import Place, StreamRecords
from shoal_lab.scenarios.experiment_kinds import (
    OFF,
    PASSED,
    Checks,
    Outcome,
    RunProgress,
    RunRequest,
    Tables,
)
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, delay_model
from shoal_lab.testbed.delayed_transport import DelayedTransport, Lateness
from shoal_lab.testbed.process_memory import quiet_collector

if TYPE_CHECKING:
    from shoal.protocols.streams.tracker.delay_estimate import Estimate

NO_HASH = "none: a run over sockets cannot be repeated event by event"
NO_SAFETY = "not over sockets"
TELL_S = 0.5
UNIT = "s over sockets"


def run_over_sockets(request: RunRequest) -> Outcome:
    """The `over_sockets` of stream deliveries."""
    allow_files(request.scenario.network)
    order = joining_order(request.scenario, request.seed)
    with asyncio.Runner(loop_factory=LabLoop) as runner, quiet_collector():
        try:
            return runner.run(_Play(request, order).run())
        except ShoalError as error:
            replay = f"\nreplay: {request.replay}" if request.replay else ""
            told = f"seed {request.seed}, over sockets: {type(error).__name__}: {error}{replay}"
            raise SimulationFailure(told) from error


class _Play:
    """One run, from the first tracker to the last message."""

    def __init__(self, request: RunRequest, order: list[int]) -> None:
        self._request = request
        self._scenario = request.scenario
        self._order = order
        self._trace = Trace()
        self._network = SocketsNetwork(request.scenario, request.seed, self._trace)
        self._results = StreamResults(node.id for node in self._network.nodes)
        self._trace.to_kinds(self._results)
        self._records: StreamRecords | None = None
        if request.record:
            places = [Place(node.id, node.region) for node in self._network.nodes]
            self._records = StreamRecords(places, self._results)
            self._trace.to_kinds(self._records)
        self._estimate: Estimate | None = None
        self._begin_s = self._end_s = 0.0

    async def run(self) -> Outcome:
        from shoal.protocols.streams.tracker.delay_estimate import estimate_delays

        loop, workload = asyncio.get_running_loop(), self._scenario.workload
        self._begin_s, begin_s, begin_cpu_s = loop.time(), time.monotonic(), time.process_time()
        async with self._network as network:
            joining_s = [self._pace_s(network.join_s(node)) for node in network.nodes]
            first_s, last_s = self._scenario.publishing_s
            quiet_s = workload.settle_s + workload.drain_s
            self._end_s = self._begin_s + sum(joining_s) + quiet_s + last_s - first_s
            for number in self._order:
                due_s = loop.time() + self._pace_s(0.0)
                await network.join(network.nodes[number])
                self._tell()
                await self._wait_until(due_s)
            await self._wait_until(loop.time() + workload.settle_s)
            if self._scenario.prediction:
                self._estimate = estimate_delays(*overlay_of(network.tracked()))
            await self._publish_all()
            await self._wait_until(loop.time() + workload.drain_s)
            cpu_s, real_s = time.process_time() - begin_cpu_s, time.monotonic() - begin_s
            self._trace.flush()
            figures = self._figures()
            check = self._request.check is not False
            if check:
                now_ns = EPOCH_NS + ns_of_seconds(loop.time())
                check_overlay(network, self._results.young_links(now_ns))
                check_deliveries(network, figures)
            return Outcome(
                figures=figures,
                trace_hash=NO_HASH,
                events=network.steps,
                records=self._trace.rows,
                cpu_seconds=cpu_s,
                simulated_seconds=real_s,
                checks=Checks(NO_SAFETY, PASSED if check else OFF),
                tables=self._tables(),
            )

    async def _publish_all(self) -> None:
        scenario, network = self._scenario, self._network
        nodes, rng = network.publishers, stable_random(self._request.seed, "workload")
        begin_s = asyncio.get_running_loop().time()
        for number in range(scenario.messages):
            await self._wait_until(begin_s + number * scenario.workload.interval_ms / 1000)
            in_turn = scenario.workload.publishers == "in-turn"
            node = nodes[number % len(nodes)] if in_turn else rng.choice(nodes)
            network.publish(node, rng.randbytes(scenario.workload.size_bytes))

    def _figures(self) -> StreamFigures:
        # Without faults nothing may be lost, whenever it was published.
        figures = stream_figures(self._network, self._results, self._estimate, healed_ns=0)
        late, loop = self._network.late, asyncio.get_running_loop()
        assert isinstance(loop, LabLoop)
        held = Held(
            count=late.count,
            late_ms_mean=1000 * late.sum_s / max(1, late.count),
            late_ms_max=1000 * late.max_s,
            stood_still_s=loop.stood_still_s(),
        )
        return msgspec.structs.replace(figures, held=held)

    def _tables(self) -> Callable[[str], Tables] | None:
        if self._records is None:
            return None
        # Now, while there is a network to look into.
        records, world = self._records, surroundings(self._network, self._network.delays)
        return lambda run: partial(records.tables, run, world)

    def _pace_s(self, least_s: float) -> float:
        return max(least_s, self._scenario.network.join_interval_ms / 1000)

    async def _wait_until(self, when_s: float) -> None:
        """Let time pass, and say so."""
        loop = asyncio.get_running_loop()
        while (left_s := when_s - loop.time()) > 0:
            self._tell()
            await asyncio.sleep(min(left_s, TELL_S))

    def _tell(self) -> None:
        if self._request.progress is not None:
            done_s = asyncio.get_running_loop().time() - self._begin_s
            all_s = max(self._end_s - self._begin_s, done_s, 1e-9)
            steps, part = self._network.steps, min(done_s / all_s, 0.99)
            self._request.progress(RunProgress(done_s, all_s, steps, part, UNIT))


# The stream network of a scenario over real connections: trackers, n nodes, one stream.
#
#     async with SocketsNetwork(scenario, seed, trace) as network:
#         for number in joining_order(scenario, seed):
#             await network.join(network.nodes[number])
#         network.publish(network.nodes[0], b"hello")
#
# The same keys, regions and dice as in the simulator. All nodes are in this process and this event
# loop, each with a driver, a door and links of its own: WebSockets over loopback, handshakes,
# frames with MACs, and signatures that are checked at every node.
#
# What a tracker's topology becomes depends on the order in which nodes come to it, and on nothing
# else while nothing fails. In the simulator that order is a matter of microseconds; here it would
# be one of luck. So nodes come one after the other, in the simulator's order.


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


# An event loop with the clock of an experiment: fine timers, and no time while we do not run.
#
# Fine: the timers of asyncio wait in epoll, which counts in milliseconds and rounds up. A message
# of five hops would be two and a half milliseconds late on the average, a per cent of what it
# takes. (uvloop's timers are as coarse.) An epoll is itself a file that can be waited for, and
# select() counts in microseconds.
#
# No time: while other processes have all cores, every node of the experiment stands still, and so
# does its clock. Linux says how long a thread was ready to run and did not; where nobody says, such
# time counts. What our own nodes make each other wait always counts.


SELECT_MAX = 1024  # select() knows no descriptors above
SCHEDULER_FILE = "/proc/thread-self/schedstat"  # nanoseconds: run, ready but not run; times run


class LabLoop(asyncio.SelectorEventLoop):
    """Runs in the thread that made it."""

    def __init__(self) -> None:
        self._scheduler: int | None = None
        with suppress(OSError):  # no Linux, or one that does not count
            self._scheduler = os.open(SCHEDULER_FILE, os.O_RDONLY | os.O_CLOEXEC)
        self._begin_s = self._ready_s()
        self._latest_s = 0.0
        # kqueue, where there is one, counts in nanoseconds.
        super().__init__(_FineSelector() if hasattr(selectors, "EpollSelector") else None)

    def time(self) -> float:
        """Seconds of the monotonic clock, without those in which we did not get to run."""
        # In this order: who is interrupted in between sees too little time, and never too much.
        now_s = super().time()
        now_s -= self.stood_still_s()
        if now_s > self._latest_s:
            self._latest_s = now_s
        return self._latest_s

    def stood_still_s(self) -> float:
        """How long we were ready to run and did not."""
        return self._ready_s() - self._begin_s

    def close(self) -> None:
        """Give everything back."""
        super().close()
        if self._scheduler is not None:
            os.close(self._scheduler)
            self._scheduler = None

    def _ready_s(self) -> float:
        if self._scheduler is None:
            return 0.0
        return int(os.pread(self._scheduler, 64, 0).split()[1]) / S_NS


class _FineSelector(selectors.DefaultSelector):
    """Waits in select(), for one descriptor."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        epoll = self.fileno()
        if timeout is None or timeout <= 0 or epoll >= SELECT_MAX:
            return super().select(timeout)
        select.select([epoll], [], [], timeout)
        return super().select(0)
