"""A publisher tells its neighbours different things under one id: each honest node takes one of
them, and wherever the two meet, it is found out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from shoal.base.ids import MessageId, NodeId
from shoal.identity import verify
from shoal.identity.message_body import decode_body, split_signed
from shoal.kernel.records import Equivocation
from shoal.protocols.streams.commands import EquivocationSeen, MessageArrived
from shoal.sim.checkers import Checker, DeliveredOnce, MachineInvariants
from shoal.sim.host import SimNode
from shoal.sim.trace import Row
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario
from tests.support.liar import make_liar

NODES = 32
MESSAGES = 5
SETTLED_S = 15.0


class Witnesses:
    """What each node was given under each id, and what it found out."""

    def __init__(self, network: StreamsNetwork) -> None:
        self.contents: dict[NodeId, dict[MessageId, bytes]] = {}
        self.proofs: list[EquivocationSeen] = []
        self.recorded: dict[MessageId, set[NodeId]] = {}
        network.simulation.trace.to(self.rows)
        for node in network.nodes:
            node.listeners.append(partial(self.told, node.id))

    def told(self, node: NodeId, event: Any) -> None:
        if isinstance(event, MessageArrived):
            given = self.contents.setdefault(node, {})
            assert event.message.id not in given
            given[event.message.id] = event.message.content
        elif isinstance(event, EquivocationSeen):
            self.proofs.append(event)

    def rows(self, rows: list[Row]) -> None:
        for _, node, record in rows:
            if isinstance(record, Equivocation):
                who = self.recorded.setdefault(record.message, set())
                assert node not in who, "reported twice"
                who.add(node)


class TwoFaced(StreamsNetwork):
    """A stream network whose first node lies."""

    def _make_node(self, key: Any, node: SimNode) -> list[Any]:
        machines = super()._make_node(key, node)
        if node.index == 0:
            make_liar(machines[0], key.sign)
        return machines


@pytest.mark.parametrize("wire", [False, True])
def test_every_honest_node_takes_one_body_and_those_on_the_border_find_out(
    wire: bool, seed: int
) -> None:
    scenario = Scenario(name="equivocation", network=NetworkSettings(nodes=NODES, wire=wire))
    checkers: list[Checker] = [DeliveredOnce(), MachineInvariants()]
    network = TwoFaced(scenario, seed, checkers=checkers)
    witnesses = Witnesses(network)
    network.join_all()
    for number in range(MESSAGES):
        network.simulation.at_s(
            SETTLED_S + number, partial(network.publish, network.nodes[0], b"truth")
        )
    network.simulation.run_until_s(SETTLED_S + MESSAGES + 10)
    network.simulation.check_quiet()

    honest = network.nodes[1:]
    ids = set(witnesses.contents[network.nodes[0].id])
    assert len(ids) == MESSAGES
    for node in honest:
        given = witnesses.contents[node.id]
        assert set(given) == ids
        assert set(given.values()) <= {b"truth", b"lie"}
    for id in ids:
        taken = {node.id: witnesses.contents[node.id][id] for node in network.nodes}
        assert set(taken.values()) == {b"truth", b"lie"}, "the lie reached nobody"
        # Both ends of every link between two nodes that took different bodies, and nobody else.
        # The liar itself, which knows both, has sent nothing that could prove it to itself.
        border = {
            node.id
            for node in honest
            if any(
                taken[peer] != taken[node.id]
                for peer in network.active(node)
                if peer != network.nodes[0].id
            )
        }
        assert border
        assert border <= witnesses.recorded[id]
    assert witnesses.proofs
    for proof in witnesses.proofs:
        bodies = [split_signed(signed) for signed in (proof.first, proof.second)]
        one, two = (decode_body(signed) for signed in (proof.first, proof.second))
        assert one.id == two.id
        assert one.content != two.content
        assert all(verify(one.id.publisher, body, signature) for signature, body in bodies)


def test_honest_publishers_are_never_accused(seed: int) -> None:
    scenario = Scenario(name="honest", network=NetworkSettings(nodes=NODES))
    network = StreamsNetwork(scenario, seed)
    witnesses = Witnesses(network)
    network.join_all()
    for number in range(MESSAGES):
        network.simulation.at_s(
            SETTLED_S, partial(network.publish, network.nodes[number], b"truth")
        )
    network.simulation.run_until_s(SETTLED_S + 5)
    network.simulation.check_quiet()
    assert len(witnesses.contents[network.nodes[-1].id]) == MESSAGES
    assert witnesses.recorded == {}
    assert witnesses.proofs == []
