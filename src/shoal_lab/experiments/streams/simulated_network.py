"""The simulated stream network of a scenario: its trackers, n nodes, one stream.

    network = StreamsNetwork(scenario, seed=7)
    network.run()                                     # the whole scenario, or by hand:
    network.join_all()
    network.simulation.run_for(30)
    network.publish(network.nodes[0], b"hello")
    network.simulation.run_for(2)

Every node has an application that joins the stream whenever its node starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from random import Random
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.base.errors import UsageError
from shoal.base.ids import Contact, NodeId, StreamId, show_node_id
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.message_body import BINARY
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import Input
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import JoinStream, Publish, feeds_of
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.messages import Probed, Report, Rtt
from shoal.protocols.streams.signed_message import read_placed
from shoal.protocols.streams.topology.policy import TopologyPolicy
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.stream_record import TrackedStream
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.sim.checkers import Checker
from shoal.sim.delays import DelayModel, table_of
from shoal.sim.host import SimNode
from shoal.sim.simulation import Simulation
from shoal_lab.baselines.near_half import NearHalfPolicy
from shoal_lab.experiments.streams.network_view import in_one_piece
from shoal_lab.scenarios.scenario import Lie, NetworkSettings, Scenario, delay_model

STREAMS_SLOT = 0  # every node of the lab runs one machine

READ_MAX = 65_536  # messages whose reading is shared: more than are under way at any time

# What a run costs, for the estimate of the time left; measured at degree 4 over the AWS table.
JOIN_EVENTS = 90
PING_EVENTS_S = 0.2  # per neighbour


def expected_events(scenario: Scenario) -> int:
    """About how many events a whole scenario takes."""
    settings = scenario.network
    idle = JOIN_EVENTS + scenario.end_s * PING_EVENTS_S * settings.degree
    return round(settings.nodes * (idle + scenario.messages * settings.degree))


def make_keys(settings: NetworkSettings, seed: int) -> tuple[list[PrivateKey], list[PrivateKey]]:
    """The keys of trackers and nodes: the same wherever a scenario is run."""
    entropy = SeededEntropy(seed)
    trackers = [f"tracker {number}" if number else "tracker" for number in range(settings.trackers)]
    nodes = [f"node {number}" for number in range(settings.nodes)]
    return (
        [PrivateKey.generate(entropy.fork(name)) for name in trackers],
        [PrivateKey.generate(entropy.fork(name)) for name in nodes],
    )


def stream_of(node_keys: Sequence[PrivateKey]) -> StreamId:
    """The one stream, which belongs to the first node."""
    return StreamId(f"{show_node_id(node_keys[0].address)}/lab")


class StreamsNetwork:
    """Builds the network, puts its faults on the calendar, and plays its applications."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int | None = None,
        *,
        checkers: Sequence[Checker] = (),
        replay: str = "",
    ) -> None:
        settings = scenario.network
        self.scenario = scenario
        self.seed = scenario.seed if seed is None else seed
        self.simulation = Simulation(
            self.seed,
            delay_model(settings.delays),
            codecs=[StreamsCodec()],
            wire=settings.wire,
            checkers=checkers,
            replay=replay,
        )
        self.started_ns: dict[NodeId, int] = {}
        """When the newest incarnation of each node began."""
        # Thousands of nodes read the same bytes: they say the same to all of them.
        self._read = lru_cache(READ_MAX)(read_placed)
        tracker_keys, node_keys = make_keys(settings, self.seed)
        self.stream = stream_of(node_keys)
        self._ring = TrackerRing([Contact(key.address) for key in tracker_keys])
        # Nodes first: they fill the regions of the delay table evenly, whatever else there is.
        self.nodes = [self._add_node(key) for key in node_keys]
        for key in tracker_keys:
            self.simulation.add_node(key.address, self._make_tracker, role="tracker")
        self.trackers = [
            self.simulation.nodes[contact.node] for contact in self._ring.order(self.stream)
        ]
        """In the order in which the stream goes to them."""
        self.tracker = self.trackers[0]
        count = round(settings.liars * len(self.nodes))
        drawn = self.simulation.random("liars").sample(self.nodes, count)
        self.liars = frozenset(node.id for node in drawn)
        self._publishers = self.nodes
        if scenario.workload.publisher_count is not None:
            count = min(scenario.workload.publisher_count, len(self.nodes))
            self._publishers = self.simulation.random("publishers").sample(self.nodes, count)
        for fault in scenario.faults:
            fault.install(self.simulation)

    # Playing the scenario

    def run(self) -> None:
        """Everybody joins, messages are published, faults come and go, all becomes quiet."""
        self.join_all()
        self._schedule_message(0, self.simulation.random("workload"))
        self.simulation.run_until_s(self.scenario.end_s)

    def join_all(self) -> None:
        """Let the trackers start as soon as time goes on, and then the nodes one by one."""
        interval_s = self.scenario.network.join_interval_ms / 1000
        begin_s = self.simulation.time_s
        for tracker in self.trackers:
            self.simulation.at_s(begin_s, tracker.start)
        for number, node in enumerate(self.nodes):
            self.simulation.at_s(begin_s + number * interval_s, node.start)

    def publish(self, node: SimNode, content: bytes) -> None:
        """The application on a running node publishes a message."""
        node.command(STREAMS_SLOT, Publish(self.stream, content, BINARY))

    # Looking into it

    def machine(self, node: SimNode) -> StreamNode:
        """The stream machine of a running node."""
        return cast(StreamNode, node.machines[STREAMS_SLOT])

    def policy(self) -> TopologyPolicy:
        """The view of the overlay that the first running tracker has; UsageError if none has."""
        return self.tracked().policy

    def tracked(self) -> TrackedStream:
        """All that it knows of the stream."""
        for node in self.trackers:
            tracker = None if node.host is None else cast(Tracker, node.machines[STREAMS_SLOT])
            if tracker is not None and self.stream in tracker.streams:
                return tracker.streams[self.stream]
        raise UsageError(f"no tracker has members in {self.stream}: join_all comes first")

    def running(self) -> list[SimNode]:
        """The nodes that run now."""
        return [node for node in self.nodes if node.host is not None]

    def active(self, node: SimNode) -> tuple[NodeId, ...]:
        """The neighbours that a running node sends data to."""
        state = self.machine(node).streams.get(self.stream)
        return () if state is None else state.channel.active

    def is_connected(self) -> bool:
        """Whether data can get from one running node to all others."""
        return in_one_piece({node.id: self.active(node) for node in self.running()})

    # Machines and applications

    def _add_node(self, key: PrivateKey) -> SimNode:
        return self.simulation.add_node(key.address, partial(self._make_node, key))

    def _make_node(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        self.started_ns[node.id] = self.simulation.scheduler.now_ns
        # The application joins as soon as its node is there, in every incarnation.
        self.simulation.scheduler.after(0, self._join, (node, node.incarnation))
        rng = self.simulation.random("node", node.index, node.incarnation)
        chain = str(node.incarnation)
        if node.id in self.liars:
            liar = LyingNode(node.id, self._ring, key.sign, chain, rng, read=self._read)
            return [liar.lie(self.scenario.network.lie, self.liars)]
        return [StreamNode(node.id, self._ring, key.sign, chain, rng, read=self._read)]

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        settings, delays = self.scenario.network, self.simulation.delays
        index = {member.id: member.index for member in self.nodes}

        def policy_of(stream: StreamId) -> TopologyPolicy:
            rng = self.simulation.random("policy", stream, node.incarnation)
            return make_policy(settings, rng, delays, index)

        return [Tracker(policy_of, TrackerConfig(degree=settings.degree))]

    def _join(self, begun: tuple[SimNode, int]) -> None:
        node, incarnation = begun
        if node.host is not None and node.incarnation == incarnation:
            feeds = feeds_of(self.scenario.network.redundant_feeds)
            node.command(STREAMS_SLOT, JoinStream(self.stream, redundant_feeds=feeds))

    def _schedule_message(self, number: int, rng: Random) -> None:
        # One at a time: millions of them ahead would only make the heap slow.
        workload = self.scenario.workload
        if number < self.scenario.messages:
            when_s = self.scenario.publishing_s[0] + number * workload.interval_ms / 1000
            self.simulation.at_s(when_s, partial(self._publish_message, number, rng))

    def _publish_message(self, number: int, rng: Random) -> None:
        self._schedule_message(number + 1, rng)
        in_turn = self.scenario.workload.publishers == "in-turn"
        nodes = self._publishers
        node = nodes[number % len(nodes)] if in_turn else rng.choice(nodes)
        if node.host is None:
            running = self.running()
            if not running:
                return
            node = rng.choice(running)
        self.publish(node, rng.randbytes(self.scenario.workload.size_bytes))


# The topology policy that a scenario names, wherever it is run.


def make_policy(
    settings: NetworkSettings, rng: Random, delays: DelayModel, index: Mapping[NodeId, int]
) -> TopologyPolicy:
    """`delays` and the numbers of nodes in it are for what no tracker knows."""
    match settings.policy:
        case "random":
            return RandomPolicy(settings.degree, rng)
        case "near-half":
            return NearHalfPolicy(settings.degree, rng, partial(round_trips, delays, index))
        case "aware":
            # It needs much of SciPy, which takes longer to load than most runs take.
            from shoal.protocols.streams.topology.aware_policy import AwarePolicy

            return AwarePolicy(settings.degree, rng)


def round_trips(
    delays: DelayModel, index: Mapping[NodeId, int], nodes: list[NodeId]
) -> npt.NDArray[np.int64]:
    """Between all of these nodes, in nanoseconds."""
    numbers = [index[node] for node in nodes]
    table = table_of(delays, numbers)
    place = {name: at for at, name in enumerate(table.names)}
    at = [place[delays.region(number)] for number in numbers]
    one_way_ns = np.array(table.delays_ns, np.int64)[np.ix_(at, at)]
    trips_ns: npt.NDArray[np.int64] = one_way_ns + one_way_ns.T
    return trips_ns


# Nodes that lie to the tracker about their round trips, to get a better place or to surround
# somebody. In all else they do what they should, so that nothing but the lie gives them away.


NEAR_US = 200
FAR_US = 800_000


class LyingNode(StreamNode):
    """A stream node whose words on round trips are made up."""

    __slots__ = ("_kind", "_lie")

    def lie(self, lie: Lie, kind: Collection[NodeId]) -> LyingNode:
        """Begin; kind are all liars."""
        self._lie: Lie = lie
        self._kind = kind
        return self

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        return [self._twisted(effect) for effect in super().handle(event, now_ns)]

    def _twisted(self, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not isinstance(effect.message, Report | Probed):
            return effect
        rtts = tuple([self._word(rtt) for rtt in effect.message.rtts])
        return Send(msgspec.structs.replace(effect.message, rtts=rtts), effect.peers)

    def _word(self, rtt: Rtt) -> Rtt:
        of_our_kind = rtt.peer in self._kind
        match self._lie:
            case "near":
                return Rtt(rtt.peer, NEAR_US)
            case "club":
                return Rtt(rtt.peer, NEAR_US) if of_our_kind else rtt
            case "shy":
                return Rtt(rtt.peer, FAR_US if of_our_kind else NEAR_US)
