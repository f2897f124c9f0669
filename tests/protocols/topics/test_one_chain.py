"""A publisher's events are one chain, and outlive it, whatever its log waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE, EventDescriptor, PeerList
from shoal.protocols.topics.commands import (
    BEGINNING,
    EventAccepted,
    EventFound,
    Fetch,
    Publish,
    Subscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.heads import make_record
from shoal.protocols.topics.messages import Digest, JoinTopic, PublishEvent
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TopicBench,
    TopicWorld,
    event_by,
    id_of,
    key_of,
    peer_of,
    topic_by,
)

SOLE = topic_by(0, publishers=PeerList(True, (peer_of(1),)))
ID = id_of(SOLE)
HOUR_MS = 3_600_000


def old_chain(count: int) -> list[EventDescriptor]:
    made: list[EventDescriptor] = []
    for number in range(count):
        parent = id_of(made[-1]) if made else None
        made.append(event_by(1, ID, b"old", parent, created_ms=START_MS - HOUR_MS + number))
    return made


OLD = old_chain(4)


def publisher_without_disk() -> TopicBench:
    """Found its last event again, and nothing before it; peer 2 is its child."""
    bench = TopicBench(1)
    bench.dht.keep(ID, encode_descriptor(SOLE))
    bench.dht.keep(id_of(OLD[-1]), encode_descriptor(OLD[-1]))
    key = key_of(1)
    bench.dht.keep(*make_record(ID, SOLE, key.address, key.sign, 7, [id_of(OLD[-1])]))
    bench.meet(2)
    bench.command(Subscribe(ID), "live")
    bench.says(2, JoinTopic(ID, STAMP))
    bench.finish()
    bench.host.advance(TopicsConfig().sync_patience_ns + TopicsConfig().sync_retry_ns)
    bench.finish()
    return bench


def publish(bench: TopicBench, *payloads: bytes) -> None:
    for payload in payloads:
        bench.command(Publish(ID, payload), payload)


def chain_of(bench: TopicBench) -> bool:
    """Whether each accepted event follows the one before."""
    accepted = bench.told(EventAccepted)
    before = [id_of(OLD[-1]), *[one.id for one in accepted[:-1]]]
    return [one.event.parent for one in accepted] == before


@pytest.mark.parametrize(
    "go_back",
    [
        lambda bench: bench.command(Subscribe(ID, BEGINNING), "all"),
        lambda bench: bench.command(Subscribe(ID, id_of(OLD[-1])), "after"),
        lambda bench: bench.says(2, Digest(ID, 0, (), STAMP)),
    ],
    ids=["earliest", "checkpoint", "child"],
)
def test_a_log_that_waits_for_its_past_does_not_fork_what_is_published(
    go_back: Callable[[TopicBench], object],
) -> None:
    bench = publisher_without_disk()
    publish(bench, b"0", b"1")
    go_back(bench)
    assert bench.state(ID).log.absent, "it waits"
    publish(bench, b"2", b"3", b"4")
    assert chain_of(bench)
    pushed = [one.event.payload for one in bench.sent_to(2) if isinstance(one, PublishEvent)]
    assert pushed == [b"0", b"1", b"2", b"3", b"4"], "readers do not wait for what it misses"
    for event in OLD[:-1]:
        bench.dht.keep(id_of(event), encode_descriptor(event))
    bench.host.advance(TopicsConfig().gap_patience_ns)
    bench.finish()
    publish(bench, b"5")
    assert chain_of(bench)
    assert bench.payloads("live") == [b"%d" % number for number in range(6)]


def test_an_old_event_of_its_own_does_not_lead_a_publisher_astray() -> None:
    bench = publisher_without_disk()
    publish(bench, b"0")
    replayed = event_by(1, ID, b"long ago", created_ms=START_MS)
    bench.says(2, PublishEvent(replayed, STAMP))
    bench.finish()
    publish(bench, b"1")
    assert chain_of(bench)


def test_what_was_fetched_last_is_not_taken_for_the_last_one_after_a_crash() -> None:
    bench = publisher_without_disk()
    publish(bench, b"0", b"1")
    bench.dht.keep(id_of(OLD[2]), encode_descriptor(OLD[2]))
    bench.command(Subscribe(ID, BEGINNING), "all")
    bench.host.advance(2 * TopicsConfig().want_timeout_ns)
    bench.finish()
    assert id_of(OLD[2]) in bench.state(ID).log.events
    last = bench.told(EventAccepted)[-1].id
    again = TopicBench(1, disk=bench.host.disk, now_ns=bench.host.time_ns)
    assert again.state(ID).last == last


def test_a_crash_before_it_knew_its_chain_does_not_make_a_publisher_forget_to_look() -> None:
    first = TopicBench(1)
    first.dht.keep(ID, encode_descriptor(SOLE))
    first.command(Publish(ID, b"early"), "t")
    assert first.told(EventAccepted) == []
    again = TopicBench(1, disk=first.host.disk)
    assert not again.state(ID).synced


def test_an_accepted_event_outlives_a_crash_and_gets_out() -> None:
    open_to_all = topic_by(0, publishers=ANYONE)
    id = id_of(open_to_all)
    world = TopicWorld(2)
    world.values[id] = {b"": encode_descriptor(open_to_all)}
    world.command(1, Publish(id, b"mine"), "p")
    while not world.of_kind(1, EventAccepted):
        world.run(0.001)
    (accepted,) = world.of_kind(1, EventAccepted)
    world.nodes[1].crash()
    world.run(1)
    world.values.pop(accepted.id, None)  # nor had the DHT taken it
    world.nodes[1].start()
    world.run(1)
    world.command(1, Fetch(accepted.id), "f")
    world.run(30)
    assert [one.event for one in world.of_kind(1, EventFound)] == [accepted.event]
    assert accepted.id in world.values
    assert len(world.values) == 3, "and its head record leads to it"
    world.command(0, Subscribe(id, BEGINNING), "s")
    world.run(30)
    assert world.payloads(0, "s") == [b"mine"]
    world.run(300)
    assert id in world.machine(1).topics, "it is kept, whoever else is there"
