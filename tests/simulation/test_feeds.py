"""Flooding with few copies: as fast as with all of them, and as complete, whatever goes wrong.

Every publisher has said a few messages before anything is measured: links are found late by then.
"""

from __future__ import annotations

from functools import cache, partial

import pytest

from campaigns import churn
from shoal.base.ids import MessageId, NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.records import Delivered, Published, ReceivedAgain, ReceivedFirst
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.signed_message import read_placed
from shoal.sim.faults import AnyFault, Jitter, Loss
from shoal.sim.host import SimNode
from shoal.sim.links import Frame, LinkEnd, Shaper
from shoal.sim.trace import Row
from shoal_lab.experiments.streams.simulated_network import StreamsNetwork, make_keys
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario

NODES = 64
PUBLISHERS = 16
INTERVAL_S = 0.25  # between messages of one publisher
BEGIN_S, WARM_S, END_S, QUIET_S = 20.0, 22.5, 27.5, 37.5
SEED = 5


class Audience:
    """When each node was given what, once all links were told apart."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self.published: dict[MessageId, int] = {}
        self.first: dict[tuple[MessageId, NodeId], tuple[int, NodeId]] = {}
        self.delivered: dict[NodeId, list[MessageId]] = {}
        self.copies = 0

    def __call__(self, rows: list[Row]) -> None:
        for now_ns, node, record in rows:
            if isinstance(record, Published) and now_ns >= self._begin_ns:
                self.published[record.message] = now_ns
            elif isinstance(record, ReceivedFirst) and record.message in self.published:
                self.first[record.message, node] = (now_ns, record.peer)
            elif isinstance(record, ReceivedAgain):
                self.copies += record.message in self.published
            elif isinstance(record, Delivered) and record.message in self.published:
                self.delivered.setdefault(node, []).append(record.message)

    def delay_ns(self, id: MessageId, node: NodeId) -> int:
        return self.first[id, node][0] - self.published[id] if node != id.publisher else 0

    def mean_ms(self) -> float:
        return sum(self.delay_ns(*key) for key in self.first) / len(self.first) / MS_NS

    def duplicates(self) -> float:
        return self.copies / len(self.first)

    def check(self, nodes: list[SimNode]) -> None:
        """Everything, once, and each chain in order."""
        assert len(self.published) == PUBLISHERS * (END_S - WARM_S) / INTERVAL_S
        for node in nodes:
            given = self.delivered[node.id]
            assert len(given) == len(set(given))
            assert set(given) == set(self.published)
            for publisher in {id.publisher for id in given}:
                positions = [
                    (id.timestamp_ms, id.sequence) for id in given if id.publisher == publisher
                ]
                assert positions == sorted(positions)


def _play(
    feeds: int | str, *faults: AnyFault, shaper: Shaper | None = None, seed: int = SEED
) -> tuple[StreamsNetwork, Audience]:
    settings = NetworkSettings(nodes=NODES, redundant_feeds=feeds)
    network = StreamsNetwork(Scenario(name="feeds", network=settings, faults=faults), seed)
    simulation = network.simulation
    audience = Audience(simulation.scheduler.now_ns + int(WARM_S * S_NS))
    simulation.trace.to(audience)
    network.join_all()
    if shaper is not None:
        simulation.at_s(WARM_S, partial(simulation.add_shaper, shaper))
    messages = int((END_S - BEGIN_S) / INTERVAL_S) * PUBLISHERS
    for number in range(messages):
        when_s = BEGIN_S + number * INTERVAL_S / PUBLISHERS
        publisher = network.nodes[number % PUBLISHERS]
        simulation.at_s(when_s, partial(network.publish, publisher, b"x" * 300))
    simulation.run_until_s(QUIET_S)
    return network, audience


@cache
def _calm(feeds: int | str) -> Audience:
    network, audience = _play(feeds)
    audience.check(network.nodes)
    return audience


def _loss() -> AnyFault:
    return Loss(probability=0.01, start_s=BEGIN_S, end_s=END_S + 5)


@pytest.mark.parametrize(("feeds", "least", "most"), [(0, 0, 0.3), (1, 0.5, 1.2), ("all", 1.8, 3)])
def test_there_are_as_few_copies_as_were_asked_for_and_nothing_is_slower(
    feeds: int | str, least: float, most: float
) -> None:
    assert least <= _calm(feeds).duplicates() <= most
    assert _calm(feeds).mean_ms() == pytest.approx(_calm("all").mean_ms(), rel=0.01)


@pytest.mark.parametrize("feeds", [0, 1])
def test_nothing_is_missed_over_links_that_lose_messages(feeds: int) -> None:
    network, audience = _play(feeds, _loss())
    audience.check(network.nodes)
    assert audience.duplicates() <= (0.3, 1.2)[feeds]
    assert audience.mean_ms() < 1.08 * _calm("all").mean_ms()


def test_delays_that_vary_make_no_flood_of_it() -> None:
    jitter = Jitter(mean_ms=5, start_s=BEGIN_S, end_s=END_S + 5)
    network, audience = _play(0, jitter)
    audience.check(network.nodes)
    assert audience.duplicates() <= 0.3
    _, flooded = _play("all", jitter)
    assert audience.mean_ms() < 1.02 * flooded.mean_ms()


def test_whoever_stays_misses_nothing_while_others_come_and_go(seed: int) -> None:
    settings = churn.Settings(
        nodes=60, publishers=6, minutes=0.5, churn_per_minute=0.1, redundant_feeds=0
    )
    outcome = churn.run_one((seed, settings))
    assert outcome.leaves > 0
    assert outcome.published == 6 * 5 * 30
    assert outcome.good, outcome


class _Lost(Shaper):
    """The first copy of each message that goes to one node is lost."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self.links: dict[MessageId, NodeId] = {}

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        if end.peer == self._node and type(frame.message) is Flood:
            id = read_placed(frame.message.signed).id
            if id not in self.links:
                self.links[id] = end.host.sim_node.id
                return []
        return arrivals_ns


