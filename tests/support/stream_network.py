"""A small stream network under the simulator; run as a program it prints its trace hash."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from shoal.base.ids import Contact, StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import JoinStream, Publish
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import Checker, DeliveredOnce, MachineInvariants
from shoal.sim.faults import Fault
from shoal.sim.trace import TraceHash

STREAM = StreamId("city/vehicles")
DEGREE = 4


def trace_hash(
    seed: int,
    *,
    nodes: int = 24,
    messages: int = 10,
    wire: bool = False,
    faults: Sequence[Fault] = (),
) -> str:
    """The digest of a run in which everybody joins and some publish."""
    checkers: list[Checker] = [MachineInvariants(), DeliveredOnce()]
    delays = RegionDelay(load_table("aws"))
    simulation = Simulation(seed, delays, codecs=[StreamsCodec()], wire=wire, checkers=checkers)
    digest = TraceHash()
    simulation.trace.to(digest)
    entropy = SeededEntropy(seed)
    tracker_key = PrivateKey.generate(entropy)

    def make_node(key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = simulation.random("node", node.index, node.incarnation)
        ring = TrackerRing([Contact(tracker_key.address)])
        return [StreamNode(node.id, ring, key.sign, str(node.incarnation), rng)]

    def make_tracker(node: SimNode) -> list[Machine]:
        return [Tracker(lambda stream: RandomPolicy(DEGREE, simulation.random("policy", stream)))]

    members = []
    for _ in range(nodes):
        key = PrivateKey.generate(entropy)
        members.append(simulation.add_node(key.address, partial(make_node, key)))
    simulation.add_node(tracker_key.address, make_tracker, role="tracker").start()
    for fault in faults:
        fault.install(simulation)

    def join(node: SimNode) -> None:
        node.start()
        node.command(0, JoinStream(STREAM))

    def publish(node: SimNode) -> None:
        if node.host is not None:
            node.command(0, Publish(STREAM, bytes(200)))

    for number, node in enumerate(members):
        simulation.at_s(number * 0.05, partial(join, node))
    for number in range(messages):
        simulation.at_s(10 + number * 0.1, partial(publish, members[number * 7 % nodes]))
    simulation.run_until_s(20)
    simulation.check_quiet()
    return digest.hexdigest()


if __name__ == "__main__":
    print(trace_hash(int(sys.argv[1])))
