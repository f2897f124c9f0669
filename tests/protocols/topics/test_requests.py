"""Requests to publish: passed up the tree, placed once, answered every time, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptors import ANYONE, EventLinking, PeerList
from shoal.identity.topics.event_signatures import core_cid, publish_event, signatures_hold
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    EventAccepted,
    Publish,
    PublishRefused,
    Subscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.event_log import ENTRY_BYTES
from shoal.protocols.topics.messages import (
    JoinTopic,
    Lacks,
    PublishAnswer,
    PublishEvent,
    RequestToPublish,
    Want,
)
from shoal.protocols.topics.topic import NEW_MS
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TopicBench,
    event_by,
    id_of,
    key_of,
    peer_of,
    request_by,
    topic_by,
)
from tests.support.topic_scenes import author_of, of_kind, reader_of


def test_a_request_goes_up_the_tree_until_the_event_comes_down() -> None:
    topic, config = topic_by(0), TopicsConfig()
    id = id_of(topic)
    bench = reader_of(topic, config)
    bench.command(Publish(id, b"please"), "t")
    (request,) = of_kind(bench.sent_to(0), RequestToPublish)
    assert (request.event.author, request.event.publisher) == (peer_of(2), None)
    assert signatures_hold(request.event)
    bench.host.advance(config.request_retry_ns)
    requests = of_kind(bench.sent_to(0), RequestToPublish)
    assert [one.event for one in requests] == [request.event] * 2
    published = publish_event(request.event, key_of(0), None)
    (want,) = bench.says(0, answer(id, request.event, id_of(published)))
    assert isinstance(want, Want)
    assert want.events == (id_of(published),)
    assert bench.told(EventAccepted) == []
    bench.says(0, PublishEvent(published, STAMP))
    bench.finish()
    (accepted,) = bench.told(EventAccepted)
    assert (accepted.id, accepted.event, accepted.token) == (id_of(published), published, "t")
    assert bench.payloads("s") == [b"please"]
    bench.host.advance(config.request_patience_ns)
    assert len(of_kind(bench.sent_to(0), RequestToPublish)) == 2
    assert bench.told(PublishRefused) == []


def answer(topic: Cid, event: Any, published: Cid | None, reason: str = "") -> PublishAnswer:
    return PublishAnswer(topic, core_cid(event), published, STAMP, reason)


def test_a_refusal_and_a_silence_are_told() -> None:
    topic, config = topic_by(0), TopicsConfig()
    bench = reader_of(topic, config)
    bench.command(Publish(id_of(topic), b"one"), 1)
    (request,) = of_kind(bench.sent_to(0), RequestToPublish)
    bench.says(3, answer(id_of(topic), request.event, None, "I say so"))
    assert bench.rejected() == ["not-a-parent"]
    bench.says(0, answer(id_of(topic), request.event, None, "over quota"))
    assert bench.told(PublishRefused) == [PublishRefused(id_of(topic), "over quota", 1)]
    bench.command(Publish(id_of(topic), b"two"), 2)
    bench.host.advance(config.request_patience_ns)
    assert [one.token for one in bench.told(PublishRefused)] == [1, 2]
    assert bench.told(PublishRefused)[1].reason.startswith("no publisher answered within 60 s")


def test_requests_of_those_below_are_passed_on_and_so_are_answers() -> None:
    topic = topic_by(0)
    id = id_of(topic)
    bench = reader_of(topic)
    event = request_by(3, id, b"from below")
    bench.says(3, RequestToPublish(event, STAMP))
    bench.finish()
    (passed,) = of_kind(bench.sent_to(0), RequestToPublish)
    assert passed.event == event
    refusal = answer(id, event, None, "no")
    assert bench.says(0, refusal) == []
    assert of_kind(bench.sent_to(3), PublishAnswer) == [refusal]
    bench.says(0, refusal)
    assert of_kind(bench.sent_to(3), PublishAnswer) == [refusal], "told once"


def test_a_publisher_places_an_event_once_and_answers_every_time() -> None:
    topic = topic_by(0)
    id = id_of(topic)
    bench = author_of(topic)
    event = request_by(1, id, b"please")
    for _ in range(2):
        bench.says(1, RequestToPublish(event, STAMP))
        bench.finish()
    answers = of_kind(bench.sent_to(1), PublishAnswer)
    (published,) = of_kind(bench.sent_to(1), PublishEvent)
    assert [one.event for one in answers] == [id_of(published.event)] * 2
    assert published.event.publisher == peer_of(0)
    assert published.event.author == peer_of(1)
    assert len(bench.state(id).log) == 1


def test_requests_are_refused_for_a_reason() -> None:
    custom = topic_by(0, linking=EventLinking.CUSTOM, requests=PeerList(True, (peer_of(1),)))
    id = id_of(custom)
    bench = author_of(custom, TopicsConfig(request_burst=1, request_refill_ns=S_NS))
    said = [
        (request_by(1, id, b"fine"), None),
        (request_by(1, id, b"too soon"), None),
        (request_by(4, id, b"not named"), None),
        (request_by(1, id, b"tomorrow", START_MS + TopicsConfig().future_ms + 1), None),
    ]
    for event, parent in said:
        bench.says(1, RequestToPublish(event, STAMP, parent))
        bench.finish()
    answers = of_kind(bench.sent_to(1), PublishAnswer)
    assert answers[0].event is not None
    assert answers[1].reason == "too many requests of this author: wait a little"
    assert answers[2].reason.startswith("this event is dated ahead of the publisher's clock")
    assert len(answers) == 3
    assert bench.rejected() == ["may-not-request"]
    bench.host.advance(S_NS)
    bench.says(1, RequestToPublish(said[1][0], STAMP))
    bench.finish()
    assert of_kind(bench.sent_to(1), PublishAnswer)[-1].event is not None


@pytest.mark.parametrize("rewind", [False, True], ids=["", "read from the beginning"])
@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
def test_an_old_request_is_not_published_again(restart: bool, rewind: bool) -> None:
    topic, config = topic_by(0), TopicsConfig(events_bytes_max=3 * (ENTRY_BYTES + 64))
    id = id_of(topic)
    bench = author_of(topic, config)
    event = request_by(1, id, b"once")
    bench.says(1, RequestToPublish(event, STAMP))
    bench.finish()
    bench.host.advance(S_NS)
    for number in range(5):
        bench.command(Publish(id, b"%d" % number), number)
    bench.host.advance(2 * config.beat_ns)
    bench.finish()
    if rewind:
        bench.dht.values.clear()  # nobody has it any more
        bench.command(Subscribe(id, BEGINNING), "s")
        bench.host.advance(2 * config.beat_ns)
        bench.finish()
    if restart:
        bench = TopicBench(0, config, disk=bench.host.disk, now_ns=bench.host.time_ns)
        bench.meet(1)
    bench.says(1, JoinTopic(id, STAMP))
    bench.says(1, RequestToPublish(event, STAMP))
    bench.finish()
    refusal = of_kind(bench.sent_to(1), PublishAnswer)[-1]
    assert refusal.event is None
    assert refusal.reason.startswith("this event is too old")


def test_a_publisher_that_lost_its_memory_takes_no_requests_from_before() -> None:
    topic, config = topic_by(0, created_ms=START_MS - 10 * NEW_MS), TopicsConfig()
    bench = TopicBench(0, config)
    bench.command(AddTopic(topic))
    bench.host.advance(2 * config.sync_patience_ns)
    bench.meet(1)
    bench.says(1, JoinTopic(id_of(topic), STAMP))
    for age_ms in (3 * NEW_MS, 0):
        event = request_by(1, id_of(topic), b"x", START_MS - age_ms)
        bench.says(1, RequestToPublish(event, STAMP))
        bench.finish()
    before, since = of_kind(bench.sent_to(1), PublishAnswer)
    assert before.reason.startswith("this event is too old")
    assert since.event is not None


def test_where_anyone_publishes_nobody_asks() -> None:
    topic = topic_by(0, publishers=ANYONE)
    bench = reader_of(topic)
    bench.command(Publish(id_of(topic), b"mine"), "t")
    (accepted,) = bench.told(EventAccepted)
    assert accepted.event.publisher == peer_of(2)
    assert of_kind(bench.sent_to(0), PublishEvent) == of_kind(bench.sent_to(3), PublishEvent)
    assert of_kind(bench.sent_to(0), RequestToPublish) == []


def test_a_request_may_name_a_parent_that_its_publisher_has_to_fetch() -> None:
    custom = topic_by(0, linking=EventLinking.CUSTOM)
    id = id_of(custom)
    bench = author_of(custom)
    old, request = event_by(0, id, b"old"), request_by(1, id, b"please")
    for _ in range(2):
        bench.says(1, RequestToPublish(request, STAMP, id_of(old)))
        bench.finish()
    assert of_kind(bench.sent_to(1), PublishAnswer) == []
    bench.says(1, PublishEvent(old, STAMP))
    bench.finish()
    (published,) = of_kind(bench.sent_to(1), PublishAnswer)
    assert bench.state(id).log.events[published.event].event.parent == id_of(old)
    nowhere = request_by(1, id, b"after nothing")
    bench.says(1, RequestToPublish(nowhere, STAMP, cid_of(b"unknown")))
    bench.finish()
    bench.says(1, Lacks(id, (cid_of(b"unknown"),), STAMP))
    assert of_kind(bench.sent_to(1), PublishAnswer)[-1].reason.startswith("nobody has an event")


def test_so_many_events_wait_for_their_parents_and_no_more() -> None:
    custom = topic_by(0, linking=EventLinking.CUSTOM)
    id = id_of(custom)
    bench = author_of(custom, TopicsConfig(orphans_max=2))
    for number in range(3):
        parent = cid_of(b"unknown %d" % number)
        bench.says(1, RequestToPublish(request_by(1, id, b"%d" % number), STAMP, parent))
        bench.finish()
    (answer,) = of_kind(bench.sent_to(1), PublishAnswer)
    assert answer.reason.startswith("too many events wait for the ones that they follow")
    bench.says(1, Lacks(id, (cid_of(b"unknown 0"),), STAMP))  # it is given up: there is room again
    bench.says(1, RequestToPublish(request_by(1, id, b"2"), STAMP, cid_of(b"unknown 2")))
    bench.finish()
    assert len(of_kind(bench.sent_to(1), PublishAnswer)) == 2
