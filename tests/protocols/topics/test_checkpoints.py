"""Going on after a checkpoint: nothing twice, nothing lost, nothing out of order, whatever the node
itself still has, and however long those who have the rest are away."""

from __future__ import annotations

import pytest

from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import ANYONE, TopicDescriptor
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    EventAccepted,
    EventArrived,
    Publish,
    StartMissing,
    Subscribe,
    Unsubscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.event_log import ENTRY_BYTES
from tests.support.topic_bench import TopicWorld, id_of, topic_by

TOPIC = topic_by(0)
OPEN = topic_by(0, "open", publishers=ANYONE)
AUTHOR, READER = 0, 1
PATIENCE_S = TopicsConfig().gap_patience_ns // S_NS
SLOW_DISK_NS = 10**6 * S_NS  # what it is to write is never written


class Story:
    """The author publishes, and a reader dies whose disk lags behind its application."""

    def __init__(self, topic: TopicDescriptor = TOPIC, config: TopicsConfig | None = None) -> None:
        self.world = TopicWorld(2, config)
        self.id = id_of(topic)
        self.count = 0
        self.world.command(AUTHOR, AddTopic(topic))
        self.world.run(1)
        self.world.command(READER, Subscribe(self.id, BEGINNING), "first")
        self.world.run(2)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.world.command(AUTHOR, Publish(self.id, b"%d" % self.count), self.count)
            self.count += 1
            self.world.run(1)

    def dies(self, *, written: int, lost: int, in_dht: bool = False) -> Cid:
        """The reader, after so many events that it has on disk and so many that it has not; gives
        its checkpoint."""
        world, node = self.world, self.world.nodes[READER]
        self.publish(written)
        quick_ns, node.disk_ns = node.disk_ns, SLOW_DISK_NS
        self.publish(lost)
        told = world.of_kind(READER, EventArrived)
        assert [one.event.payload for one in told] == self.all_after(0)
        node.crash()
        node.disk_ns = quick_ns
        if not in_dht:
            for accepted in world.of_kind(AUTHOR, EventAccepted)[written:]:
                del world.values[accepted.id]
        return told[-1].id

    def comes_back(self, checkpoint: Cid, token: str = "again") -> None:
        self.world.nodes[READER].start()
        self.world.run(1)
        self.world.command(READER, Subscribe(self.id, checkpoint), token)

    def all_after(self, first: int) -> list[bytes]:
        return [b"%d" % number for number in range(first, self.count)]

    def told(self, token: str = "again") -> list[bytes]:
        return self.world.payloads(READER, token)

    def missing(self) -> list[StartMissing]:
        return self.world.of_kind(READER, StartMissing)


