"""What a tracker makes of reports: accusations, and round trips of links."""

from __future__ import annotations

from shoal.base.ids import NodeId
from shoal.kernel.records import MemberChanged
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.messages import Report, Rtt
from shoal.protocols.streams.topology.policy import LinkChanges, pair_of
from tests.support.streams import MALLORY, STREAM, of_kind
from tests.support.tracker_desk import LoggedPolicy, crowd, cut

CONFIG = TrackerConfig()


def test_an_accusation_costs_the_two_their_link_and_nobody_anything_else() -> None:
    desk, nodes = crowd(20)
    accuser = nodes[0]
    accused = desk.neighbours(accuser)[2]
    effects = desk.receive(accuser, Report(STREAM, (), (), (accused,)))
    assert of_kind(effects, MemberChanged) == []
    assert cut(accuser, accused) in effects
    assert len(desk.neighbours(accused)) == CONFIG.degree
    desk.quiet()
    assert accused not in desk.neighbours(accuser)


def test_round_trips_of_links_are_learned_and_others_are_not() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    neighbour = desk.neighbours(peer)[0]
    stranger = next(n for n in nodes if n != peer and n not in desk.neighbours(peer))
    rtts = (Rtt(neighbour, 1500), Rtt(stranger, 1), Rtt(MALLORY, 2), Rtt(peer, 3))
    assert desk.receive(peer, Report(STREAM, rtts, (), ())) == []
    assert desk.policies[STREAM].delays == [(peer, neighbour, 1500 * 1000)]


def test_a_round_trip_goes_with_its_link() -> None:
    desk, nodes = crowd(20)
    peer = nodes[0]
    neighbour = desk.neighbours(peer)[0]
    desk.receive(peer, Report(STREAM, (Rtt(neighbour, 1500),), (), ()))
    pair = pair_of(peer, neighbour)
    assert desk.machine.streams[STREAM].delays[pair].rtt_us == 1500
    desk.receive(neighbour, Report(STREAM, (Rtt(peer, 1700),), (), ()))
    assert desk.machine.streams[STREAM].delays[pair].rtt_us == 1600  # both ends, not the last
    desk.receive(neighbour, Report(STREAM, (Rtt(peer, 1900),), (), ()))
    assert desk.machine.streams[STREAM].delays[pair].rtt_us == 1700
    desk.receive(peer, Report(STREAM, (), (neighbour,), ()))
    assert desk.machine.streams[STREAM].delays == {}


class CuttingPolicy(LoggedPolicy):
    """Cuts every link whose delay it learns, as a policy that knows delays may."""

    def delay_learned(self, a: NodeId, b: NodeId, rtt_ns: int) -> LinkChanges:
        return self.link_failed(a, b)


def test_a_round_trip_of_a_link_that_the_same_report_cut_is_not_kept() -> None:
    desk, nodes = crowd(10, kind=CuttingPolicy)
    neighbour = desk.neighbours(nodes[0])[0]
    twice = Rtt(neighbour, 1000)
    desk.receive(nodes[0], Report(STREAM, (twice, twice), (), ()))
    assert neighbour not in desk.neighbours(nodes[0])
    assert pair_of(nodes[0], neighbour) not in desk.machine.streams[STREAM].delays
