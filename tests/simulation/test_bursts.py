"""A burst through a relay that cannot keep up: its publisher is slowed down, nothing is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

from shoal.base.ids import Contact, NodeId, StreamId
from shoal.base.units import MS_NS, US_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.machine import Machine
from shoal.kernel.records import GapFound, LinkDown
from shoal.protocols.streams.commands import JoinStream, MessageArrived, MessageTaken, Publish
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.sim import ConstantDelay, SimNode, Simulation
from shoal.sim.checkers import DeliveredOnce
from shoal.sim.faults import Bandwidth
from shoal.sim.links import Frame, LinkEnd, Shaper
from shoal.sim.simulation import VERIFY_NS
from shoal.sim.trace import Row

STREAM = StreamId("city/vehicles")
BURST = 20_000
PER_MS = 25  # as many as a fast publisher signs


class OnlyBy(Shaper):
    """Members reach each other by way of one of them; all reach the tracker."""

    def __init__(self, *common: NodeId) -> None:
        self._common = common

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        return a not in self._common and b not in self._common

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return arrivals_ns


class Burst:
    """A publisher, a relay, a subscriber, and one that keeps, as a storage node does."""

    def __init__(self, verify_ns: int = VERIFY_NS) -> None:
        delays = ConstantDelay(5 * MS_NS)
        self.simulation = Simulation(
            1, delays, codecs=[StreamsCodec()], checkers=[DeliveredOnce()], verify_ns=verify_ns
        )
        entropy = SeededEntropy("burst")
        tracker, *keys = (PrivateKey.generate(entropy) for _ in range(5))
        self._ring = TrackerRing([Contact(tracker.address)])
        self.publisher, self.relay, self.subscriber, self.keeper = self.members = [
            self.simulation.add_node(key.address, partial(self._make, key)) for key in keys
        ]
        self.simulation.add_node(tracker.address, self._make_tracker, role="tracker").start()
        self.simulation.add_shaper(OnlyBy(self.relay.id, tracker.address))
        self.told: list[tuple[int, bool]] = []
        self.kept: list[int] = []
        self.rows: list[Row] = []
        self.published = 0
        self.simulation.trace.to(self.rows.extend)
        self.subscriber.listeners.append(self._told)
        self.keeper.listeners.append(self._kept)

    def _make(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("node", node.index)
        return [StreamNode(node.id, self._ring, key.sign, "c", rng)]

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        return [Tracker(lambda stream: RandomPolicy(4, self.simulation.random("policy", stream)))]

    def _told(self, event: Any) -> None:
        if isinstance(event, MessageArrived):
            self.told.append((int(event.message.content), event.gap_before))

    def _kept(self, event: Any) -> None:
        if isinstance(event, MessageTaken):
            self.kept.append(int(event.message.content))

    def join(self) -> None:
        for node in self.members:
            node.start()
            subscribes, keeps = node is self.subscriber, node is self.keeper
            node.command(0, JoinStream(STREAM, subscribe=subscribes, keep=keeps))
        self.simulation.run_for(10)
        self.rows.clear()

    def publish(self) -> None:
        """As many in a millisecond as there is room for, as an application does that waits."""
        host = self.publisher.host
        assert host is not None
        if not any(end.marks for end in host.ends.values()):
            for _ in range(PER_MS):
                self.publisher.command(0, Publish(STREAM, b"%d" % self.published))
                self.published += 1
        if self.published < BURST:
            self.simulation.scheduler.after(MS_NS, lambda _: self.publish())

    def check(self) -> None:
        self.simulation.run_for(30)
        assert self.told == [(number, False) for number in range(BURST)]
        assert sorted(self.kept) == list(range(BURST))
        assert [
            record for _, _, record in self.rows if isinstance(record, GapFound | LinkDown)
        ] == []


def test_a_burst_that_takes_long_to_check_arrives_whole_and_in_order() -> None:
    burst = Burst(verify_ns=100 * MS_NS)
    burst.join()
    burst.publish()
    burst.check()


def test_a_burst_that_the_links_of_a_relay_cannot_carry_arrives_whole_and_in_order() -> None:
    burst = Burst(verify_ns=100 * US_NS)
    burst.join()
    Bandwidth(mbit_s=16).install(burst.simulation)  # for the relay it is half as much
    burst.publish()
    burst.check()
