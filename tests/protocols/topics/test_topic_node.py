"""Whole machines, two to five of them: created, read, published in, found by name, restarted."""

from __future__ import annotations

import pytest

from shoal.base.ids import Contact
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import decode_descriptor, encode_descriptor
from shoal.identity.topics.descriptors import ANYONE
from shoal.kernel.inputs import CommandIssued, MessageReceived, Started
from shoal.kernel.records import Rejected
from shoal.protocols.dht.commands import FindDone
from shoal.protocols.topics.commands import (
    BEGINNING,
    LIVE,
    AddTopic,
    AwaitStored,
    EventAccepted,
    EventArrived,
    EventFound,
    EventStored,
    Fetch,
    FindTopic,
    Publish,
    Start,
    Subscribe,
    TopicFound,
    Unsubscribe,
)
from shoal.protocols.topics.machine import TopicNode
from tests.support.topic_bench import TopicBench, contact_of, id_of, key_of, meta_by, topic_by
from tests.support.topic_scenes import ID, TOPIC, digits, publish, world_of

OPEN = topic_by(0, "open", publishers=ANYONE)


# Reading


def test_everybody_reads_what_the_author_writes() -> None:
    world = world_of(5)
    for number in range(1, 5):
        world.command(number, Subscribe(ID), "s")
    world.run(3)
    publish(world, 5)
    for number in range(1, 5):
        assert world.payloads(number, "s") == digits(range(5))
        (found,) = world.of_kind(number, TopicFound)
        assert found == TopicFound(ID, TOPIC, "s")
    assert not world.of_kind(1, EventAccepted)


def test_events_of_many_publishers_come_after_what_they_follow() -> None:
    world = world_of(4, OPEN)
    id = id_of(OPEN)
    for number in range(4):
        world.command(number, Subscribe(id), "s")
    world.run(3)
    for each in range(12):
        # Several at the same moment: forks.
        for number in range(each % 4 + 1):
            world.command(number, Publish(id, b"%d of %d" % (each, number)), each)
        world.run(0.1)
    world.run(30)
    told = [[one.event for one in world.of_kind(n, EventArrived)] for n in range(4)]
    assert {len(events) for events in told} == {30}
    for events in told:
        seen: set[Cid | None] = {None}
        for event in events:
            assert event.parent in seen
            seen.add(id_of(event))
    assert len({frozenset(map(id_of, events)) for events in told}) == 1


@pytest.mark.parametrize(
    ("start", "expected"), [(LIVE, range(5, 8)), (BEGINNING, range(8)), ("third", range(3, 8))]
)
def test_where_a_subscription_begins(start: Start, expected: range) -> None:
    world = world_of(2)
    ids = publish(world, 5)
    world.run(600)
    begin = ids[2] if start == "third" else start
    world.command(1, Subscribe(ID, begin), "s")
    world.run(15)
    publish(world, 3, 5)
    assert world.payloads(1, "s") == digits(expected)


def test_one_node_reads_from_several_places_at_once() -> None:
    world = world_of(2)
    ids = publish(world, 4)
    world.run(300)
    for start, token in ((LIVE, "live"), (ids[1], "after"), (BEGINNING, "all")):
        world.command(1, Subscribe(ID, start), token)
        world.run(10)
    publish(world, 1, 4)
    assert world.payloads(1, "live") == digits(range(4, 5))
    assert world.payloads(1, "after") == digits(range(2, 5))
    assert world.payloads(1, "all") == digits(range(5))


def test_what_was_lost_while_a_node_was_away_is_found_again() -> None:
    world = world_of(3)
    for number in (1, 2):
        world.command(number, Subscribe(ID), "s")
    world.run(2)
    ids = publish(world, 2)
    world.nodes[2].crash(lose_disk=True)
    publish(world, 3, 2)
    world.nodes[2].start()
    world.run(1)
    world.command(2, Subscribe(ID, ids[1]), "again")
    world.run(20)
    assert world.payloads(2, "s") == digits(range(2))
    assert world.payloads(2, "again") == digits(range(2, 5))


def test_a_reader_that_ends_leaves_the_tree_after_a_while() -> None:
    world = world_of(2)
    world.command(1, Subscribe(ID), "s")
    world.run(5)
    assert list(world.state(0, ID).tree.children) == [contact_of(1).node]
    world.command(1, Unsubscribe("s"))
    publish(world, 1)
    assert world.payloads(1, "s") == []
    world.run(100)
    assert world.state(0, ID).tree.children == {}


