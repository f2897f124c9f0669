"""What is due from time to time: beats, head records, keeping alive, leaving."""

from __future__ import annotations

from shoal.base.ids import INT63_MAX
from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE, EventLinking
from shoal.protocols.dht.commands import Put
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    EventAccepted,
    Publish,
    Subscribe,
    Unsubscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.event_log import ENTRY_BYTES
from shoal.protocols.topics.heads import heads_of, judge_topics, make_record, own_key
from shoal.protocols.topics.messages import (
    Digest,
    JoinTopic,
    LeaveTopic,
    NewTopic,
    Path,
    PublishEvent,
)
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TopicBench,
    chain_by,
    contact_of,
    event_by,
    id_of,
    key_of,
    topic_by,
)

TOPIC = topic_by(0)
ID = id_of(TOPIC)
CONFIG = TopicsConfig()
RECORD = own_key(ID, TOPIC, contact_of(0).node)


def author(config: TopicsConfig = CONFIG) -> TopicBench:
    bench = TopicBench(0, config)
    bench.command(AddTopic(TOPIC))
    return bench


def passes(bench: TopicBench, duration_ns: int) -> None:
    """Time, in steps: what is due has its signatures and its disk."""
    end_ns = bench.host.time_ns + duration_ns
    while bench.host.time_ns < end_ns:
        bench.host.advance(min(CONFIG.beat_ns, end_ns - bench.host.time_ns))
        bench.finish()


def puts(bench: TopicBench, key: bytes) -> list[bytes]:
    return [one.value for one in bench.dht.asked if isinstance(one, Put) and one.key == key]


def test_neighbours_hear_of_each_other_at_every_beat() -> None:
    bench = author()
    bench.meet(1)
    bench.says(1, JoinTopic(ID, STAMP))
    before = len(bench.host.sent)
    passes(bench, 3 * CONFIG.beat_ns)
    said = [type(message) for message in bench.sent_to(1, before)]
    assert said[:2] == [Path, Digest]
    assert said.count(Digest) == 3


def test_a_head_record_follows_what_was_published() -> None:
    bench = author()
    passes(bench, 3 * CONFIG.beat_ns)
    assert puts(bench, RECORD) == [], "nothing was published"
    for number in range(5):
        bench.command(Publish(ID, b"%d" % number))
    passes(bench, CONFIG.record_ns)
    last = bench.told(EventAccepted)[-1].id
    (record,) = puts(bench, RECORD)
    _, number, heads = heads_of(record)
    assert heads == [last]
    bench.command(Publish(ID, b"more"))
    passes(bench, CONFIG.record_ns)
    _, newer, heads = heads_of(puts(bench, RECORD)[-1])
    assert newer > number
    assert heads == [bench.told(EventAccepted)[-1].id]


def test_a_head_record_is_put_again_after_a_restart() -> None:
    bench = author()
    bench.command(Publish(ID, b"x"))
    again = TopicBench(0, disk=bench.host.disk)
    passes(again, 2 * CONFIG.beat_ns)
    (record,) = puts(again, RECORD)
    assert heads_of(record)[2] == [bench.told(EventAccepted)[0].id]


def test_all_is_put_again_before_the_dht_forgets_it() -> None:
    config = TopicsConfig(keep_alive_ns=60 * S_NS, keep_alive_batch=2)
    bench = author(config)
    for number in range(5):
        bench.command(Publish(ID, b"%d" % number))
    passes(bench, 20 * S_NS)
    bench.dht.asked.clear()
    passes(bench, 70 * S_NS)
    events = [one.id for one in bench.told(EventAccepted)]
    for key in (*events, ID, RECORD):
        assert len(puts(bench, key)) == 1
    passes(bench, 180 * S_NS)
    assert {len(puts(bench, key)) for key in (*events, ID)} <= {3, 4}


