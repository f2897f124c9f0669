"""One scenario under the simulator and over sockets: the same overlay, the same deliveries, and as
many duplicates.

A node sends a first copy on to every neighbour but the one it came from, whatever else has come
meanwhile. So a message crosses every link both ways, but for the n - 1 ways back along which
first copies came: 2 |E| - (n - 1) copies, of which n - 1 are first ones. That leaves
2 (|E| - n + 1) duplicates of each message, on any overlay and with any delays. Only repairs add
to it: a machine so busy that a message is 0.3 s late makes neighbours ask for it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from shoal.base.ids import NodeId, StreamId
from shoal.config.network_file import tracker_contact
from shoal.config.sections import TrackerSection
from shoal.identity import SeededEntropy
from shoal.kernel.records import ReceivedAgain, Record
from shoal.node import NetworkFile, Node, Stream, Subscription
from shoal.protocols.streams.commands import MessageArrived
from shoal.protocols.streams.topology.policy import TopologyPolicy
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.sim.simulation import stable_random
from shoal.sim.trace import Row
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario
from tests.node.network import run, take
from tests.transport.recorder import until

NODES, DEGREE = 12, 4
PUBLISHERS, MESSAGES = 5, 100
CONTENTS = [b"%d %d" % (number % PUBLISHERS, number // PUBLISHERS) for number in range(MESSAGES)]

Links = set[frozenset[int]]
Deliveries = set[tuple[bytes, int]]


class Outcome:
    """What came of a run, with nodes known by their number."""

    def __init__(self) -> None:
        self.links: Links = set()
        self.deliveries: Deliveries = set()
        self.delivered = 0
        self.duplicates = 0

    def deliver(self, content: bytes, node: int) -> None:
        self.delivered += 1
        self.deliveries.add((content, node))


def links_of(policy: TopologyPolicy) -> Links:
    number = {node: at for at, node in enumerate(policy.nodes)}
    return {
        frozenset((at, number[other]))
        for node, at in number.items()
        for other in policy.neighbours(node)
    }


def simulated(seed: int) -> Outcome:
    settings = NetworkSettings(nodes=NODES, degree=DEGREE, delays=1.0, join_interval_ms=100.0)
    network = StreamsNetwork(Scenario(name="both", network=settings), seed)
    outcome = Outcome()

    def hear(node: int, event: object) -> None:
        if isinstance(event, MessageArrived):
            outcome.deliver(event.message.content, node)

    def count(rows: list[Row]) -> None:
        outcome.duplicates += sum(isinstance(record, ReceivedAgain) for _, _, record in rows)

    for at, node in enumerate(network.nodes):
        node.listeners.append(partial(hear, at))
    network.simulation.trace.to(count)
    network.join_all()
    for at, content in enumerate(CONTENTS):
        publish = partial(network.publish, network.nodes[at % PUBLISHERS], content)
        network.simulation.at_s(20 + at * 0.01, publish)
    network.simulation.run_until_s(30)
    outcome.links = links_of(network.policy())
    return outcome


async def over_sockets(seed: int) -> Outcome:
    outcome = Outcome()

    def count(now_ns: int, record: Record) -> None:
        outcome.duplicates += isinstance(record, ReceivedAgain)

    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(
            Node.open(NetworkFile(tracker=TrackerSection(DEGREE)))
        )
        assert tracker.tracker is not None
        # The dice of the simulated tracker.
        tracker.tracker._make_policy = lambda stream: RandomPolicy(
            DEGREE, stable_random(seed, "policy", stream, 1)
        )
        entry = tracker_contact(tracker.id, list(tracker.addresses))
        nodes: list[Node] = []
        queues: list[Subscription] = []
        streams: list[Stream] = []
        for number in range(NODES):
            # The keys of the simulated nodes.
            entropy = SeededEntropy(seed).fork(f"node {number}")
            opening = Node.open(NetworkFile(trackers=(entry,)), entropy=entropy)
            node = await stack.enter_async_context(opening)
            node.host.observers.append(count)
            id = streams[0].id if streams else (await node.create_stream("/lab")).id
            nodes.append(node)
            streams.append(await node.open_stream(id))
            queues.append(await stack.enter_async_context(streams[-1].subscribe()))
            policy = tracker.tracker.streams[id].policy
            await until(partial(settled, nodes, id, policy))
        for at, content in enumerate(CONTENTS):
            await streams[at % PUBLISHERS].publish(content)
            await asyncio.sleep(0.005)
        for number, messages in enumerate(queues):
            for message in await take(messages, MESSAGES):
                outcome.deliver(message.content, number)
        outcome.links = links_of(policy)
        await until(lambda: outcome.duplicates >= duplicates_of(outcome.links) * MESSAGES)
        assert [node.id for node in nodes] == list(policy.nodes)
    return outcome


def settled(nodes: list[Node], id: StreamId, policy: TopologyPolicy) -> bool:
    """Every node has the neighbours that it should have, and sends to nobody else."""
    active: dict[NodeId, set[NodeId]] = {}
    for node in nodes:
        assert node._streams is not None
        active[node.id] = set(node._streams.streams[id].channel.active)
    return all(active[node.id] == set(policy.neighbours(node.id)) for node in nodes)


def duplicates_of(links: Links) -> int:
    """Of each message, as the theory above has it."""
    return 2 * (len(links) - NODES + 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_scenario_in_both_worlds(seed: int) -> None:
    simulation, sockets = simulated(seed), Outcome()

    async def main() -> None:
        nonlocal sockets
        sockets = await over_sockets(seed)

    run(main())
    assert sockets.links == simulation.links
    assert len(simulation.links) == NODES * DEGREE // 2
    everything = {(content, node) for content in CONTENTS for node in range(NODES)}
    assert simulation.deliveries == sockets.deliveries == everything
    assert simulation.delivered == sockets.delivered == MESSAGES * NODES, "each of them once"
    assert simulation.duplicates == duplicates_of(simulation.links) * MESSAGES
    assert sockets.duplicates == pytest.approx(simulation.duplicates, rel=0.05)
