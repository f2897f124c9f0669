"""Scenes of topics: an author at work, a reader in its place, a world in which a topic was made."""

from __future__ import annotations

from typing import Any

from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import TopicDescriptor
from shoal.protocols.topics.commands import AddTopic, EventAccepted, Publish, Subscribe
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.messages import JoinTopic, Path
from tests.support.topic_bench import STAMP, TopicBench, TopicWorld, contact_of, id_of, topic_by

TOPIC = topic_by(0)
ID = id_of(TOPIC)


def author_of(topic: TopicDescriptor, config: TopicsConfig | None = None) -> TopicBench:
    """The author at work, with peer 1 as a child."""
    bench = TopicBench(0, config)
    bench.command(AddTopic(topic))
    bench.meet(1)
    bench.says(1, JoinTopic(id_of(topic), STAMP))
    return bench


def reader_of(topic: TopicDescriptor, config: TopicsConfig | None = None) -> TopicBench:
    """Peer 2, whose parent is the author; peer 3 is its child."""
    bench = TopicBench(2, config, contacts=[contact_of(0)])
    bench.dht.keep(id_of(topic), encode_descriptor(topic))
    bench.meet(0, 3)
    bench.command(Subscribe(id_of(topic)), "s")
    bench.says(0, Path(id_of(topic), (contact_of(0),), STAMP))
    bench.says(3, JoinTopic(id_of(topic), STAMP))
    return bench


def reader(config: TopicsConfig | None = None) -> TopicBench:
    """Node 2 reads; 0 is its parent, 3 its child, 4 a stranger with a link."""
    bench = TopicBench(2, config, contacts=[contact_of(0)])
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.meet(0, 3, 4)
    bench.command(Subscribe(ID), "s")
    bench.says(0, Path(ID, (contact_of(0),), STAMP))
    bench.says(3, JoinTopic(ID, STAMP))
    bench.rejected()
    return bench


def of_kind(messages: list[Any], kind: type) -> list[Any]:
    """The messages of one type."""
    return [one for one in messages if isinstance(one, kind)]


def world_of(
    nodes: int, topic: TopicDescriptor = TOPIC, config: TopicsConfig | None = None
) -> TopicWorld:
    """Node 0 has made a topic."""
    world = TopicWorld(nodes, config)
    world.command(0, AddTopic(topic))
    world.run(1)
    return world


def publish(world: TopicWorld, count: int, first: int = 0, number: int = 0) -> list[Cid]:
    """One a second."""
    for each in range(first, first + count):
        world.command(number, Publish(ID, b"%d" % each), each)
        world.run(1)
    return [one.id for one in world.of_kind(number, EventAccepted)]


def digits(numbers: range) -> list[bytes]:
    """The contents of messages that say their number."""
    return [b"%d" % number for number in numbers]
