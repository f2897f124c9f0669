"""The log: whatever order events come in, they are ready after what they follow."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import MS_NS
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptors import EventDescriptor, EventMetadata
from shoal.protocols.topics.event_log import ENTRY_BYTES, Entry, TopicLog
from tests.support.topics import ONE, TOPIC_CID, TWO

NOW_MS = 10_000_000


def entry_of(
    name: str,
    parent: Cid | None = None,
    created_ms: int = NOW_MS,
    *,
    asked: bool = False,
    core: str | None = None,
    arrived_ms: int = NOW_MS,
) -> Entry:
    """An event whose CID is made from its name."""
    metadata = EventMetadata(created_ms)
    event = EventDescriptor(TOPIC_CID, ONE, name.encode(), metadata, TWO, parent)
    core_id = cid_of(f"core {core or name}".encode())
    return Entry(id_of(name), event, core_id, arrived_ms * MS_NS, asked=asked)


def id_of(name: str) -> Cid:
    return cid_of(name.encode())


def chain(*names: str, created_ms: int = NOW_MS) -> list[Entry]:
    """Events, each after the one before."""
    parents: list[Cid | None] = [None, *map(id_of, names[:-1])]
    return [
        entry_of(name, parent, created_ms + number)
        for number, (name, parent) in enumerate(zip(names, parents, strict=True))
    ]


def names_of(entries: list[Entry]) -> list[str]:
    return [entry.event.payload.decode() for entry in entries]


@st.composite
def forests(draw: st.DrawFn, size_max: int = 14) -> list[Entry]:
    """Events that follow one before them, or none, or one that never comes."""
    made: list[Entry] = []
    for number in range(draw(st.integers(1, size_max))):
        choices: list[Cid | None] = [None, id_of("lost 0"), id_of("lost 1")]
        parent = draw(st.sampled_from([*choices, *[one.id for one in made]]))
        created_ms = NOW_MS + draw(st.integers(-5, 5))
        made.append(entry_of(f"{number}", parent, created_ms, core=f"{draw(st.integers(0, 20))}"))
    return made


def heads_by_hand(log: TopicLog) -> set[Cid]:
    followed = {one.event.parent for one in log.events.values()}
    return {id for id in log.events if id not in followed}


def follows_links(order: list[Entry], floor_ms: int = 0) -> bool:
    """Whether each event comes after the one that it follows, if that one is there at all; the
    past, which nobody is told, need not."""
    place = {one.id: at for at, one in enumerate(order)}
    return all(
        place.get(one.event.parent or Cid(b""), -1) < at
        for at, one in enumerate(order)
        if not (one.asked and one.created_ms < floor_ms)
    )


@given(st.data())
def test_any_order_of_arrival_respects_links(data: st.DataObject) -> None:
    events = data.draw(forests())
    log = TopicLog()
    ready: list[Entry] = []
    for entry in data.draw(st.permutations(events)):
        ready += log.add(entry)
        log.check_invariants()
        assert set(log.heads) == heads_by_hand(log)
    assert follows_links(ready)
    assert list(log.order) == ready
    lost = {id_of("lost 0"), id_of("lost 1")}
    roots = {one.id: one.event.parent for one in events}

    def leads_to_lost(id: Cid | None) -> bool:
        return id in lost or (id is not None and leads_to_lost(roots[id]))

    assert {one.id for one in ready} == {one.id for one in events if not leads_to_lost(one.id)}
    assert set(log.absent) == {one.event.parent for one in events} & lost
    for id in sorted(log.absent):
        ready += log.give_up(id)
        log.check_invariants()
    assert {one.id for one in ready} == set(log.events)
    assert follows_links(ready)
    assert {one.id for one in ready if one.gap_before} == {
        one.id for one in events if one.event.parent in lost
    }


@given(st.data())
def test_whatever_is_done_to_a_log_its_books_are_right(data: st.DataObject) -> None:
    events = data.draw(forests())
    log = TopicLog(data.draw(st.integers(NOW_MS - 6, NOW_MS + 6)))
    highest_ms = log.floor_ms
    waiting = list(data.draw(st.permutations(events)))
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from("aaaaffgblr")):
            case "a" if waiting:
                entry = waiting.pop()
                entry.asked = data.draw(st.booleans())
                if not log.knows(entry.id):
                    log.add(entry)
            case "f":
                before = len(log)
                gone = log.forget_oldest()
                assert len(log) == before - (gone is not None)
                assert gone is None or log.knows(gone.id)
            case "g" if log.absent:
                log.give_up(data.draw(st.sampled_from(sorted(log.absent))))
            case "b":
                log.begin_after(data.draw(st.sampled_from(events)).id)
            case "l":
                log.lower_floor(data.draw(st.integers(0, log.floor_ms)))
            case "r":
                floor_ms = data.draw(st.integers(0, NOW_MS + 9))
                log.raise_floor(floor_ms)
                assert log.floor_ms >= floor_ms
        log.check_invariants()
        highest_ms = max(highest_ms, log.floor_ms)
        assert follows_links(list(log.order), highest_ms)
        assert set(log.heads) <= heads_by_hand(log)


def test_events_that_become_ready_at_once_come_by_their_names() -> None:
    first = entry_of("first")
    several = [entry_of(f"{n}", first.id) for n in range(8)]
    log = TopicLog()
    for entry in several:
        assert log.add(entry) == []
    assert list(log.absent) == [first.id]
    assert log.add(first) == [first, *sorted(several, key=lambda one: one.id)]
    assert set(log.heads) == {one.id for one in several}


def test_the_last_event_is_what_a_new_one_follows() -> None:
    log = TopicLog(NOW_MS)
    a, b = chain("a", "b")
    log.add(a)
    log.add(b)
    assert log.last == b.id
    old = entry_of("old", created_ms=NOW_MS - 1, asked=True)
    assert log.add(old) == [old]
    assert log.last == b.id, "the past is not news"


def test_what_is_below_the_floor_needs_no_parent() -> None:
    log = TopicLog(NOW_MS)
    new = entry_of("new", id_of("old"), NOW_MS)
    assert log.add(new) == []
    # Nobody asked for `old` because of another: it is, because an event that is held follows it.
    old = entry_of("old", id_of("older"), NOW_MS - 1)
    assert log.add(old) == [old, new]
    assert log.absent == {}


def test_what_comes_unasked_is_news_whatever_the_clock_of_its_author_says() -> None:
    log = TopicLog(NOW_MS)
    late = entry_of("late", id_of("unknown"), NOW_MS - 1)
    assert log.add(late) == []
    assert list(log.absent) == [id_of("unknown")]


def test_one_core_is_one_event() -> None:
    log = TopicLog()
    one, other = entry_of("one", core="same"), entry_of("other", core="same")
    log.add(one)
    log.add(other)
    assert log.of_core(one.core) == one.id
    assert (log.is_first(one), log.is_first(other)) == (True, False)
    assert log.forget_oldest() == one
    assert not log.is_first(other), "it was told as the first, which is gone"


def test_a_forgotten_event_is_known_and_its_followers_are_ready() -> None:
    log = TopicLog()
    a, b, c = chain("a", "b", "c")
    log.add(a)
    log.add(b)
    assert log.bytes == 2 * (ENTRY_BYTES + 1)
    assert log.forget_oldest() == a
    assert log.forget_oldest() == b
    assert log.forget_oldest() is None
    assert (log.bytes, len(log), log.order_from) == (0, 0, 2)
    assert log.knows(a.id)
    assert log.knows(b.id)
    assert log.heads == {}
    assert log.add(c) == [c]
    log.check_invariants()


def test_retention_raises_the_floor_no_further_than_its_own_clock() -> None:
    log = TopicLog()
    log.add(entry_of("of the future", created_ms=10**12, arrived_ms=NOW_MS))
    log.forget_oldest()
    assert log.floor_ms == NOW_MS
    log.add(entry_of("of the past", created_ms=5))
    log.forget_oldest()
    assert log.floor_ms == NOW_MS


def test_going_back_begins_anew() -> None:
    log = TopicLog(NOW_MS)
    a, b, c = chain("a", "b", "c", created_ms=NOW_MS - 2)
    b.asked = True
    assert log.add(c) == []
    assert log.add(b) == [b, c]
    log.lower_floor(0)
    assert list(log.order) == []
    assert list(log.absent) == [a.id]
    assert names_of(log.add(a)) == ["a", "b", "c"]
    log.check_invariants()


def test_beginning_after_an_event_does_not_wait_for_it() -> None:
    log = TopicLog()
    a, b, c = chain("a", "b", "c")
    assert log.add(c) == []
    assert log.begin_after(b.id) == [c]
    assert not c.gap_before
    assert log.begin_after(c.id) == [], "it is here: nothing changes"
    log.check_invariants()
    assert a.id not in log.absent


def test_ancestors_are_those_that_are_held() -> None:
    log = TopicLog()
    entries = chain("a", "b", "c", "d")
    for entry in entries[1:]:
        log.add(entry)
    fork = entry_of("fork", entries[1].id)
    log.add(fork)
    assert log.ancestors(fork.id) == {fork.id, entries[1].id, entries[0].id}
    assert all(pair[0].id in log.ancestors(pair[1].id) for pair in pairwise(entries))
