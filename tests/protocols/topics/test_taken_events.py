"""Events that peers push: whose are taken, which are told and passed on, and what is asked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import (
    EventDescriptor,
    PeerList,
    Signatures,
)
from shoal.protocols.topics.commands import EventFound, Fetch, Subscribe
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.messages import (
    Digest,
    Heads,
    JoinTopic,
    Lacks,
    Path,
    PublishEvent,
    Want,
)
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TopicBench,
    chain_by,
    contact_of,
    event_by,
    id_of,
    request_by,
    topic_by,
)
from tests.support.topic_scenes import ID, TOPIC, reader

UNKNOWN = cid_of(b"unknown")
EVENT = event_by(0, ID, b"news")


def pushed(bench: TopicBench, number: int) -> list[EventDescriptor]:
    """The events that a peer was sent."""
    return [one.event for one in bench.sent_to(number) if isinstance(one, PublishEvent)]


def test_an_event_goes_to_all_but_where_it_came_from() -> None:
    bench = reader()
    bench.says(0, PublishEvent(EVENT, STAMP))
    assert bench.payloads("s") == [], "it is not checked yet"
    bench.finish()
    assert bench.payloads("s") == [b"news"]
    assert (pushed(bench, 0), pushed(bench, 3), pushed(bench, 4)) == ([], [EVENT], [])


def test_an_event_is_taken_once() -> None:
    bench = reader()
    for number in (0, 3, 0):
        bench.says(number, PublishEvent(EVENT, STAMP))
    assert len(bench.host.slow_work) == 1
    bench.finish()
    bench.says(3, PublishEvent(EVENT, STAMP))
    assert not bench.host.slow_work
    assert bench.payloads("s") == [b"news"]


def forged() -> EventDescriptor:
    return replace(EVENT, metadata=replace(EVENT.metadata, signatures=Signatures(bytes(64))))


NOT_ALLOWED = {
    "another publisher": event_by(4, ID, b"mine"),
    "not published": request_by(0, ID, b"x"),
}


@pytest.mark.parametrize("event", NOT_ALLOWED.values(), ids=NOT_ALLOWED)
@pytest.mark.parametrize("by_dht", [False, True])
def test_only_publishers_publish(event: EventDescriptor, by_dht: bool) -> None:
    bench = reader()
    if by_dht:
        bench.dht.keep(id_of(event), encode_descriptor(event))
        bench.says(3, Heads(ID, (id_of(event),), STAMP))
        bench.says(3, Lacks(ID, (id_of(event),), STAMP))
        bench.says(0, Lacks(ID, (id_of(event),), STAMP))
    else:
        bench.says(0, PublishEvent(event, STAMP))
    bench.finish()
    assert bench.rejected() == ["not-allowed"]
    assert len(bench.state(ID).log) == 0


def test_what_authors_may_not_ask_for_is_not_taken() -> None:
    topic = topic_by(0, "closed", requests=PeerList(False))
    bench = TopicBench(2, contacts=[contact_of(0)])
    bench.dht.keep(id_of(topic), encode_descriptor(topic))
    bench.meet(0)
    bench.command(Subscribe(id_of(topic)), "s")
    bench.says(0, Path(id_of(topic), (contact_of(0),), STAMP))
    bench.says(0, PublishEvent(event_by(4, id_of(topic), b"x", publisher=0), STAMP))
    assert bench.rejected() == ["not-allowed"]


@pytest.mark.parametrize("by_dht", [False, True])
def test_bad_signatures_are_counted_and_nothing_is_told(by_dht: bool) -> None:
    bench = reader()
    event = event_by(0, ID, b"bad")
    if by_dht:
        # Whoever names an event may have put it into the DHT, too.
        bench.dht.keep(id_of(event), encode_descriptor(event))
        bench.says(3, Heads(ID, (id_of(event),), STAMP))
        for number in (3, 0):
            bench.says(number, Lacks(ID, (id_of(event),), STAMP))
    else:
        bench.says(0, PublishEvent(event, STAMP), PublishEvent(forged(), STAMP))
    bench.finish(valid=False)
    assert set(bench.rejected()) == {"bad-signature"}
    assert (len(bench.state(ID).log), bench.payloads("s"), pushed(bench, 3)) == (0, [], [])


def test_an_answer_of_many_events_is_asked_for_once() -> None:
    bench = reader()
    events = chain_by(0, ID, 20)
    bench.says(0, Heads(ID, (id_of(events[-1]),), STAMP))
    bench.says(0, *[PublishEvent(one, STAMP) for one in reversed(events)])
    bench.finish()
    wants = [one for one in bench.sent_to(0) if isinstance(one, Want)]
    assert [one.events for one in wants] == [(id_of(events[-1]),)]
    assert len(bench.payloads("s")) == 20
    # What was missed is not news: neighbours compare, and ask for what they miss as well.
    assert pushed(bench, 3) == []
    before = len(bench.host.sent)
    bench.host.advance(bench.machine.config.compare_ns)
    for number in (0, 3):
        (greeting,) = bench.sent_to(number, before)
        assert isinstance(greeting, Digest)


def test_what_was_lost_of_an_author_with_a_slow_clock_is_told() -> None:
    bench = TopicBench(1)
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.meet(2)
    bench.command(Subscribe(ID), "s")
    bench.says(2, JoinTopic(ID, STAMP))
    bench.finish()
    made: list[EventDescriptor] = []
    for number in range(5):
        parent = id_of(made[-1]) if made else None
        slow_ms = START_MS - 300_000 + number
        made.append(event_by(0, ID, b"%d" % number, parent, created_ms=slow_ms))
    for pushed in ((made[1],), (made[4],), (made[3], made[2])):
        bench.says(2, *[PublishEvent(event, STAMP) for event in pushed])
        bench.finish()
    bench.says(2, PublishEvent(made[0], STAMP))
    bench.finish()
    assert bench.payloads("s") == [b"1", b"2", b"3", b"4"], "0 was before it came"


def test_the_past_that_nobody_asked_for_is_neither_told_nor_passed_on() -> None:
    bench = TopicBench(1)
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.meet(2, 3)
    bench.command(Subscribe(ID), "s")
    for number in (2, 3):
        bench.says(number, JoinTopic(ID, STAMP))
    bench.finish()
    bench.rejected()
    day_ms = TopicsConfig().news_age_ms
    old = event_by(0, ID, b"old", created_ms=START_MS - day_ms - 1)
    slow = event_by(0, ID, b"slow", created_ms=START_MS - day_ms)
    for event in (old, slow):
        bench.says(2, PublishEvent(event, STAMP))
        bench.finish()
    assert bench.rejected() == ["past"]
    assert bench.payloads("s") == [b"slow"]
    assert [one.event for one in bench.sent_to(3) if isinstance(one, PublishEvent)] == [slow]


def test_a_child_has_its_parent_go_back_once_a_beat() -> None:
    bench = reader()
    floors = []
    for floor_ms in (5_000, 4_000, 3_000):
        bench.says(3, Digest(ID, floor_ms, (), STAMP))
        floors.append(bench.state(ID).log.floor_ms)
    assert floors == [5_000] * 3
    bench.host.advance(bench.machine.config.beat_ns)
    bench.says(3, Digest(ID, 3_000, (), STAMP))
    assert bench.state(ID).log.floor_ms == 3_000


def test_what_a_child_wants_to_know_comes_by_way_of_its_parents() -> None:
    bench = reader()
    old = event_by(0, ID, b"old", created_ms=START_MS - 10**7)
    assert bench.state(ID).log.floor_ms > old.metadata.created_ms
    bench.says(3, Digest(ID, 0, (), STAMP))
    assert bench.state(ID).log.floor_ms == 0
    bench.says(0, Heads(ID, (id_of(old),), STAMP))
    bench.says(0, PublishEvent(old, STAMP))
    bench.finish()
    assert bench.payloads("s") == [], "it reads what comes"
    (heads,) = bench.says(3, Digest(ID, 0, (), STAMP))
    assert heads.events == (id_of(old),)


def test_what_an_application_asked_for_is_told_to_it_alone() -> None:
    bench = reader()
    old = event_by(0, ID, b"old", created_ms=START_MS - 10**7)
    bench.command(Fetch(id_of(old), ID), "f")
    bench.says(0, PublishEvent(old, STAMP))
    bench.finish()
    assert bench.told(EventFound) == [EventFound(id_of(old), old, "f")]
    assert (bench.payloads("s"), pushed(bench, 3), len(bench.state(ID).log)) == ([], [], 0)


def test_a_queue_that_is_full_is_not_filled_further() -> None:
    bench = reader()
    child = contact_of(3).node
    bench.host.queue_changed(child, high=True)
    bench.says(0, PublishEvent(EVENT, STAMP))
    bench.finish()
    assert pushed(bench, 3) == []
    before = len(bench.host.sent)
    bench.host.queue_changed(child, high=False)
    (greeting,) = bench.sent_to(3, before)
    assert isinstance(greeting, Digest)
    assert len(greeting.spans) == 1
    answer = bench.says(3, Want(ID, (id_of(EVENT), Cid(UNKNOWN)), STAMP))
    assert [type(one) for one in answer] == [PublishEvent, Lacks]
