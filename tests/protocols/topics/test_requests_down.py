"""Requests to publish where the root may not: they go down the tree, and answers come back up."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import PeerList
from shoal.identity.topics.event_signatures import core_cid
from shoal.protocols.topics.commands import (
    AddTopic,
    EventAccepted,
    Publish,
    PublishRefused,
    Subscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.messages import (
    JoinTopic,
    Path,
    PublishAnswer,
    PublishEvent,
    RequestToPublish,
)
from tests.support.topic_bench import (
    STAMP,
    TopicBench,
    contact_of,
    event_by,
    id_of,
    peer_of,
    request_by,
    topic_by,
)
from tests.support.topic_scenes import of_kind, world_of

TOPIC = topic_by(0, publishers=PeerList(True, (peer_of(5),)))
ID = id_of(TOPIC)
CONFIG = TopicsConfig()
CHILDREN = (1, 2, 3)


def root(config: TopicsConfig = CONFIG) -> TopicBench:
    """The author, which does not publish itself, with three children."""
    bench = TopicBench(0, config)
    bench.command(AddTopic(TOPIC))
    bench.meet(*CHILDREN)
    for number in CHILDREN:
        bench.says(number, JoinTopic(ID, STAMP))
    return bench


def inner() -> TopicBench:
    """Node 4 between the author and two children."""
    bench = TopicBench(4, contacts=[contact_of(0)])
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.meet(0, 1, 2)
    bench.command(Subscribe(ID), "s")
    bench.says(0, Path(ID, (contact_of(0),), STAMP))
    for number in (1, 2):
        bench.says(number, JoinTopic(ID, STAMP))
    return bench


def asks(bench: TopicBench, number: int, event: Any) -> None:
    bench.says(number, RequestToPublish(event, STAMP))
    bench.finish()


def asked(bench: TopicBench, event: Any = None) -> list[int]:
    """Which children were sent requests, and how often."""
    return [
        number
        for number in CHILDREN
        for one in of_kind(bench.sent_to(number), RequestToPublish)
        if event is None or one.event == event
    ]


@pytest.mark.parametrize("author_lives", [True, False])
def test_all_publish_through_the_named_publisher(author_lives: bool) -> None:
    topic = topic_by(0, publishers=PeerList(True, (peer_of(1),)))
    id = id_of(topic)
    world = world_of(4, topic)
    for number in (1, 2, 3):
        world.command(number, Subscribe(id), "s")
    world.run(40)
    askers = [0, 2, 3] if author_lives else [2, 3]
    if not author_lives:
        world.nodes[0].crash()
        world.run(60)
    for number in askers:
        world.command(number, Publish(id, b"of %d" % number), number)
        world.run(10)
        (accepted,) = world.of_kind(number, EventAccepted)
        assert (accepted.event.author, accepted.event.publisher) == (peer_of(number), peer_of(1))
    assert world.payloads(3, "s") == [b"of %d" % number for number in askers]


def test_a_root_asks_all_until_it_knows_where_news_comes_from() -> None:
    bench = root()
    bench.command(Publish(ID, b"mine"), "t")
    assert asked(bench) == [1, 2, 3]
    bench.says(2, PublishEvent(event_by(5, ID, b"news"), STAMP))
    bench.finish()
    theirs = request_by(6, ID, b"theirs")
    asks(bench, 1, theirs)
    assert asked(bench, theirs) == [2]
    bench.host.advance(CONFIG.request_retry_ns)
    asks(bench, 1, theirs)
    assert asked(bench, theirs) == [2, 2, 3], "that did not help"


def test_an_inner_node_passes_down_what_comes_from_above() -> None:
    bench = inner()
    up, down = request_by(6, ID, b"up"), request_by(6, ID, b"down")
    asks(bench, 1, up)
    assert asked(bench) == [], "its parent is asked"
    asks(bench, 0, down)
    assert asked(bench, down) == [1, 2]
    assert [one.event for one in of_kind(bench.sent_to(0), RequestToPublish)] == [up]


def test_a_request_that_goes_round_is_passed_once() -> None:
    bench = inner()
    event = request_by(6, ID, b"round")
    for _ in range(3):
        asks(bench, 1, event)
    assert len(of_kind(bench.sent_to(0), RequestToPublish)) == 1
    bench.host.advance(CONFIG.request_retry_ns)
    asks(bench, 1, event)
    assert len(of_kind(bench.sent_to(0), RequestToPublish)) == 2


def test_so_many_go_to_all_and_the_others_where_news_comes_from() -> None:
    bench = root(TopicsConfig(spread_burst=1))
    first, second, third = [request_by(6, ID, b"%d" % number) for number in range(3)]
    asks(bench, 1, first)
    asks(bench, 1, second)
    assert (asked(bench, first), asked(bench, second)) == ([2, 3], [])
    bench.says(3, PublishEvent(event_by(5, ID, b"news"), STAMP))
    bench.finish()
    asks(bench, 1, third)
    assert asked(bench, third) == [3]


def test_only_where_news_comes_from_a_refusal_is_believed() -> None:
    """All were asked, so any of them knows what it would have to refuse."""
    bench = root()
    bench.command(Publish(ID, b"mine"), "t")
    event = of_kind(bench.sent_to(1), RequestToPublish)[0].event
    refusal = PublishAnswer(ID, core_cid(event), None, STAMP, "over quota")
    bench.says(2, refusal)
    assert bench.rejected() == ["not-a-parent"]
    assert bench.told(PublishRefused) == []
    theirs = request_by(6, ID, b"theirs")
    asks(bench, 1, theirs)
    bench.says(2, PublishEvent(event_by(5, ID, b"news"), STAMP))
    bench.finish()
    bench.says(2, refusal)
    assert bench.told(PublishRefused) == [PublishRefused(ID, "over quota", "t")]
    passed = PublishAnswer(ID, core_cid(theirs), None, STAMP, "over quota")
    bench.says(2, passed)
    assert of_kind(bench.sent_to(1), PublishAnswer) == [passed]
