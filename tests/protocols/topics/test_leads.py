"""What was stored can be found by those who do not know its name: a head record leads there."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptors import ANYONE, EventLinking, TopicDescriptor
from shoal.identity.topics.event_signatures import publish_event
from shoal.protocols.dht.commands import Get, Put, PutDone
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    AwaitStored,
    EventAccepted,
    EventStored,
    Publish,
    Subscribe,
)
from shoal.protocols.topics.config import HEADS_IN_RECORD, TopicsConfig
from shoal.protocols.topics.heads import heads_of, make_record, own_key
from shoal.protocols.topics.messages import PublishEvent, RequestToPublish
from tests.support.topic_bench import (
    STAMP,
    FakeDht,
    TopicBench,
    id_of,
    key_of,
    topic_by,
)
from tests.support.topic_scenes import ID, TOPIC, of_kind, reader_of, world_of

CONFIG = TopicsConfig()


@pytest.mark.parametrize("publisher", [0, 1], ids=["its own", "asked for"])
@pytest.mark.parametrize("topic", [TOPIC, topic_by(0, publishers=ANYONE)], ids=["named", "open"])
def test_what_was_stored_outlives_its_publisher_and_all_who_were_told(
    topic: TopicDescriptor, publisher: int
) -> None:
    """Nobody but the DHT is left the moment it is acknowledged; then somebody comes."""
    id = id_of(topic)
    world = world_of(3, topic)
    world.command(1, Subscribe(id), "s")
    world.run(30)
    world.command(publisher, Publish(id, b"last words"), "p")
    world.run(0.2)
    (accepted,) = world.of_kind(publisher, EventAccepted)
    world.command(publisher, AwaitStored(accepted.id, 3), "stored")
    while not world.of_kind(publisher, EventStored):
        world.run(0.01)
    assert world.of_kind(publisher, EventStored) == [EventStored(accepted.id, 3, "stored")]
    for number in (0, 1):
        world.nodes[number].crash(lose_disk=True)
    world.command(2, Subscribe(id, BEGINNING), "late")
    world.run(60)
    assert world.payloads(2, "late") == [b"last words"]


class ScarceDht(FakeDht):
    """One node at most keeps a record."""

    def _answer(self, asked: object) -> object:
        answer = super()._answer(asked)
        scarce = isinstance(answer, PutDone) and len(answer.key) == 32
        return replace(answer, replicas=1) if scarce else answer


@pytest.mark.parametrize("topic", [TOPIC, topic_by(0, publishers=ANYONE)], ids=["named", "open"])
def test_the_record_counts_as_much_as_the_event(
    topic: TopicDescriptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.topic_bench.FakeDht", ScarceDht)
    bench = TopicBench(0)
    bench.command(AddTopic(topic))
    bench.command(Publish(id_of(topic), b"x"))
    bench.command(AwaitStored(bench.told(EventAccepted)[0].id, 3), "t")
    for _ in range(8):
        bench.host.advance(60 * S_NS)
    assert [one.replicas for one in bench.told(EventStored)] == [1]


def test_a_record_leads_to_the_tip_of_an_old_fork_if_somebody_waits_for_it() -> None:
    topic = topic_by(0, linking=EventLinking.CUSTOM)
    bench = TopicBench(0)
    bench.command(AddTopic(topic))
    for number in range(HEADS_IN_RECORD + 4):
        bench.command(Publish(id_of(topic), b"%d" % number))
    tips = [one.id for one in bench.told(EventAccepted)]
    bench.host.advance(CONFIG.record_ns)
    assert heads_in(bench, topic) == tips[4:]
    bench.command(AwaitStored(tips[7], 3), "named")
    assert heads_in(bench, topic) == tips[4:]
    bench.command(AwaitStored(tips[0], 3), "old")
    assert heads_in(bench, topic) == [tips[0], *tips[5:]]
    assert [one.token for one in bench.told(EventStored)] == ["named", "old"]


def heads_in(bench: TopicBench, topic: TopicDescriptor) -> list[Cid]:
    """What our record names, as it was put last."""
    key = own_key(id_of(topic), topic, bench.machine.node)
    return heads_of(bench.dht.values[key][bench.machine.node])[2]


# Events that somebody else published for us


def asked_for() -> tuple[TopicBench, Cid]:
    """Node 2 waits for an event of its own that the author has published."""
    bench = reader_of(TOPIC)
    bench.command(Publish(ID, b"please"), "p")
    (request,) = of_kind(bench.sent_to(0), RequestToPublish)
    event = publish_event(request.event, key_of(0), None)
    bench.says(0, PublishEvent(event, STAMP))
    bench.finish()
    bench.dht.asked.clear()
    bench.command(AwaitStored(id_of(event), 3), "t")
    return bench, id_of(event)


record_of_author = partial(make_record, ID, TOPIC, key_of(0).address, key_of(0).sign)


def test_the_publishers_record_is_looked_for_until_it_leads_there() -> None:
    bench, event = asked_for()
    bench.dht.keep(*record_of_author(1, []))
    bench.host.advance(2 * CONFIG.sync_retry_ns)
    assert len(of_kind(bench.dht.asked, Get)) == 3
    assert bench.told(EventStored) == []
    key, record = record_of_author(2, [event])
    bench.dht.keep(key, record)
    bench.host.advance(CONFIG.sync_retry_ns)
    puts = [(one.key, one.value) for one in of_kind(bench.dht.asked, Put)]
    assert (key, record) in puts, "to learn how many hold it"
    assert bench.told(EventStored) == [EventStored(event, 3, "t")]
    bench.dht.asked.clear()
    bench.command(AwaitStored(event, 2), "again")
    bench.host.advance(2 * CONFIG.sync_retry_ns)
    assert bench.told(EventStored)[1:] == [EventStored(event, 3, "again")]
    assert bench.dht.asked == [], "all of it is known"


def test_a_newer_record_takes_the_place_of_one_that_nobody_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.topic_bench.FakeDht", ScarceDht)
    bench, event = asked_for()
    bench.dht.keep(*record_of_author(1, [event]))
    bench.host.advance(CONFIG.sync_retry_ns)
    assert bench.told(EventStored) == []
    key, newer = record_of_author(2, [event])
    bench.dht.keep(key, newer)
    bench.host.advance(CONFIG.sync_retry_ns)
    assert of_kind(bench.dht.asked, Put)[-1].value == newer


def test_a_record_that_does_not_come_is_not_waited_for_without_end() -> None:
    bench, event = asked_for()
    bench.host.advance(CONFIG.request_patience_ns + CONFIG.sync_retry_ns)
    assert bench.told(EventStored) == [EventStored(event, 0, "t")]
    bench.dht.asked.clear()
    bench.host.advance(CONFIG.sync_retry_ns)
    assert of_kind(bench.dht.asked, Get) == []
