"""The past of a topic: from which ends, in which order, and what is left out."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.base.errors import NotFound, TopicUnavailable, UsageError
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptors import ANYONE, EventDescriptor, Signatures, TopicDescriptor
from shoal.node.topics.event import Event, Held, read_back
from shoal.protocols.topics.event_log import Entry, TopicLog
from tests.support.topic_bench import START_MS, chain_by, event_by, id_of, topic_by

TOPIC = topic_by(0, publishers=ANYONE)
ID = id_of(TOPIC)


class Shelf:
    """A node's topics: what it holds, and what the DHT has."""

    def __init__(self, *held: EventDescriptor, is_current: bool = False) -> None:
        self.log = TopicLog()
        for event in held:
            self.log.add(Entry(id_of(event), event, id_of(event), 0))
        self.dht: dict[Cid, EventDescriptor] = {}
        self.records: list[Cid] = []
        self.is_current = is_current
        self.looked = 0

    def put(self, *events: EventDescriptor) -> Shelf:
        """Into the DHT; records name the last one."""
        self.dht.update({id_of(event): event for event in events})
        self.records.append(id_of(events[-1]))
        return self

    def held(self, topic: Cid) -> Held:
        events = self.log.events
        heads = [Event(head, events[head].event) for head in self.log.heads]
        return Held(set(events), heads, self.log.followed(), self.is_current)

    async def recorded(self, id: Cid, topic: TopicDescriptor) -> list[Cid]:
        self.looked += 1
        return self.records

    async def fetch(self, event: Cid, topic: Cid | None = None) -> Event:
        here = self.log.events.get(event)
        found = self.dht.get(event) if here is None else here.event
        if found is None:
            raise NotFound("nobody has it")
        return Event(event, found)


def read(
    shelf: Shelf, end: Cid | None = None, limit: int | None = None, topic: TopicDescriptor = TOPIC
) -> list[bytes]:
    async def all_of_it() -> list[bytes]:
        return [one.payload async for one in read_back(shelf, id_of(topic), topic, end, limit)]

    return asyncio.run(all_of_it())


def forged(payload: bytes, parent: Cid | None = None) -> EventDescriptor:
    """As if node 1 had signed it."""
    event = event_by(1, ID, payload, parent, created_ms=START_MS + 99)
    return replace(
        event, metadata=replace(event.metadata, signatures=Signatures(bytes(64), bytes(64)))
    )


# Ends


def test_one_in_the_tree_knows_the_ends_itself() -> None:
    chain = chain_by(0, ID, 5)
    shelf = Shelf(*chain[1:3], is_current=True).put(*chain)
    assert read(shelf) == [b"2", b"1", b"0"], "what it does not hold is fetched"
    assert read(shelf, limit=2) == [b"2", b"1"]
    assert shelf.looked == 0
    assert read(Shelf(is_current=True).put(*chain), limit=1) == [b"4"], "it saw nothing yet"


def test_one_that_was_away_reads_what_publishers_say_is_the_newest() -> None:
    chain = chain_by(0, ID, 6)
    shelf = Shelf(*chain[:3]).put(*chain)
    assert read(shelf, limit=3) == [b"5", b"4", b"3"]
    assert read(shelf) == [b"5", b"4", b"3", b"2", b"1", b"0"], "and what it holds once"
    shelf.records = [id_of(chain[1]), cid_of(b"gone")]
    assert read(shelf) == [b"2", b"1", b"0"], "a record that is older than what is here"


def test_what_nobody_has_ends_the_reading() -> None:
    lost, left = chain_by(0, ID, 2)
    shelf = Shelf().put(left)
    assert read(shelf, limit=1) == [b"1"]
    with pytest.raises(TopicUnavailable, match=r"which zdpu.* follows, is kept by nobody"):
        read(shelf)
    shelf.put(lost)
    assert read(shelf) == [b"1", b"0"]


# What is left out


def test_events_that_records_name_are_checked() -> None:
    """Where anyone publishes, anybody signs a record."""
    chain = chain_by(0, ID, 2)
    elsewhere = event_by(0, cid_of(b"another topic"), b"elsewhere")
    shelf = Shelf().put(*chain).put(forged(b"I resign")).put(elsewhere)
    assert read(shelf) == [b"1", b"0"]


