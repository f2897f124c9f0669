"""Publishing: who may, in which order, and on disk before anybody hears of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from shoal.base.units import S_NS
from shoal.identity.topics.cid import cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE, EventLinking, PeerList
from shoal.identity.topics.event_signatures import signatures_hold
from shoal.kernel.effects import Notify, Store
from shoal.kernel.inputs import CommandIssued, Started, StoreFailed
from shoal.kernel.records import EventPublished
from shoal.protocols.dht.commands import Put
from shoal.protocols.dht.validators import read_record
from shoal.protocols.topics.commands import (
    AddTopic,
    EventAccepted,
    Publish,
    PublishRefused,
    Retire,
    Subscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.heads import make_record
from shoal.protocols.topics.machine import TopicNode
from shoal.protocols.topics.messages import PublishAnswer, PublishEvent, RequestToPublish
from shoal.sim.simulation import START_NS
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TOPICS,
    TopicBench,
    event_by,
    id_of,
    key_of,
    peer_of,
    request_by,
    topic_by,
)
from tests.support.topic_scenes import author_of, of_kind, reader_of

# Our own


def test_nobody_hears_of_an_event_before_it_is_on_disk() -> None:
    topic = topic_by(0)
    bench = author_of(topic)
    bench.host.command(bench.machine, Publish(id_of(topic), b"first"), "t")
    assert bench.told(EventAccepted) == []
    assert of_kind(bench.sent_to(1), PublishEvent) == []
    assert len(bench.state(id_of(topic)).log) == 0
    bench.finish()
    (accepted,) = bench.told(EventAccepted)
    event = accepted.event
    assert (accepted.id, accepted.token) == (id_of(event), "t")
    assert (event.author, event.publisher, event.parent) == (peer_of(0), peer_of(0), None)
    assert signatures_hold(event)
    assert [one.event for one in of_kind(bench.sent_to(1), PublishEvent)] == [event]
    assert EventPublished(id_of(topic), accepted.id, 5) in bench.host.records
    puts = [one for one in bench.dht.asked if isinstance(one, Put)]
    assert puts[-1].key == accepted.id
    assert puts[-1].value == encode_descriptor(event)


def test_without_a_disk_an_event_exists_at_once() -> None:
    topic = topic_by(0)
    machine = TopicNode(key_of(0), Random(1), disk=False)
    machine.handle(Started(), START_NS)
    machine.handle(CommandIssued(AddTopic(topic)), START_NS)
    told: list[Any] = []
    for token in (1, 2):
        effects = machine.handle(CommandIssued(Publish(id_of(topic), b"x"), token), START_NS)
        assert not any(isinstance(effect, Store) for effect in effects)
        told += [effect.event for effect in effects if isinstance(effect, Notify)]
    assert [one.token for one in told] == [1, 2]
    assert told[1].event.parent == told[0].id
    machine.check_invariants()


def test_several_at_once_make_a_chain() -> None:
    topic = topic_by(0)
    bench = author_of(topic)
    for number in range(4):
        bench.host.command(bench.machine, Publish(id_of(topic), b"%d" % number), number)
    bench.finish()
    accepted = bench.told(EventAccepted)
    assert [one.token for one in accepted] == [0, 1, 2, 3]
    assert [one.event.parent for one in accepted] == [None, *[one.id for one in accepted[:-1]]]


@pytest.mark.parametrize("linking", EventLinking)
def test_the_same_payload_twice_at_one_moment_is_two_events(linking: EventLinking) -> None:
    topic = topic_by(0, linking=linking)
    bench = author_of(topic)
    bench.command(Subscribe(id_of(topic)), "s")
    for token in (1, 2, 3):
        bench.host.command(bench.machine, Publish(id_of(topic), b"tick"), token)
    bench.finish()
    assert [one.token for one in bench.told(EventAccepted)] == [1, 2, 3]
    assert bench.payloads("s") == [b"tick"] * 3


def test_what_the_disk_refuses_is_refused_with_all_that_follows() -> None:
    topic = topic_by(0)
    bench = author_of(topic)
    bench.command(Publish(id_of(topic), b"before"), "before")
    bench.says(1, RequestToPublish(request_by(1, id_of(topic), b"asked for"), STAMP))
    bench.finish()
    (asked_for,) = of_kind(bench.sent_to(1), PublishAnswer)
    for number in range(3):
        bench.host.command(bench.machine, Publish(id_of(topic), b"%d" % number), number)
    bench.host.finish_one()
    _, work = bench.host.slow_work.popleft()
    assert isinstance(work, Store)
    bench.host.feed(TOPICS, StoreFailed(work.token, "full"))
    bench.finish()
    assert [one.token for one in bench.told(EventAccepted)] == ["before", 0]
    refused = bench.told(PublishRefused)
    assert [one.token for one in refused] == [1, 2]
    assert {one.reason for one in refused} == {"the disk refused it: full"}
    # On disk is what was accepted, and nothing else.
    on_disk = [value for (_, key), value in bench.host.disk.items() if key[:1] == b"e"]
    assert len([value for value in on_disk if value is not None]) == 3
    bench.command(Publish(id_of(topic), b"after"), "after")
    accepted = bench.told(EventAccepted)
    assert accepted[-1].event.parent == accepted[-2].id
    assert accepted[1].event.parent == asked_for.event


def test_who_may_neither_publish_nor_ask_is_told_so() -> None:
    topic = topic_by(0, requests=PeerList(False))
    bench = reader_of(topic)
    bench.command(Publish(id_of(topic), b"x"), "t")
    (refused,) = bench.told(PublishRefused)
    assert (refused.topic, refused.token) == (id_of(topic), "t")
    assert refused.reason.startswith("this node may neither publish in 'news' nor ask others to")


def test_a_parent_is_named_under_custom_linking_only_and_must_be_known() -> None:
    last_seen, custom = topic_by(0), topic_by(0, linking=EventLinking.CUSTOM)
    bench = author_of(last_seen)
    bench.command(AddTopic(custom))
    unknown = cid_of(b"unknown")
    bench.command(Publish(id_of(last_seen), b"x", unknown), 1)
    bench.command(Publish(id_of(custom), b"x", unknown), 2)
    reasons = [one.reason for one in bench.told(PublishRefused)]
    assert "leave the parent out" in reasons[0]
    assert reasons[1].startswith("nobody has an event zdpu")
    for payload in (b"x", b"y"):
        bench.command(Publish(id_of(custom), payload), 3)
    first = bench.told(EventAccepted)[0].id
    bench.command(Publish(id_of(custom), b"z", first), 4)
    assert [one.event.parent for one in bench.told(EventAccepted)] == [None, None, first]


def test_a_parent_that_is_not_here_is_fetched() -> None:
    custom = topic_by(0, linking=EventLinking.CUSTOM, publishers=ANYONE)
    other = topic_by(0, "other", linking=EventLinking.CUSTOM, publishers=ANYONE)
    id = id_of(custom)
    old = event_by(0, id, b"old", created_ms=START_MS - 600_000)
    stray = event_by(0, id_of(other), b"of another topic")
    bench = TopicBench(2)
    bench.dht.keep(id, encode_descriptor(custom))
    for event in (old, stray):
        bench.dht.keep(id_of(event), encode_descriptor(event))
    bench.command(Publish(id, b"one", id_of(old)), 1)
    bench.command(Publish(id, b"two", id_of(old)), 2)
    bench.command(Publish(id, b"three", id_of(stray)), 3)
    accepted = [(one.token, one.event.parent) for one in bench.told(EventAccepted)]
    assert accepted == [(1, id_of(old)), (2, id_of(old))]
    (refused,) = bench.told(PublishRefused)
    assert refused.token == 3
    assert refused.reason.startswith("nobody has an event zdpu")


def test_a_topic_that_nobody_knows_takes_no_events() -> None:
    bench = TopicBench(0)
    bench.command(Publish(cid_of(b"no topic"), b"x"), "t")
    (refused,) = bench.told(PublishRefused)
    assert refused.reason.startswith("nobody knows a topic zdpu")


# After the loss of a disk


@pytest.mark.parametrize("found", [True, False])
def test_a_named_publisher_without_memory_looks_for_its_head_record_first(found: bool) -> None:
    topic = topic_by(0, publishers=PeerList(True, (peer_of(0), peer_of(2))))
    id = id_of(topic)
    config = TopicsConfig()
    bench = TopicBench(2, config)
    bench.dht.keep(id, encode_descriptor(topic))
    before = event_by(2, id, b"before the crash")
    if found:
        key = key_of(2)
        bench.dht.keep(*make_record(id, topic, key.address, key.sign, 7, [id_of(before)]))
    bench.command(Publish(id, b"after"), "t")
    assert len(bench.gets("heads")) == 2, "each named publisher has a record"
    assert bench.told(EventAccepted) == []
    if found:
        bench.dht.keep(id_of(before), encode_descriptor(before))
        bench.host.advance(4 * config.want_timeout_ns)
        bench.finish()
    # Records lag behind: a neighbour might know more, but there is none.
    bench.host.advance(config.sync_patience_ns - 4 * config.want_timeout_ns * found - S_NS)
    assert bench.told(EventAccepted) == []
    bench.host.advance(2 * config.sync_retry_ns)
    bench.finish()
    (accepted,) = bench.told(EventAccepted)
    assert accepted.event.parent == (id_of(before) if found else None)


# Where anyone publishes


def test_who_publishes_once_in_an_old_topic_links_to_what_head_records_name() -> None:
    topic = topic_by(0, publishers=ANYONE, created_ms=START_MS - 3_600_000)
    id = id_of(topic)
    bench = TopicBench(2)
    bench.dht.keep(id, encode_descriptor(topic))
    before = event_by(1, id, b"before", created_ms=START_MS - 1_800_000)
    bench.dht.keep(id_of(before), encode_descriptor(before))
    key = key_of(1)
    bench.dht.keep(*make_record(id, topic, key.address, key.sign, 7, [id_of(before)]))
    for payload in (b"one", b"two"):
        bench.command(Publish(id, payload), payload)
    bench.host.advance(TopicsConfig().sync_retry_ns)
    bench.finish()
    one, two = bench.told(EventAccepted)
    assert (one.event.parent, two.event.parent) == (id_of(before), one.id)


@pytest.mark.parametrize("event_exists", [False, True])
def test_it_does_not_look_for_long(event_exists: bool) -> None:
    topic = topic_by(0, publishers=ANYONE, created_ms=START_MS - 3_600_000)
    id = id_of(topic)
    bench = TopicBench(2)
    bench.dht.keep(id, encode_descriptor(topic))
    if event_exists:  # but nobody has it
        key, lost = key_of(1), id_of(event_by(1, id))
        bench.dht.keep(*make_record(id, topic, key.address, key.sign, 7, [lost]))
    bench.command(Publish(id, b"x"), "t")
    assert len(bench.told(EventAccepted)) == (0 if event_exists else 1)
    bench.host.advance(TopicsConfig().look_patience_ns)
    bench.finish()
    (accepted,) = bench.told(EventAccepted)
    assert accepted.event.parent is None


# A newer session of the same key


def test_who_retires_publishes_nothing_more_and_puts_no_head_record() -> None:
    topic = topic_by(0)
    id = id_of(topic)
    bench = author_of(topic)
    bench.command(Publish(id, b"before"), "before")
    bench.command(Retire("a newer session runs"))
    bench.command(Publish(id, b"after"), "after")
    assert bench.told(PublishRefused) == [PublishRefused(id, "a newer session runs", "after")]
    request = request_by(1, id, b"of another", START_MS + 1)
    answers = bench.says(1, RequestToPublish(request, STAMP))
    bench.finish()
    bench.host.advance(2 * TopicsConfig().record_ns)
    bench.finish()
    assert [len(bench.state(id).log), of_kind(answers, PublishAnswer)] == [1, []]
    puts = [one for one in bench.dht.asked if isinstance(one, Put)]
    assert all(read_record(one.value) is None for one in puts)


def test_what_waits_for_its_place_is_refused_when_its_publisher_retires() -> None:
    topic = topic_by(0, created_ms=START_MS - 3_600_000)
    bench = TopicBench(0)
    bench.command(AddTopic(topic))
    bench.command(Publish(id_of(topic), b"waits"), "waits")
    assert bench.told(PublishRefused) == []
    bench.command(Retire("a newer session runs"))
    assert [one.token for one in bench.told(PublishRefused)] == ["waits"]
    bench.host.advance(60 * S_NS)
    bench.finish()
    assert bench.told(EventAccepted) == []
