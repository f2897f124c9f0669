"""Topics that nobody here needs any more: which go, which stay, and when."""

from __future__ import annotations

import pytest

from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import PeerList, TopicDescriptor
from shoal.protocols.topics import topic as held
from shoal.protocols.topics.commands import (
    AddTopic,
    FindTopic,
    Pin,
    Publish,
    Subscribe,
    TopicFound,
    Unsubscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.messages import JoinTopic, NewTopic, PublishEvent
from tests.support.topic_bench import STAMP, TopicBench, event_by, id_of, topic_by

LINGER_NS = TopicsConfig().linger_ns
OPEN = PeerList(False)


def bench_with(*topics: TopicDescriptor) -> TopicBench:
    """Node 2, where the DHT has these."""
    bench = TopicBench(2)
    for topic in topics:
        bench.dht.keep(id_of(topic), encode_descriptor(topic))
    return bench


def passes(bench: TopicBench, duration_ns: int) -> None:
    bench.host.advance(duration_ns)
    bench.finish()


def numbered(count: int) -> list[TopicDescriptor]:
    return [topic_by(0, f"{number}", publishers=OPEN) for number in range(count)]


def read_once(bench: TopicBench, topic: TopicDescriptor) -> Cid:
    """Somebody listens for a while; when nobody does, the node leaves the tree."""
    bench.command(Subscribe(id_of(topic)), topic.name)
    bench.command(Unsubscribe(topic.name))
    passes(bench, 3 * LINGER_NS)
    assert not bench.state(id_of(topic)).tree.entered
    return id_of(topic)


def test_a_topic_that_was_only_looked_at_is_forgotten() -> None:
    (topic,) = numbered(1)
    bench = bench_with(topic)
    bench.command(FindTopic(id_of(topic)), 1)
    passes(bench, LINGER_NS - 1)
    bench.command(FindTopic(id_of(topic)), 2)
    assert len(bench.gets("topic")) == 1, "it is known still"
    passes(bench, LINGER_NS)
    assert id_of(topic) in bench.machine.topics
    passes(bench, LINGER_NS)
    assert bench.machine.topics == {}
    bench.command(FindTopic(id_of(topic)), 3)
    assert [one.topic for one in bench.told(TopicFound)] == [topic] * 3


def test_one_that_is_read_or_carried_meanwhile_is_not() -> None:
    read, carried = numbered(2)
    bench = bench_with(read, carried)
    bench.meet(3)
    for topic in (read, carried):
        bench.command(FindTopic(id_of(topic)))
    bench.command(Subscribe(id_of(read)), "s")
    for _ in range(6):
        bench.says(3, JoinTopic(id_of(carried), STAMP))
        passes(bench, LINGER_NS // 2)
    assert set(bench.machine.topics) == {id_of(read), id_of(carried)}


def test_what_was_read_stays_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "TOPICS_MAX", 2)
    first, second, third = topics = numbered(3)
    bench = bench_with(*topics)
    bench.meet(3)
    bench.command(Subscribe(id_of(first)), "s")
    bench.says(3, JoinTopic(id_of(first), STAMP))
    bench.says(3, PublishEvent(event_by(4, id_of(first), b"x"), STAMP))
    bench.finish()
    assert bench.payloads("s") == [b"x"]
    bench.command(Unsubscribe("s"))
    for topic in (first, second):
        read_once(bench, topic)
    assert set(bench.machine.topics) == {id_of(first), id_of(second)}
    bench.command(FindTopic(id_of(third)))
    assert set(bench.machine.topics) == {id_of(second), id_of(third)}, "unused for longest"
    left = [(slot, key) for (slot, key), value in bench.host.disk.items() if value is not None]
    assert not [key for _, key in left if key[:1] == b"e" or key.endswith(id_of(first))]
    after = TopicBench(2, disk=bench.host.disk)
    assert set(after.machine.topics) == {id_of(second)}


def test_what_is_ours_stays_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "TOPICS_MAX", 1)
    own = topic_by(2, "own")
    pinned, published, heard, other = topics = numbered(4)
    bench = bench_with(*topics)
    bench.command(AddTopic(own))
    bench.command(Pin(id_of(pinned)))
    bench.command(Publish(id_of(published), b"x"), "p")
    bench.command(Subscribe(id_of(heard)), "s")
    read_once(bench, pinned)
    read_once(bench, other)
    passes(bench, 3 * LINGER_NS)
    kept = {id_of(topic) for topic in (own, pinned, published, heard)}
    assert set(bench.machine.topics) == {*kept, id_of(other)}
    bench.command(FindTopic(id_of(topic_by(0, "unknown"))))
    bench.dht.keep(id_of(topic_by(0, "last")), encode_descriptor(topic_by(0, "last")))
    bench.command(FindTopic(id_of(topic_by(0, "last"))))
    assert set(bench.machine.topics) == {*kept, id_of(topic_by(0, "last"))}


def test_what_we_have_keeps_nobody_from_joining(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "TOPICS_MAX", 1)
    mine, theirs = numbered(2)
    bench = bench_with(mine)
    bench.meet(3)
    bench.command(Subscribe(id_of(mine)), "s")
    bench.says(3, NewTopic(theirs, STAMP), JoinTopic(id_of(theirs), STAMP))
    bench.finish()
    assert bench.rejected() == []
    assert set(bench.machine.topics) == {id_of(mine), id_of(theirs)}