def test_without_the_author_readers_reach_each_other() -> None:
    world = world_of(4, OPEN)
    id = id_of(OPEN)
    world.nodes[0].crash()
    for number in (1, 2, 3):
        world.command(number, Subscribe(id), "s")
    world.run(60)
    roots = [n for n in (1, 2, 3) if world.state(n, id).tree.is_root]
    assert len(roots) == 1
    world.command(1, Publish(id, b"still here"), "p")
    world.run(5)
    assert [world.payloads(n, "s") for n in (1, 2, 3)] == [[b"still here"]] * 3
    world.nodes[0].start()
    world.run(60)
    assert world.state(0, id).tree.is_root
    assert all(world.state(n, id).tree.parent for n in (1, 2, 3))


def test_the_meta_topic_tells_of_a_new_version() -> None:
    world = world_of(2)
    meta, newer = meta_by(0), topic_by(0, parent=ID)
    world.command(0, AddTopic(meta))
    world.command(1, Subscribe(id_of(meta)), "meta")
    world.run(2)
    world.command(0, AddTopic(newer))
    world.command(0, Publish(id_of(meta), encode_descriptor(newer)), "announce")
    world.run(2)
    (block,) = world.payloads(1, "meta")
    assert decode_descriptor(block) == newer
    world.command(1, Subscribe(cid_of(block)), "newer")
    world.run(2)
    assert world.of_kind(1, TopicFound)[-1] == TopicFound(id_of(newer), newer, "newer")


# Restarts


def test_all_is_there_again_after_a_restart() -> None:
    world = world_of(2)
    world.command(1, Subscribe(ID), "s")
    world.run(2)
    publish(world, 4)
    for number in (0, 1):
        world.restart(number)
        log = world.state(number, ID).log
        assert [entry.event.payload for entry in log.order] == digits(range(4))
    ids = publish(world, 1, 4)
    parents = [one.event.parent for one in world.of_kind(0, EventAccepted)]
    assert parents == [None, *ids[:-1]]


def test_an_author_that_lost_its_disk_does_not_fork_its_chain() -> None:
    world = world_of(2)
    (first,) = publish(world, 1)
    world.run(90)
    world.restart(0, lose_disk=True)
    world.command(0, AddTopic(TOPIC))
    world.command(0, Publish(ID, b"after"), "after")
    world.run(60)
    assert world.of_kind(0, EventAccepted)[-1].event.parent == first


def test_a_node_that_resumes_holds_the_event_that_it_resumes_after() -> None:
    """Its children may have no other way to it."""
    world = world_of(3)
    world.command(1, Subscribe(ID), "s")
    world.run(2)
    last = publish(world, 3)[-1]
    world.run(90)
    world.restart(0, lose_disk=True)
    world.command(0, AddTopic(TOPIC))
    world.command(0, Subscribe(ID, last), "again")
    world.run(60)
    assert world.payloads(0, "again") == []
    assert last in world.state(0, ID).log.events
    for event in (one.id for one in world.of_kind(0, EventAccepted)):
        del world.values[event]
    world.command(2, Subscribe(ID, BEGINNING), "all")
    world.run(60)
    assert world.state(2, ID).tree.parent == contact_of(0).node
    assert world.payloads(2, "all") == digits(range(3))


def test_before_the_disk_is_read_everything_waits() -> None:
    machine = TopicNode(key_of(0), TopicBench(1).machine._held.rng)
    assert machine.handle(CommandIssued(AddTopic(TOPIC)), 0) == []
    loads = machine.handle(Started(("ws://a:1",)), 0)
    assert len(loads) == 4
    assert machine.topics == {}


# By name


def test_events_and_topics_are_found_by_their_names() -> None:
    world = world_of(3)
    (id,) = publish(world, 1)
    for topic in (None, ID):
        world.command(1, Fetch(id, topic), "f")
    world.command(1, Fetch(cid_of(b"nothing")), "none")
    world.command(2, FindTopic(ID), "t")
    world.command(2, FindTopic(cid_of(b"nothing")), "none")
    world.run(2)
    found = [(one.token, one.event and one.event.payload) for one in world.of_kind(1, EventFound)]
    assert found == [("f", b"0"), ("f", b"0"), ("none", None)]
    assert [one.topic for one in world.of_kind(2, TopicFound)] == [TOPIC, None]


def test_replicas_are_told() -> None:
    world = world_of(1)
    (id,) = publish(world, 1)
    world.command(0, AwaitStored(id, 2), "enough")
    world.command(0, AwaitStored(cid_of(b"nothing"), 1), "nothing")
    world.run(1)
    stored = [(one.id, one.token) for one in world.of_kind(0, EventStored)]
    assert set(stored) == {(id, "enough"), (cid_of(b"nothing"), "nothing")}


def test_answers_of_the_dht_come_from_this_node_only() -> None:
    bench = TopicBench(0)
    peer = contact_of(1)
    forged = FindDone(0, (Contact(peer.node),), ("join", ID, True))  # type: ignore[arg-type]
    effects = bench.machine.handle(MessageReceived(peer.node, forged), 0)
    assert effects == [Rejected(peer.node, "not-ours")]
