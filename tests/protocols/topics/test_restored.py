"""A publisher goes on from an older copy of its disk. Marked as one, it first finds what it
published since; unmarked, its own head record tells it. Nothing that was stored gets hidden."""

from __future__ import annotations

from random import Random

import pytest

from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE
from shoal.kernel.disk import MemoryDisk
from shoal.protocols.dht.commands import Get, Put
from shoal.protocols.topics.archive import RESTORED
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    AwaitStored,
    EventAccepted,
    EventArrived,
    EventStored,
    Publish,
    PublishRefused,
    Subscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.heads import heads_of, make_record, own_key
from shoal.protocols.topics.messages import JoinTopic, PublishEvent
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TOPICS,
    TopicBench,
    TopicWorld,
    chain_by,
    event_by,
    id_of,
    key_of,
    topic_by,
)
from tests.support.topic_scenes import ID, TOPIC, digits, publish, world_of

CONFIG = TopicsConfig()
KEY = own_key(ID, TOPIC, key_of(0).address)
Values = dict[tuple[int, bytes], bytes | None]


def disk_of(world: TopicWorld, number: int) -> MemoryDisk:
    disk = world.nodes[number].disk
    assert isinstance(disk, MemoryDisk)
    return disk


def restore(world: TopicWorld, number: int, copy: Values, *, marked: bool) -> None:
    """Its disk is an older copy, as `shoal restore` leaves it, or as a snapshot does."""
    world.nodes[number].crash()
    world.run(1)
    values = disk_of(world, number).values
    values.clear()
    values.update(copy)
    if marked:
        values[TOPICS, RESTORED] = b"1"
    world.nodes[number].start()


def heads_in_dht(world: TopicWorld) -> list[Cid]:
    (record,) = world.values[KEY].values()
    return heads_of(record)[2]


def accepted(world: TopicWorld, number: int = 0) -> list[EventAccepted]:
    return world.of_kind(number, EventAccepted)


def test_a_restored_author_goes_on_after_what_it_does_not_remember() -> None:
    world = world_of(3)
    world.command(1, Subscribe(ID, BEGINNING), "all")
    publish(world, 3)
    copy = dict(disk_of(world, 0).values)
    ids = publish(world, 2, first=3)
    world.run(10)  # its head record is put
    assert heads_in_dht(world) == [ids[-1]]
    restore(world, 0, copy, marked=True)
    world.command(0, Publish(ID, b"5"), 5)
    world.run(60)
    last = accepted(world)[-1]
    assert last.event.payload == b"5"
    assert last.event.parent == ids[-1], "not behind 2: 3 and 4 were stored"
    world.command(2, Subscribe(ID, BEGINNING), "late")
    world.run(60)
    for reader, token in ((1, "all"), (2, "late")):
        assert world.payloads(reader, token) == digits(range(6))
        assert not any(one.gap_before for one in world.of_kind(reader, EventArrived))
    assert (TOPICS, RESTORED) not in {k for k, v in disk_of(world, 0).values.items() if v}
    assert world.state(0, ID).synced


def test_events_that_nobody_gives_are_followed_by_name() -> None:
    """Its record says what it published last; whoever kept that is away."""
    world = world_of(2)
    publish(world, 3)
    copy = dict(disk_of(world, 0).values)
    ids = publish(world, 2, first=3)
    world.run(10)
    for id in ids[3:]:
        del world.values[id]
    restore(world, 0, copy, marked=True)
    world.command(0, Publish(ID, b"5"), 5)
    world.run(CONFIG.sync_patience_ns / S_NS + 20)
    assert accepted(world)[-1].event.parent == ids[-1]
    assert heads_in_dht(world)[-1] == accepted(world)[-1].id


def test_a_copy_that_nobody_marked_is_found_out_by_its_own_head_record() -> None:
    world = world_of(3)
    publish(world, 3)
    copy = dict(disk_of(world, 0).values)
    ids = publish(world, 2, first=3)
    world.run(10)
    restore(world, 0, copy, marked=False)
    world.run(20)  # a beat
    world.command(0, Publish(ID, b"5"), 5)
    world.run(60)
    assert accepted(world)[-1].event.parent == ids[-1]


def test_a_fork_hides_nothing_and_shows() -> None:
    """Unmarked, and it publishes before it could find out."""
    world = world_of(3)
    world.command(1, Subscribe(ID, BEGINNING), "all")
    publish(world, 3)
    copy = dict(disk_of(world, 0).values)
    ids = publish(world, 2, first=3)
    world.run(10)
    restore(world, 0, copy, marked=False)
    world.command(0, Publish(ID, b"fork"), "fork")
    world.run(120)
    fork = accepted(world)[-1]
    assert fork.event.parent == ids[2]
    assert {ids[-1], fork.id} <= set(heads_in_dht(world)), "its record replaces, and hides nothing"
    world.command(1, Subscribe(ID, ids[-1]), "checkpoint")
    world.command(2, Subscribe(ID, BEGINNING), "late")
    world.run(60)
    told = {
        one.subscription: (one.event.payload, one.gap_before)
        for one in world.of_kind(1, EventArrived)
        if one.id == fork.id
    }
    assert told == {"all": (b"fork", True), "checkpoint": (b"fork", True)}
    assert sorted(world.payloads(2, "late")) == sorted([*digits(range(5)), b"fork"])
    assert sum(one.gap_before for one in world.of_kind(2, EventArrived)) >= 1


