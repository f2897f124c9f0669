"""A node that was off for a day: what the DHT keeps for a day is over by then, others have to."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shoal.base.units import S_NS
from shoal.identity.topics.descriptors import ANYONE
from shoal.kernel.machine import Machine
from shoal.protocols.dht.config import HOUR_NS, DhtConfig
from shoal.protocols.dht.key_space import id_of_node
from shoal.protocols.dht.machine import DhtNode
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    EventAccepted,
    EventArrived,
    Publish,
    Subscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.heads import judge_topics
from shoal.protocols.topics.machine import TopicNode
from tests.support.topic_bench import TopicWorld, id_of, key_of, topic_by

AUTHOR = 0
# The nearer to the author, the nearer to the root: the last ones carry nothing for others.
KEEPER, PUBLISHER, READER, OTHER = sorted(
    range(1, 5),
    key=lambda number: id_of_node(key_of(number).address) ^ id_of_node(key_of(AUTHOR).address),
)
HOUR_S = 3600
TOPIC = topic_by(AUTHOR, publishers=ANYONE)
ID = id_of(TOPIC)
# What is due often is due less often here, so that days are short; lives of values are as ever.
SLOW = TopicsConfig(
    beat_ns=60 * S_NS, silence_ns=200 * S_NS, search_ns=60 * S_NS, watch_ns=300 * S_NS
)
SLOW_DHT = DhtConfig(tick_ns=60 * S_NS, republish_ns=HOUR_NS, refresh_ns=HOUR_NS)


class RealWorld(TopicWorld):
    """With real DHTs: their values expire after a day."""

    def _make(self, number: int) -> Sequence[Machine]:
        contact = self.contacts[number]
        dht = DhtNode(
            contact.node,
            tuple(self.contacts),
            judge_topics,
            Random(number),
            SLOW_DHT,
            contact.addresses,
        )
        return [dht, TopicNode(key_of(number), Random(number), self.config, contact.addresses)]

    def publish(self, number: int, payload: bytes) -> None:
        self.command(number, Publish(ID, payload), payload)
        self.run(60)
        assert self.of_kind(number, EventAccepted)[-1].event.payload == payload


def test_a_node_that_was_off_for_a_day_catches_up() -> None:
    world = RealWorld(5, SLOW)
    world.run(30)
    world.command(AUTHOR, AddTopic(TOPIC))
    world.run(10)
    for number in (KEEPER, READER):
        world.command(number, Subscribe(ID, BEGINNING), "s")
    world.run(10)
    world.publish(AUTHOR, b"before")
    told = world.of_kind(READER, EventArrived)
    assert [one.event.payload for one in told] == [b"before"]
    world.nodes[READER].crash()
    world.publish(AUTHOR, b"of the author")
    world.run(HOUR_S)
    world.nodes[AUTHOR].crash(lose_disk=True)
    for number in range(6):
        # It reads nothing, so it is in the tree for a minute at a time.
        world.publish(PUBLISHER, b"%d" % number)
        world.run(4 * HOUR_S)
    world.nodes[READER].start()
    world.run(1)
    world.command(READER, Subscribe(ID, told[-1].id), "after")
    world.command(READER, Subscribe(ID, BEGINNING), "all")
    world.run(60)
    missed = [b"of the author", *[b"%d" % number for number in range(6)]]
    assert world.payloads(READER, "after") == missed
    assert world.payloads(READER, "all") == [b"before", *missed]
    assert not any(one.gap_before for one in world.of_kind(READER, EventArrived))


def test_what_was_put_again_outlives_all_who_had_it() -> None:
    """The root puts events, records and the topic again: a newcomer finds them after two days."""
    world = RealWorld(5, SLOW)
    world.run(30)
    world.command(AUTHOR, AddTopic(TOPIC))
    world.run(10)
    world.command(KEEPER, Subscribe(ID, BEGINNING), "s")
    world.run(10)
    world.publish(AUTHOR, b"0")
    world.publish(PUBLISHER, b"1")
    world.run(HOUR_S)
    world.nodes[AUTHOR].crash(lose_disk=True)
    world.run(30 * HOUR_S)
    assert ID not in world.machine(READER).topics
    assert ID not in world.machine(OTHER).topics
    for number in (KEEPER, PUBLISHER):
        world.nodes[number].crash(lose_disk=True)
    world.command(READER, Subscribe(ID, BEGINNING), "s")
    world.run(120)
    assert world.payloads(READER, "s") == [b"0", b"1"]
