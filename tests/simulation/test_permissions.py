"""Permissions at every hop: what is revoked stops at the first one, nobody else loses anything, and
a chain that is away for a minute costs nobody a message."""

from __future__ import annotations

import pytest

from shoal.kernel.access import Permission
from tests.support.private_network import STREAM, PrivateNetwork

MEMBERS = 24
REVOKED_S, AWAY_S, BACK_S, END_S = 10.0, 15.0, 75.0, 95.0


def test_a_revoked_publisher_an_outsider_and_a_minute_without_a_chain() -> None:
    network = PrivateNetwork(seed=5, members=MEMBERS, staleness_s=120)
    simulation, access = network.simulation, network.access
    honest, revoked, late = network.members[:3]
    outsider, newcomer = network.add(), network.add()
    simulation.at_s(4, lambda: network.join(outsider))
    network.publish(honest, 5, BACK_S + 5)
    network.publish(revoked, 5, AWAY_S)
    simulation.at_s(REVOKED_S, lambda: access.revoke(STREAM, revoked.id, Permission.PUBLISH))
    # One that nobody has heard of publishes while the chain is away; one wants in.
    simulation.at_s(AWAY_S, access.go_away)
    network.publish(late, 30, 33)
    simulation.at_s(40, lambda: network.join(newcomer))
    simulation.at_s(50, lambda: access.grant(STREAM, newcomer.id, Permission.SUBSCRIBE))
    simulation.at_s(BACK_S, access.come_back)
    simulation.run_until_s(END_S)
    simulation.check_quiet()
    everybody = {member.id for member in network.members}

    # All that was permitted is with everybody: what came out of nowhere, too, after the outage.
    permitted = [*network.of(honest), *network.of(late), *network.of(revoked, 0, REVOKED_S - 1)]
    assert len(permitted) > 150
    for id in permitted:
        assert everybody <= network.delivered[id]

    # From the bound on, nobody takes anything of the revoked one; who refuses are its neighbours.
    known_s = REVOKED_S + (access.poll_ns + access.answer_ns) / 1e9 + 0.5
    stopped = network.of(revoked, known_s)
    assert len(stopped) >= 8
    assert not any(id in network.taken for id in stopped)
    refusals = [(node, peer) for _, node, peer, why in network.rejected if why == "no-permission"]
    first_hop = {node for node, peer in refusals if peer == revoked.id}
    assert 1 <= len(first_hop) <= 4
    assert {peer for _, peer in refusals if peer != outsider.id} == {revoked.id}

    # Nobody was ever linked to the outsider but the tracker, and it was told why.
    assert not network.refused[outsider.id].later
    assert {pair for pair in network.links if outsider.id in pair} == {
        (outsider.id, network.tracker),
        (network.tracker, outsider.id),
    }
    # The newcomer was told to wait, and is in since the chain is back.
    assert network.refused[newcomer.id].problem == "the simulated chain is out of reach"
    assert newcomer.id in network.delivered[network.of(honest)[-1]]


@pytest.mark.parametrize("seed", [1, 2])
def test_an_outage_beyond_the_bound_holds_messages_back_and_loses_none(seed: int) -> None:
    network = PrivateNetwork(seed=seed, members=MEMBERS, staleness_s=20)
    simulation, access = network.simulation, network.access
    publishers = network.members[:3]
    for publisher in publishers:
        network.publish(publisher, 5, 65)
    simulation.at_s(10, access.go_away)
    simulation.at_s(60, access.come_back)
    simulation.run_until_s(59)
    # What is known is too old from the 30th second on: nothing is taken on trust.
    held = [id for publisher in publishers for id in network.of(publisher, 32)]
    assert len(held) > 100
    assert not any(id in network.taken for id in held)
    simulation.run_until_s(100)
    simulation.check_quiet()
    everybody = {member.id for member in network.members}
    for publisher in publishers:
        for id in network.of(publisher):
            assert everybody <= network.delivered[id]


def test_a_member_that_may_do_nothing_any_more_is_out_of_the_overlay() -> None:
    network = PrivateNetwork(seed=3, members=MEMBERS, staleness_s=120)
    simulation, access = network.simulation, network.access
    publisher, gone = network.members[:2]
    network.publish(publisher, 5, 30)
    simulation.at_s(10, lambda: access.revoke(STREAM, gone.id, Permission(0b1100)))
    simulation.run_until_s(40)
    simulation.check_quiet()
    assert not network.refused[gone.id].later
    after = network.of(publisher, 13)
    rest = {member.id for member in network.members} - {gone.id}
    assert len(after) > 30
    assert all(network.delivered[id] == rest for id in after)
