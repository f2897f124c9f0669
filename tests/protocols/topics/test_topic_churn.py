"""Five nodes that publish, die and come back: in the end everybody was told everything, in order.

The DHT here never loses anything; campaigns/topics.py runs the real one.
"""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import ANYONE, EventDescriptor
from shoal.protocols.topics.commands import (
    BEGINNING,
    LIVE,
    AddTopic,
    EventAccepted,
    EventArrived,
    Publish,
    Start,
    Subscribe,
)
from tests.support.topic_bench import TopicWorld, id_of, topic_by

NODES, STEPS, QUIET_S = 5, 60, 400
TOPICS = {"open": topic_by(0, publishers=ANYONE), "closed": topic_by(0)}
SLOW_NS = 3 * S_NS  # applications are told of events long before those are on disk


class Churn:
    """One run; each application goes on after the last event that it was told."""

    def __init__(self, kind: str, seed: int) -> None:
        self.topic = TOPICS[kind]
        self.id = id_of(self.topic)
        self.rng = Random(seed)
        self.world = TopicWorld(NODES)
        self.lives = [1] * NODES
        self.count = 0
        for number in range(NODES):
            self.begin(number)
        self.world.run(5)

    def begin(self, number: int) -> None:
        world = self.world
        start: Start = LIVE
        if self.lives[number] > 1:
            told = world.of_kind(number, EventArrived)
            start = told[-1].id if told else BEGINNING
        if number == 0:
            world.command(0, AddTopic(self.topic))
        world.command(number, Subscribe(self.id, start), self.lives[number])

    def runs(self, number: int) -> bool:
        return self.world.nodes[number].host is not None

    def come_back(self, number: int) -> None:
        self.world.nodes[number].start()
        self.lives[number] += 1
        self.world.run(0.01)
        self.begin(number)

    def play(self, *, lose_disk: bool, slow_disk: bool) -> None:
        """Without disks, the author stays: what it alone knew would be gone for good."""
        if slow_disk:
            for node in self.world.nodes[1:]:
                node.disk_ns = SLOW_NS
        for _ in range(STEPS):
            number, chance = self.rng.randrange(NODES), self.rng.random()
            if not self.runs(number):
                self.come_back(number)
            elif chance < 0.8:
                publisher = 0 if lose_disk else number
                self.count += 1
                self.world.command(publisher, Publish(self.id, b"%d" % self.count), self.count)
            elif sum(map(self.runs, range(NODES))) > 2 and not (lose_disk and number == 0):
                self.world.nodes[number].crash(lose_disk=lose_disk)
            self.world.run(self.rng.choice([0, 0, 0.05, 0.5, 3, 15]))
        for number in range(NODES):
            if not self.runs(number):
                self.come_back(number)
        self.world.run(QUIET_S)

    def accepted(self) -> dict[Cid, EventDescriptor]:
        told = [self.world.of_kind(number, EventAccepted) for number in range(NODES)]
        return {one.id: one.event for some in told for one in some}


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("disk", ["disk", "slow disk", "no disk"])
@pytest.mark.parametrize("kind", TOPICS)
def test_everybody_is_told_everything(kind: str, disk: str, number: int, seed: int) -> None:
    churn = Churn(kind, seed + number)
    churn.play(lose_disk=disk == "no disk", slow_disk=disk == "slow disk")
    accepted = churn.accepted()
    assert len(accepted) > STEPS / 10
    for node in range(NODES):
        told = churn.world.of_kind(node, EventArrived)
        assert {one.id for one in told} >= set(accepted)
        names = [(one.subscription, one.id) for one in told]
        assert len(names) == len(set(names)), "once to each subscription"
        seen: set[Cid | None] = {None}
        for one in told:
            assert not one.gap_before
            assert one.event.parent in seen, "after what it follows"
            seen.add(one.id)
        if kind == "closed":
            assert len(names) == len({one.id for one in told}), "once in all of its lives"
    if kind == "closed":
        parents = [event.parent for event in accepted.values()]
        assert len(parents) == len(set(parents)), "one chain"
