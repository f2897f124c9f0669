"""What a node lets go of when there is no room, or with age, and what goes on without it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    EventAccepted,
    Pin,
    Publish,
    Subscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.event_log import ENTRY_BYTES
from shoal.protocols.topics.messages import JoinTopic, NewTopic, PublishEvent
from shoal.sim.links import Frame, LinkEnd, Shaper
from tests.support.topic_bench import STAMP, TopicBench, TopicWorld, chain_by, id_of, topic_by
from tests.support.topic_scenes import ID, TOPIC, digits, publish, world_of

EVENT_BYTES = ENTRY_BYTES + 1
FIVE = TopicsConfig(events_bytes_max=5 * EVENT_BYTES)


def test_the_oldest_events_go_when_there_is_no_room() -> None:
    world = world_of(2, config=FIVE)
    world.command(1, Subscribe(ID), "s")
    world.run(2)
    publish(world, 9)
    for number in (0, 1):
        log = world.state(number, ID).log
        assert [entry.event.payload for entry in log.order] == digits(range(4, 9))
        assert log.bytes == 5 * EVENT_BYTES
    assert world.payloads(1, "s") == digits(range(9))
    world.restart(1)
    assert [one.event.payload for one in world.state(1, ID).log.order] == digits(range(4, 9))


def test_old_events_go_by_age_unless_they_are_pinned() -> None:
    world = world_of(2, config=TopicsConfig(age_max_ns=60 * S_NS))
    world.command(1, Subscribe(ID), "s")
    world.run(2)
    world.command(1, Pin(ID))
    publish(world, 3)
    world.run(120)
    assert len(world.state(0, ID).log) == 0
    assert len(world.state(1, ID).log) == 3
    world.command(1, Pin(ID, False))
    world.run(15)
    assert len(world.state(1, ID).log) == 0
    publish(world, 1, 3)
    assert world.payloads(1, "s") == digits(range(4))
    ids = [one.id for one in world.of_kind(0, EventAccepted)]
    parents = [one.event.parent for one in world.of_kind(0, EventAccepted)]
    assert all(
        parent == before for parent, (before, _) in zip(parents[1:], pairwise(ids), strict=True)
    )


def test_a_reader_from_the_beginning_needs_no_more_room_than_it_has() -> None:
    world = TopicWorld(2, FIVE)
    author = TopicsConfig()
    world.config = author
    world.restart(0)
    world.command(0, AddTopic(TOPIC))
    publish(world, 30)
    world.command(1, Subscribe(ID, BEGINNING), "s")
    most = 0
    for _ in range(40):
        world.run(0.5)
        most = max(most, world.state(1, ID).log.bytes)
    assert most <= 7 * EVENT_BYTES
    assert world.payloads(1, "s")[-1] == b"29"


def test_a_large_topic_makes_room_in_itself() -> None:
    """Whoever reads one from its beginning does not lose those that it has."""
    large, small = topic_by(0, "large"), topic_by(1, "small")
    world = TopicWorld(2, TopicsConfig(events_bytes_max=20 * EVENT_BYTES))
    for number, topic, count in ((1, small, 8), (0, large, 18)):
        world.command(number, AddTopic(topic))
        for each in range(count):
            world.command(number, Publish(id_of(topic), b"%d" % each), each)
        world.run(1)
    world.run(200)
    world.command(1, Subscribe(id_of(large), BEGINNING), "s")
    world.run(30)
    assert len(world.state(1, id_of(small)).log) == 8
    assert [one.event.payload for one in world.state(1, id_of(large)).log.order] == digits(
        range(7, 18)
    )
    assert world.payloads(1, "s")[-11:] == digits(range(7, 18))


def test_what_is_carried_for_others_makes_room_first() -> None:
    carried, own = topic_by(0, "carried"), topic_by(1, "own")
    bench = TopicBench(1, TopicsConfig(events_bytes_max=4 * EVENT_BYTES))
    bench.command(AddTopic(own))
    for number in range(3):
        bench.command(Publish(id_of(own), b"%d" % number))
    bench.meet(2)
    bench.says(2, NewTopic(carried, STAMP), JoinTopic(id_of(carried), STAMP))
    bench.finish()
    for event in chain_by(0, id_of(carried), 3):
        bench.says(2, PublishEvent(event, STAMP))
        bench.finish()
    assert len(bench.state(id_of(own)).log) == 3
    assert [one.event.payload for one in bench.state(id_of(carried)).log.order] == [b"2"]


@pytest.mark.parametrize("beat", [False, True])
def test_a_publisher_goes_on_with_its_chain_whatever_retention_took(beat: bool) -> None:
    bench = TopicBench(0, FIVE)
    bench.command(AddTopic(TOPIC))
    for number in range(9):
        bench.command(Publish(ID, b"%d" % number), number)
    if beat:
        bench.host.advance(11 * S_NS)
        bench.finish()
    again = TopicBench(0, FIVE, disk=bench.host.disk, now_ns=bench.host.time_ns + S_NS)
    assert len(again.state(ID).log) == 5
    again.command(Publish(ID, b"9"), 9)
    (accepted,) = again.told(EventAccepted)
    assert accepted.event.parent == bench.told(EventAccepted)[-1].id


DAY_S = 86_400


@pytest.mark.parametrize("step_s", [600, -600, 3600, 31 * DAY_S, -31 * DAY_S])
@pytest.mark.parametrize("restart", [False, True])
def test_a_wrong_clock_lets_no_event_go(step_s: int, restart: bool) -> None:
    world = world_of(2, config=TopicsConfig(age_max_ns=30 * DAY_S * S_NS))
    world.command(1, Subscribe(ID), "s")
    world.run(2)
    publish(world, 9)
    world.nodes[1].step_wall(step_s * S_NS)
    if restart:
        world.restart(1)
        world.command(1, Subscribe(ID), "t")
    world.run(120)
    world.nodes[1].step_wall(-step_s * S_NS)
    world.run(60)
    assert len(world.state(1, ID).log) == 9
    publish(world, 1, 9)
    assert len(world.state(1, ID).log) == 10, "and it takes what comes"


@pytest.mark.parametrize("step_s", [3600, 31 * DAY_S, -31 * DAY_S, -3650 * DAY_S])
@pytest.mark.parametrize("before", [0, 50])
def test_a_clock_that_was_wrong_at_the_start_lets_no_event_of_a_new_node_go(
    step_s: int, before: int
) -> None:
    world = world_of(2, config=TopicsConfig(age_max_ns=DAY_S * S_NS))
    publish(world, before)
    world.nodes[1].crash(lose_disk=True)
    world.nodes[1].step_wall(step_s * S_NS)
    world.run(1)
    world.nodes[1].start()
    world.run(1)
    world.command(1, Subscribe(ID, BEGINNING), "s")
    world.run(30)
    world.nodes[1].step_wall(-step_s * S_NS)
    world.run(30)
    publish(world, 50, before)
    world.run(2 * 3600)
    assert len(world.state(1, ID).log) == before + 50
    assert world.payloads(1, "s") == digits(range(before + 50))


class _Cut(Shaper):
    """Nothing arrives."""

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        return True

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return []


@pytest.mark.parametrize("restart", [False, True])
def test_a_reader_of_what_comes_misses_nothing_since_its_clock_was_ahead(restart: bool) -> None:
    """What it did not get as news it asks for: also what is older than its clock said once."""
    world = world_of(2)
    world.nodes[1].step_wall(31 * DAY_S * S_NS)
    world.command(1, Subscribe(ID), "s")
    world.run(12)
    if restart:
        world.restart(1)
    world.nodes[1].step_wall(-31 * DAY_S * S_NS)
    if restart:
        world.run(5)
        world.restart(1)
        world.command(1, Subscribe(ID), "s")
    world.run(60)
    cut = _Cut()
    world.simulation.add_shaper(cut)
    publish(world, 6)
    world.simulation.remove_shaper(cut)
    assert world.payloads(1, "s") == []
    world.run(300)
    assert world.payloads(1, "s") == digits(range(6))


def test_a_clock_that_is_behind_makes_no_history_of_what_comes() -> None:
    world = world_of(2)
    publish(world, 9)
    world.run(600)
    world.command(1, Subscribe(ID), "s")
    world.run(60)
    world.nodes[1].step_wall(-31 * DAY_S * S_NS)
    world.run(25)
    world.nodes[1].step_wall(31 * DAY_S * S_NS)
    world.run(300)
    assert world.payloads(1, "s") == []


def test_requests_are_taken_once_a_clock_that_was_ahead_is_right() -> None:
    world = world_of(2)
    world.run(600)
    world.nodes[0].crash(lose_disk=True)
    world.nodes[0].step_wall(31 * DAY_S * S_NS)
    world.run(1)
    world.nodes[0].start()
    world.run(1)
    world.command(0, AddTopic(TOPIC))
    world.run(20)
    world.nodes[0].step_wall(-31 * DAY_S * S_NS)
    world.run(60)
    world.command(1, Subscribe(ID), "s")
    world.run(20)
    world.command(1, Publish(ID, b"asked"), "p")
    world.run(20)
    assert [one.event.payload for one in world.of_kind(1, EventAccepted)] == [b"asked"]