def test_events_that_others_follow_are_checked() -> None:
    first = event_by(0, ID, b"first")
    fake = forged(b"never said", id_of(first))
    last = event_by(2, ID, b"last", id_of(fake), created_ms=START_MS + 100)
    beside = event_by(0, ID, b"beside", id_of(first), created_ms=START_MS + 1)
    shelf = Shelf().put(first, fake, last).put(beside)
    assert read(shelf) == [b"last", b"beside", b"first"]


def test_whoever_may_not_publish_is_left_out() -> None:
    named = topic_by(0)
    events = chain_by(0, id_of(named), 2)
    stranger = event_by(3, id_of(named), b"let me in", id_of(events[1]))
    assert read(Shelf().put(*events).put(stranger), topic=named) == [b"1", b"0"]


def test_the_event_that_was_asked_for_is_what_its_name_says() -> None:
    first, second = chain_by(0, ID, 2)
    fake = forged(b"unsigned", id_of(second))
    faked_before = forged(b"before", id_of(first))
    after = event_by(0, ID, b"after", id_of(faked_before))
    shelf = Shelf().put(first, second, fake, faked_before, after)
    assert read(shelf, id_of(fake)) == [b"unsigned", b"1", b"0"]
    assert read(shelf, id_of(after)) == [b"after"], "what it follows was not asked for"
    other = event_by(0, cid_of(b"another topic"), b"elsewhere")
    with pytest.raises(UsageError, match=r"is of topic zdpu.*, not zdpu"):
        read(shelf.put(other), id_of(other))


# Order


def fork() -> list[EventDescriptor]:
    """A and B follow P, B2 follows B; the clock of who wrote the latter two is slow."""
    p = event_by(0, ID, b"P", created_ms=START_MS + 10)
    a = event_by(0, ID, b"A", id_of(p), created_ms=START_MS + 11)
    b = event_by(1, ID, b"B", id_of(p), created_ms=START_MS)
    b2 = event_by(1, ID, b"B2", id_of(b), created_ms=START_MS + 1)
    return [p, a, b, b2]


def test_an_event_comes_after_all_that_follow_it_whatever_their_clocks_say() -> None:
    assert read(Shelf(*fork(), is_current=True)) == [b"A", b"B2", b"B", b"P"]
    p, a, b, b2 = fork()
    known = Shelf().put(p, a).put(b)
    assert read(known) == [b"A", b"B", b"P"], "records name both of its followers"
    behind = Shelf(p, a).put(b, b2)
    assert read(behind) == [b"A", b"P", b"B2", b"B"], "nobody knew that B follows P"


def test_an_end_that_turns_out_to_be_followed_waits() -> None:
    """It was the last event when this node left, by an author whose clock is fast."""
    first, second = chain_by(0, ID, 2)
    old = event_by(1, ID, b"old end", id_of(second), created_ms=START_MS + 50)
    new = event_by(0, ID, b"new end", id_of(old), created_ms=START_MS + 3)
    assert read(Shelf(first, second, old).put(new)) == [b"new end", b"old end", b"1", b"0"]


def test_of_the_same_moment_the_higher_name_comes_first() -> None:
    events = [event_by(0, ID, b"%d" % number) for number in range(5)]
    backwards = sorted(events, key=id_of, reverse=True)
    assert read(Shelf(*events, is_current=True)) == [event.payload for event in backwards]


@given(st.integers(0, 2**32))
def test_any_forest_is_told_once_and_children_first(seed: int) -> None:
    rng = Random(seed)
    made: list[EventDescriptor] = []
    for number in range(12):
        parent = rng.choice([None, *map(id_of, made)])
        created_ms = START_MS + rng.randrange(10)
        made.append(event_by(0, ID, b"%d" % number, parent, created_ms=created_ms))
    shelf = Shelf(*rng.sample(made, len(made)), is_current=True)
    got = read(shelf)
    assert sorted(got) == sorted(event.payload for event in made)
    place = {id_of(event): got.index(event.payload) for event in made}
    for event in made:
        assert event.parent is None or place[id_of(event)] < place[event.parent]