def test_in_a_topic_of_many_publishers_branches_are_no_gaps() -> None:
    world = world_of(2, topic_by(0, publishers=ANYONE))
    id = id_of(topic_by(0, publishers=ANYONE))
    world.command(1, Subscribe(id, BEGINNING), "all")
    world.run(5)
    for number in (0, 1):
        world.command(number, Publish(id, b"%d" % number), number)
    world.run(30)
    assert len(world.payloads(1, "all")) == 2
    assert not any(one.gap_before for one in world.of_kind(1, EventArrived))


def test_stored_waits_until_the_own_record_is_known() -> None:
    """A record that was put at once would replace one that names more."""
    bench = TopicBench(0)
    bench.command(AddTopic(TOPIC))
    for number in range(2):
        bench.command(Publish(ID, b"%d" % number))
    again = TopicBench(0, disk=bench.host.disk)
    last = bench.told(EventAccepted)[-1].id
    again.command(AwaitStored(last, 3), "s")
    mine = [one for one in again.dht.asked if isinstance(one, Get | Put) and one.key == KEY]
    assert [type(one) for one in mine] == [Get, Put], "first it looks"
    assert again.told(EventStored) == [EventStored(last, 3, "s")]


def test_a_record_of_ours_that_is_older_changes_nothing() -> None:
    bench = TopicBench(0)
    bench.command(AddTopic(TOPIC))
    bench.command(Publish(ID, b"0"))
    bench.host.advance(2 * CONFIG.record_ns)
    state = bench.state(ID)
    number = state.record_number
    unknown = id_of(event_by(0, ID, b"of another life"))
    key = key_of(0)
    replayed = make_record(ID, TOPIC, key.address, key.sign, number - 1, [unknown])
    bench.dht.keep(*replayed)
    bench.host.advance(10 * CONFIG.beat_ns)
    assert state.synced
    bench.command(Publish(ID, b"1"), "t")
    assert bench.told(EventAccepted)[-1].event.parent == bench.told(EventAccepted)[0].id


def test_a_reader_with_a_later_checkpoint_is_told_of_the_other_branch_as_a_gap() -> None:
    bench = TopicBench(2)
    bench.dht.keep(ID, encode_descriptor(TOPIC))
    bench.meet(0)
    chain = chain_by(0, ID, 5)
    bench.command(Subscribe(ID, id_of(chain[4])), "s")
    bench.says(0, JoinTopic(ID, STAMP))
    bench.finish()
    for event in chain:
        bench.says(0, PublishEvent(event, STAMP))
        bench.finish()
    other = event_by(0, ID, b"other", id_of(chain[2]), created_ms=START_MS + 50)
    then = event_by(0, ID, b"then", id_of(other), created_ms=START_MS + 51)
    for event in (other, then):
        bench.says(0, PublishEvent(event, STAMP))
        bench.finish()
    told = [(one.event.payload, one.gap_before) for one in bench.told(EventArrived)]
    assert told == [(b"other", True), (b"then", False)]


@pytest.mark.parametrize("seed", range(20))
def test_no_restore_forks_a_chain_or_loses_an_event(seed: int) -> None:
    """Backups, restores, crashes and publishes in any order; two readers hold everything."""
    print(f"seed {seed}")
    rng = Random(seed)
    world = world_of(3)
    for reader in (1, 2):
        world.command(reader, Subscribe(ID, BEGINNING), "all")
    world.run(5)
    copies: list[Values] = [dict(disk_of(world, 0).values)]
    count = 0
    for _ in range(12):
        action = rng.choice(["publish", "publish", "back up", "restore", "crash", "wait"])
        if action == "publish":
            for _ in range(rng.randrange(1, 4)):
                world.command(0, Publish(ID, b"%d" % count), count)
                count += 1
                world.run(rng.choice([0.01, 1, 3]))
        elif action == "back up":
            copies.append(dict(disk_of(world, 0).values))
        elif action == "restore":
            world.run(10)  # what was accepted has left the node
            restore(world, 0, rng.choice(copies), marked=True)
        elif action == "crash":
            world.run(1)
            world.nodes[0].crash()
            world.run(rng.choice([0.1, 5]))
            world.nodes[0].start()
        world.run(rng.choice([0, 1, 40]))
    world.run(120)
    events = accepted(world)
    parents = [one.event.parent for one in events]
    assert len(set(parents)) == len(parents), "two events follow one"
    assert parents[1:] == [one.id for one in events[:-1]]
    for reader in (1, 2):
        told = [one.id for one in world.of_kind(reader, EventArrived)]
        assert told == [one.id for one in events]
        assert not any(one.gap_before for one in world.of_kind(reader, EventArrived))
    assert not world.of_kind(0, PublishRefused)


def test_an_author_that_lost_its_disk_forks_nothing_while_its_clock_is_behind() -> None:
    """Its topic seems to be of the future, and so as if nobody had published there yet."""
    world = world_of(2)
    world.command(1, Subscribe(ID, BEGINNING), "all")
    ids = publish(world, 5)
    world.run(10)
    world.nodes[0].crash(lose_disk=True)
    world.nodes[0].step_wall(-30 * 86_400 * S_NS)
    world.run(1)
    world.nodes[0].start()
    world.run(1)
    world.command(0, AddTopic(TOPIC))
    world.command(0, Publish(ID, b"5"), 5)
    world.run(60)
    assert accepted(world)[-1].event.parent == ids[-1]