def test_what_was_dropped_on_its_way_to_the_dht_is_put_again() -> None:
    bench = author()
    bench.command(Publish(ID, b"0"))
    (event,) = bench.state(ID).log.events
    assert len(puts(bench, event)) == 1
    bench.state(ID).to_put[event] = None
    passes(bench, 2 * CONFIG.beat_ns)
    assert len(puts(bench, event)) == 2


def reader(config: TopicsConfig = CONFIG) -> TopicBench:
    """Node 2, whose parent is the author."""
    bench = TopicBench(2, config, contacts=[contact_of(0)])
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.meet(0)
    bench.command(Subscribe(ID), "s")
    bench.says(0, Path(ID, (contact_of(0),), STAMP))
    return bench


def stays(bench: TopicBench, duration_ns: int, number: int = 0) -> None:
    """Time passes, and the parent says that it lives."""
    for _ in range(duration_ns // CONFIG.beat_ns):
        passes(bench, CONFIG.beat_ns)
        if ID in bench.machine.topics:
            bench.says(number, Path(ID, (contact_of(number),), STAMP))


def test_who_has_no_reason_to_stay_leaves_but_remembers_what_it_read() -> None:
    bench = reader()
    assert not bench.state(ID).is_current, "no neighbour said yet what it has"
    bench.says(0, Digest(ID, 0, (), STAMP))
    assert bench.state(ID).is_current
    bench.command(Unsubscribe("s"))
    stays(bench, CONFIG.linger_ns)
    assert bench.state(ID).tree.entered
    stays(bench, 2 * CONFIG.beat_ns)
    assert LeaveTopic in [type(message) for message in bench.sent_to(0)]
    assert not bench.state(ID).tree.entered
    assert not bench.state(ID).compared, "who is back compares anew"
    assert contact_of(0).node not in bench.machine._held.links.up


def test_what_was_carried_for_others_is_forgotten_when_they_are_gone() -> None:
    bench = TopicBench(2, contacts=[contact_of(0)])
    bench.meet(0, 3)
    bench.says(3, NewTopic(TOPIC, STAMP), JoinTopic(ID, STAMP))
    bench.finish()
    bench.says(0, Path(ID, (contact_of(0),), STAMP))
    events = chain_by(0, ID, 3)
    bench.says(0, *[PublishEvent(event, STAMP) for event in events])
    bench.finish()
    assert len(bench.state(ID).log) == 3
    bench.says(3, LeaveTopic(ID, STAMP))
    stays(bench, CONFIG.linger_ns + 3 * CONFIG.beat_ns)
    assert ID not in bench.machine.topics
    assert bench.machine.state_bytes() == 0
    on_disk = [value for (_, key), value in bench.host.disk.items() if key[:1] == b"e"]
    assert on_disk == [None] * 3
    passes(bench, 60 * S_NS)
    assert not bench.host.timers, "nothing is due any more"


def test_carried_events_do_not_stay_on_disk_over_a_restart() -> None:
    bench = TopicBench(2)
    bench.meet(3)
    bench.says(3, NewTopic(TOPIC, STAMP), JoinTopic(ID, STAMP))
    bench.finish()
    bench.says(3, PublishEvent(event_by(0, ID, b"x"), STAMP))
    bench.finish()
    own = topic_by(2, "own")
    bench.command(AddTopic(own))
    again = TopicBench(2, disk=bench.host.disk)
    assert list(again.machine.topics) == [id_of(own)]
    assert [v for (_, key), v in again.host.disk.items() if key[:1] == b"e"] == [None]


def test_a_root_that_is_not_the_author_watches_head_records() -> None:
    bench = TopicBench(2)
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.command(Subscribe(ID), "s")
    passes(bench, 2 * CONFIG.watch_ns)
    assert bench.gets("heads")[:1] == [RECORD]
    event = event_by(0, ID, b"lost by the tree", created_ms=bench.host.time_ns // 10**6)
    key = key_of(0)
    bench.dht.keep(*make_record(ID, TOPIC, key.address, key.sign, 9, [id_of(event)]))
    bench.dht.keep(id_of(event), encode_descriptor(event))
    passes(bench, 2 * CONFIG.watch_ns)
    assert bench.payloads("s") == [b"lost by the tree"]
    assert bench.state(ID).sync_heads == {}, "only a publisher that lost its memory needs them"


def test_nobody_elses_record_counts_as_ours() -> None:
    """Where anyone publishes, somebody could use up all numbers."""
    topic = topic_by(0, publishers=ANYONE)
    id = id_of(topic)
    bench = TopicBench(2)
    bench.dht.keep(id, encode_descriptor(topic))
    eve = key_of(4)
    record = make_record(id, topic, eve.address, eve.sign, INT63_MAX, [])
    bench.dht.keep(*record)
    bench.command(Subscribe(id, BEGINNING), "s")
    bench.command(Publish(id, b"x"))
    passes(bench, CONFIG.record_ns + CONFIG.beat_ns)
    (ours,) = [one for one in puts(bench, record[0]) if one != record[1]]
    signer, number, heads = heads_of(ours)
    assert (signer, heads) == (contact_of(2).node, [bench.told(EventAccepted)[0].id])
    assert number < INT63_MAX
    assert judge_topics(record[0], ours) is not None


def test_a_record_that_is_nonsense_changes_nothing() -> None:
    bench = TopicBench(2)
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.dht.keep(RECORD, b"nonsense")
    bench.command(Subscribe(ID), "s")
    passes(bench, 2 * CONFIG.watch_ns)
    assert len(bench.state(ID).fetches) == 0


def test_an_event_of_the_future_does_not_stop_retention() -> None:
    config = TopicsConfig(age_max_ns=60 * S_NS)
    bench = author(config)
    bench.meet(1)
    bench.says(1, JoinTopic(ID, STAMP))
    ahead = event_by(0, ID, b"year 9999", created_ms=START_MS + 10**12)
    bench.says(1, PublishEvent(ahead, STAMP))
    assert bench.rejected() == ["future"]
    # It is found all the same if another one follows it.
    bench.says(1, PublishEvent(event_by(0, ID, b"now", id_of(ahead)), STAMP))
    bench.finish()
    bench.says(1, PublishEvent(ahead, STAMP))
    bench.finish()
    assert len(bench.state(ID).log.order) == 2
    passes(bench, 100 * S_NS)
    assert len(bench.state(ID).log) == 0


def test_the_floor_that_retention_raised_is_kept() -> None:
    bench = author(TopicsConfig(events_bytes_max=3 * (ENTRY_BYTES + 64)))
    for number in range(8):
        bench.command(Publish(ID, b"%d" % number))
    passes(bench, 2 * CONFIG.beat_ns)
    again = TopicBench(0, disk=bench.host.disk)
    log = again.state(ID).log
    assert log.floor_ms == bench.state(ID).log.floor_ms > 0
    assert [entry.event.payload for entry in log.order] == [b"5", b"6", b"7"]
    assert log.absent == {}
    assert isinstance(log.last, bytes)
    assert Cid(log.last) == bench.told(EventAccepted)[-1].id


def test_forks_that_retention_cut_off_are_ready_after_a_restart() -> None:
    topic = topic_by(0, linking=EventLinking.CUSTOM)
    id = id_of(topic)
    bench = TopicBench(0, TopicsConfig(events_bytes_max=3 * (ENTRY_BYTES + 64)))
    bench.command(AddTopic(topic))
    for payload in (b"one", b"two", b"three"):
        bench.command(Publish(id, payload))
    for begun in bench.told(EventAccepted):
        bench.command(Publish(id, begun.event.payload + b", on", begun.id))
    passes(bench, 2 * CONFIG.beat_ns)
    log = TopicBench(0, disk=bench.host.disk).state(id).log
    assert [entry.event.payload for entry in log.order] == [b"one, on", b"two, on", b"three, on"]
    assert log.absent == {}
