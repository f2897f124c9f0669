"""Subscriptions: each is told everything once, in order, at its own pace."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import MS_NS
from shoal.identity.topics.cid import Cid
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.records import EventDelivered
from shoal.protocols.topics.commands import EventArrived
from shoal.protocols.topics.event_log import Entry, TopicLog
from shoal.protocols.topics.subscriptions import Cursor, Cursors
from tests.protocols.topics.test_log import NOW_MS, chain, entry_of, forests, id_of
from tests.support.topics import TOPIC_CID

NOW_NS = NOW_MS * MS_NS


def names(effects: list[Effect]) -> list[str]:
    """The events told, in order."""
    return [one.event.payload.decode() for one in arrivals(effects)]


def arrivals(effects: list[Effect]) -> list[EventArrived]:
    return [e.event for e in effects if isinstance(e, Notify) and isinstance(e.event, EventArrived)]


def log_of(*entries: Entry) -> tuple[TopicLog, Cursors]:
    log = TopicLog()
    for entry in entries:
        log.add(entry)
    return log, Cursors(TOPIC_CID, log)


def test_an_event_is_told_and_recorded() -> None:
    (entry,) = chain("a")
    _, cursors = log_of(entry)
    cursors.add(Cursor("s", None, 0))
    later_ns = NOW_NS + 5 * MS_NS
    assert cursors.tell(later_ns) == [
        Notify(EventArrived("s", entry.id, entry.event, later_ns, False)),
        EventDelivered(TOPIC_CID, entry.id, 5_000),
    ]
    assert cursors.tell(later_ns) == []


def test_credit_is_used_up_and_granted() -> None:
    _, cursors = log_of(*chain("a", "b", "c", "d"))
    cursors.add(Cursor("s", 1, 0))
    assert names(cursors.tell(NOW_NS)) == ["a"]
    assert cursors.tell(NOW_NS) == []
    assert names(cursors.grant("s", 2, NOW_NS)) == ["b", "c"]
    assert cursors.grant("nobody", 2, NOW_NS) == []
    assert names(cursors.grant("s", 5, NOW_NS)) == ["d"]


def test_credit_for_one_without_limit_changes_nothing() -> None:
    _, cursors = log_of(*chain("a"))
    cursors.add(Cursor("s", None, 0))
    assert cursors.grant("s", 1, NOW_NS) == []
    assert names(cursors.tell(NOW_NS)) == ["a"]


def test_several_subscriptions_do_not_wait_for_each_other() -> None:
    _, cursors = log_of(*chain("a", "b"))
    cursors.add(Cursor("slow", 0, 0))
    cursors.add(Cursor("fast", None, 0))
    cursors.add(Cursor("late", None, 2))
    told = [(one.subscription, one.event.payload) for one in arrivals(cursors.tell(NOW_NS))]
    assert told == [("fast", b"a"), ("fast", b"b")]
    cursors.remove("slow")
    assert len(cursors) == 2
    assert cursors.grant("slow", 9, NOW_NS) == []


def test_what_retention_took_leaves_a_gap() -> None:
    log, cursors = log_of(*chain("a", "b", "c"))
    cursors.add(Cursor("s", 0, 0))
    log.forget_oldest()
    told: list[Any] = arrivals(cursors.grant("s", 9, NOW_NS))
    assert [(one.event.payload, one.gap_before) for one in told] == [(b"b", True), (b"c", False)]


def test_a_gap_in_the_links_is_told() -> None:
    log, cursors = log_of(entry_of("b", id_of("a")))
    cursors.add(Cursor("s", None, 0))
    assert cursors.tell(NOW_NS) == []
    log.give_up(id_of("a"))
    (told,) = arrivals(cursors.tell(NOW_NS))
    assert told.gap_before


def test_the_past_is_not_told_unless_it_is_news() -> None:
    old = entry_of("old", created_ms=NOW_MS - 1, asked=True)
    slow_clock = entry_of("slow clock", created_ms=NOW_MS - 1)
    _, cursors = log_of(old, slow_clock)
    cursors.add(Cursor("s", None, 0, floor_ms=NOW_MS))
    assert names(cursors.tell(NOW_NS)) == ["slow clock"]


def test_an_event_that_was_published_twice_is_told_once() -> None:
    _, cursors = log_of(entry_of("once", core="same"), entry_of("again", core="same"))
    cursors.add(Cursor("s", 5, 0))
    assert names(cursors.tell(NOW_NS)) == ["once"]


@given(st.data())
def test_everybody_is_told_all_that_is_ready_once_and_in_order(data: st.DataObject) -> None:
    log = TopicLog()
    cursors = Cursors(TOPIC_CID, log)
    credits = data.draw(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=3))
    for number, credit in enumerate(credits):
        cursors.add(Cursor(number, credit, 0))
    effects: list[Effect] = []
    for entry in data.draw(st.permutations(data.draw(forests()))):
        log.add(entry)
        effects += cursors.tell(NOW_NS)
        if data.draw(st.booleans()):
            effects += cursors.grant(0, data.draw(st.integers(1, 3)), NOW_NS)
        if data.draw(st.integers(0, 5)) == 0:
            # Somebody wants the past: the order begins anew, and nobody is told anything twice.
            cursors.before_rewind()
            log.lower_floor(0)
            effects += cursors.tell(NOW_NS)
    for number, _ in enumerate(credits):
        effects += cursors.grant(number, 100, NOW_NS)
    due = {entry.id for entry in log.order if log.is_first(entry)}
    parents = {entry.id: entry.event.parent for entry in log.order}
    for number, _ in enumerate(credits):
        told = [one.id for one in arrivals(effects) if one.subscription == number]
        assert len(told) == len(set(told))
        assert set(told) == due
        place = {id: at for at, id in enumerate(told)}
        assert all(place.get(parents[id] or Cid(b""), -1) < place[id] for id in told)