@pytest.mark.parametrize("topic", [TOPIC, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize("lost", [0, 1, 3], ids=["all on disk", "one lost", "three lost"])
@pytest.mark.parametrize("written", [0, 5], ids=["empty disk", "disk"])
@pytest.mark.parametrize("in_dht", [False, True], ids=["at the author", "in the DHT"])
def test_a_reader_goes_on_after_its_checkpoint(
    topic: TopicDescriptor, lost: int, written: int, in_dht: bool
) -> None:
    story = Story(topic)
    checkpoint = story.dies(written=written or 1, lost=lost, in_dht=in_dht)
    if not written:
        story.world.nodes[READER].disk.clear()
    came = story.count
    story.publish(2)
    story.comes_back(checkpoint)
    story.world.run(5)
    story.publish(2)
    assert story.told() == story.all_after(came)
    assert not story.missing()


@pytest.mark.parametrize("written", [0, 5], ids=["empty disk", "disk"])
def test_it_waits_while_nobody_has_the_event_and_goes_on_then(written: int) -> None:
    story = Story()
    checkpoint = story.dies(written=written, lost=3)
    came, author = story.count, story.world.nodes[AUTHOR]
    story.publish(2)
    author.crash()
    story.comes_back(checkpoint)
    story.world.run(PATIENCE_S - 60)
    assert story.told() == []
    state = story.world.state(READER, story.id)
    assert state.cursors.waits_for("again") == checkpoint
    author.start()
    story.world.run(90)
    assert story.told() == story.all_after(came)
    assert state.cursors.waits_for("again") is None
    assert not story.missing()


def test_an_application_is_told_that_nobody_has_the_event_and_can_wait_on() -> None:
    story = Story()
    checkpoint = story.dies(written=5, lost=3)
    came, author = story.count, story.world.nodes[AUTHOR]
    author.crash()
    story.comes_back(checkpoint)
    story.world.run(2 * PATIENCE_S + 100)
    assert story.missing() == [StartMissing("again", checkpoint)] * 2
    author.start()
    story.world.run(90)
    story.publish(2)
    assert story.told() == story.all_after(came)
    story.world.run(PATIENCE_S + 60)
    assert len(story.missing()) == 2


def test_a_reader_that_gives_up_hears_no_more_and_begins_where_it_likes() -> None:
    story = Story()
    checkpoint = story.dies(written=5, lost=3)
    author = story.world.nodes[AUTHOR]
    author.crash()
    story.comes_back(checkpoint)
    story.world.run(60)
    story.world.command(READER, Unsubscribe("again"))
    story.world.command(READER, Subscribe(story.id, BEGINNING), "all")
    story.world.run(PATIENCE_S + 60)
    assert story.missing() == []
    author.start()
    story.world.run(90)
    assert story.told() == []
    assert story.told("all") == story.all_after(0)


def test_what_only_the_reader_was_told_is_missed_for_good_and_nothing_else_is_told() -> None:
    story = Story()
    checkpoint = story.dies(written=5, lost=3)
    story.world.nodes[AUTHOR].crash(lose_disk=True)
    story.comes_back(checkpoint)
    story.world.nodes[AUTHOR].start()
    story.world.run(PATIENCE_S + 60)
    assert story.told() == []
    assert story.missing() == [StartMissing("again", checkpoint)]


def test_others_who_look_farther_back_meanwhile_change_nothing() -> None:
    story = Story()
    checkpoint = story.dies(written=5, lost=3)
    came, author = story.count, story.world.nodes[AUTHOR]
    author.crash()
    story.comes_back(checkpoint)
    story.world.run(10)
    story.world.command(READER, Subscribe(story.id, BEGINNING), "all")
    story.world.run(60)
    author.start()
    story.world.run(90)
    story.publish(2)
    assert story.told() == story.all_after(came)
    assert story.told("all") == story.all_after(0)


@pytest.mark.parametrize("beat_s", [0, 15], ids=["at once", "after a beat"])
def test_what_retention_took_after_a_checkpoint_shows(beat_s: int) -> None:
    """The checkpoint itself is found in the DHT."""
    story = Story(config=TopicsConfig(events_bytes_max=4 * (ENTRY_BYTES + 1)))
    story.publish(8)
    checkpoint = story.world.of_kind(READER, EventArrived)[2].id
    story.world.run(beat_s)
    story.world.nodes[READER].crash()
    story.comes_back(checkpoint)
    story.world.run(60)
    story.publish(1)
    told = [one for one in story.world.of_kind(READER, EventArrived) if one.subscription == "again"]
    first = int(told[0].event.payload)
    assert first > 3
    assert [one.event.payload for one in told] == story.all_after(first)
    assert [one.gap_before for one in told] == [True] + [False] * (len(told) - 1)


def test_a_checkpoint_that_retention_took_is_no_gap() -> None:
    story = Story(config=TopicsConfig(events_bytes_max=4 * (ENTRY_BYTES + 1)))
    story.publish(8)
    checkpoint = story.world.of_kind(READER, EventArrived)[3].id
    assert checkpoint not in story.world.state(READER, story.id).log.events
    story.world.command(READER, Subscribe(story.id, checkpoint), "again")
    story.world.run(60)
    assert story.told() == story.all_after(4)
    assert not any(one.gap_before for one in story.world.of_kind(READER, EventArrived))
