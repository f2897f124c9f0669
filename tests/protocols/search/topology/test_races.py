"""A few nodes, and messages that arrive when a test wants them to: what happens at once."""

from __future__ import annotations

from shoal.protocols.search.messages import (
    Cancel,
    EdgeClosed,
    MasterHello,
    MergeEdge,
    Redirect,
    SlaveHello,
)
from shoal_lab.experiments.search.survey import survey
from tests.support.circle import Peer, SmallNetwork


def grown(nodes: int, *, waiting: int = 0) -> SmallNetwork:
    """So many nodes on one circle, and some that have not started."""
    network = SmallNetwork(nodes + waiting)
    for peer in network.peers[:nodes]:
        network.start(peer)
        network.deliver()
    network.pass_time(30)
    seen = survey(network.circles)
    assert seen.whole, seen
    assert seen.degrees == {4: nodes}
    return network


def owner_of(network: SmallNetwork, node: object) -> Peer:
    return next(peer for peer in network.peers if peer.node == node)


def races(network: SmallNetwork) -> dict[str, int]:
    counted: dict[str, int] = {}
    for machine in network.machines.values():
        for race, times in machine.parts.circle.ring.races.items():
            counted[race] = counted.get(race, 0) + times
    return counted


def assert_whole(network: SmallNetwork, nodes: int) -> None:
    seen = survey(network.circles)
    assert seen.nodes == nodes
    assert seen.whole, seen
    assert seen.phases == {"standing": 2 * nodes}
    network.check_invariants()


def neighbours_in_a_row(network: SmallNetwork) -> tuple[Peer, Peer, Peer]:
    """Three different nodes, each the master of the next."""
    for node, circle in network.circles.items():
        for location in circle.ring.locations:
            assert location.master is not None
            assert location.slave is not None
            row = (location.master.peer, node, location.slave.peer)
            if len({*row}) == 3:
                above, middle, below = (owner_of(network, one) for one in row)
                return above, middle, below
    raise AssertionError("no three different nodes in a row")


def test_neighbours_that_leave_at_once_go_one_after_the_other() -> None:
    network = grown(6)
    _, leaver, below = neighbours_in_a_row(network)
    network.leave(leaver)
    network.leave(below)
    assert len(network.held(MergeEdge)) == 4, "all places of both"
    network.deliver()
    assert races(network).get("both-leave", 0) >= 1
    network.pass_time(30)
    assert_whole(network, 4)


def test_of_neighbours_that_leave_at_once_the_lower_may_be_first_to_ask() -> None:
    network = grown(6)
    _, leaver, below = neighbours_in_a_row(network)
    network.leave(below)
    network.deliver(MasterHello)  # its master has it in hand, and is told to leave meanwhile
    network.leave(leaver)
    network.deliver()
    network.pass_time(40)
    assert_whole(network, 4)


def test_all_but_one_leave_at_once() -> None:
    network = grown(5)
    for peer in network.peers[1:]:
        network.leave(peer)
    network.deliver()
    network.pass_time(60)
    seen = survey(network.circles)
    assert (seen.nodes, seen.whole) == (1, True)
    assert seen.phases["standing"] == 2, "and it goes on asking those whom it knew"


def split_under_way(network: SmallNetwork, newcomer: Peer) -> tuple[Peer, Peer]:
    """A newcomer is let in, and the Redirect to the slave is on its way: master and slave."""
    network.start(newcomer)
    network.deliver(Redirect)
    wire = network.held(Redirect)[0]
    return owner_of(network, wire.sender), owner_of(network, wire.receiver)


def test_a_slave_that_leaves_while_its_master_splits_asks_the_newcomer() -> None:
    network = grown(5, waiting=1)
    newcomer = network.peers[5]
    master, slave = split_under_way(network, newcomer)
    network.leave(slave)
    network.deliver(Redirect)
    assert races(network).get("leave-during-split", 0) >= 1
    network.deliver(MergeEdge)
    to = {wire.receiver for wire in network.held(MergeEdge) if wire.sender == slave.node}
    assert newcomer.node in to
    network.deliver()
    network.pass_time(60)
    assert_whole(network, 5)
    assert master.node in network.circles


def test_a_slave_that_leaves_and_cannot_reach_the_newcomer_asks_its_master_again() -> None:
    network = grown(5, waiting=1)
    newcomer = network.peers[5]
    _, slave = split_under_way(network, newcomer)
    network.cut.append((slave.node, newcomer.node))
    assert not network.hosts[slave.node].links.is_up(newcomer.node)
    network.leave(slave)
    network.deliver(Cancel)
    assert len(network.held(Cancel)) == 1
    network.deliver()
    network.pass_time(120)
    assert_whole(network, 5)


def test_a_slave_that_asked_before_the_newcomer_was_greeted_asks_that_one() -> None:
    network = grown(5, waiting=1)
    newcomer = network.peers[5]
    network.start(newcomer)
    network.deliver(SlaveHello)  # the newcomer's answers
    greeted = [wire for wire in network.held(SlaveHello) if wire.sender == newcomer.node]
    master = network.circle(greeted[0].receiver)
    (location,) = [one for one in master.ring.locations if one.id == greeted[0].message.receiver]
    assert location.slave is not None
    slave = owner_of(network, location.slave.peer)
    network.leave(slave)
    network.deliver(SlaveHello)
    network.deliver()
    assert races(network).get("leave-during-split", 0) >= 1
    network.pass_time(60)
    assert_whole(network, 5)


def test_a_newcomer_that_leaves_before_its_slave_came_is_taken_out_again() -> None:
    network = grown(5, waiting=1)
    newcomer = network.peers[5]
    split_under_way(network, newcomer)
    network.leave(newcomer)
    network.deliver()
    network.pass_time(60)
    assert_whole(network, 5)


def test_a_newcomer_that_leaves_before_it_was_greeted_changes_nothing() -> None:
    network = grown(5, waiting=1)
    newcomer = network.peers[5]
    network.start(newcomer)
    network.deliver(MasterHello)
    assert network.held(MasterHello)
    network.leave(newcomer)
    network.deliver()
    network.pass_time(20)
    assert_whole(network, 5)


def test_whoever_took_a_slave_waits_for_its_word_before_it_leaves() -> None:
    """The hello of whom we ask to take us out must not come before our own."""
    network = grown(6)
    above, leaver, below = neighbours_in_a_row(network)
    network.leave(below)
    network.deliver(MasterHello)
    assert network.held(MasterHello), "on its way to the slave of the one that left"
    network.leave(leaver)
    network.deliver(MasterHello)
    asked = [wire for wire in network.held(MergeEdge) if wire.sender == leaver.node]
    assert asked == []
    network.deliver()
    network.pass_time(60)
    assert_whole(network, 4)
    assert above.node in network.circles


def test_both_ends_of_an_edge_close_it_at_once() -> None:
    network = grown(4)
    for peer in network.peers[2:]:
        network.leave(peer)
    network.deliver(EdgeClosed)
    network.deliver()
    network.pass_time(60)
    assert_whole(network, 2)