def test_what_was_lost_comes_a_round_trip_after_the_first_announcement() -> None:
    victim = make_keys(NetworkSettings(nodes=NODES), SEED)[1][-1].address
    shaper = _Lost(victim)
    network, audience = _play(0, shaper=shaper)
    audience.check(network.nodes)
    simulation = network.simulation
    delays, index = simulation.delays, {node.id: node.index for node in network.nodes}
    lost = [id for id in audience.published if id in shaper.links]
    assert len(lost) > 0.9 * len(audience.published)  # some are under way when it begins
    for id in lost:
        ways_ns = []
        for peer in network.active(simulation.nodes[victim]):
            from_victim = peer != id.publisher and audience.first[id, peer][1] == victim
            if peer != shaper.links[id] and not from_victim:
                there_ns = delays.one_way_ns(index[peer], index[victim])
                back_ns = delays.one_way_ns(index[victim], index[peer])
                ways_ns.append(audience.delay_ns(id, peer) + 2 * there_ns + back_ns)
        assert audience.delay_ns(id, victim) <= min(ways_ns) + simulation.verify_ns


class _Liars(Shaper):
    """Some nodes announce what they have, and never send it."""

    def __init__(self, liars: set[NodeId]) -> None:
        self._liars = liars
        self.kept_back = 0

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        lies = end.host.sim_node.id in self._liars and type(frame.message) is Flood
        self.kept_back += lies
        return [] if lies else arrivals_ns


def test_those_who_announce_and_never_send_hold_nobody_up() -> None:
    keys = make_keys(NetworkSettings(nodes=NODES), SEED)[1]
    liars = _Liars({key.address for key in keys[-6:]})
    network, audience = _play(0, shaper=liars)
    assert liars.kept_back > 500
    audience.check(network.nodes)
    _, flooded = _play("all", shaper=liars)
    assert audience.mean_ms() < 1.05 * flooded.mean_ms()
