"""Subscriptions: each reads the log of its topic at its own pace.

A subscription is a place in the order of ready events, and credit. One that has no credit left
waits; the log keeps what it has not read, as long as retention lets it.

One that begins after an event waits until that is ready: only then it is known what led to it, and
so was told before. An application may have seen more than its node had on disk when it died.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice

import msgspec

from shoal.base.units import MS_NS
from shoal.identity.topics.cid import Cid
from shoal.kernel.effects import Effect, Notify
from shoal.kernel.records import EventDelivered
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.topics.commands import EventArrived, StartMissing
from shoal.protocols.topics.event_log import Entry, TopicLog
from shoal.protocols.topics.heads import floor_of


class Cursor(msgspec.Struct, eq=False):
    """One subscription."""

    token: Hashable
    credit: int | None
    at: int
    """Counted from the first event that was ever ready here."""
    floor_ms: int = 0
    """Of the past, only what is not older than this."""
    skip: set[Cid] = msgspec.field(default_factory=set)
    """Told before, or before the start."""
    missed: bool = False
    """Retention took events that were not told yet."""
    after: Cid | None = None
    """The event that it begins after, until it was told one."""
    waits: bool = False
    """That event is not ready yet."""
    last: Cid | None = None
    """What it was told last, or begins after."""
    since_ns: int | None = None
    """When it began, in monotonic time, if it is about what comes."""


class Cursors:
    """The subscriptions of one topic."""

    def __init__(
        self, topic: Cid, log: TopicLog, wall: WallClock | None = None, *, is_chain: bool = False
    ) -> None:
        """In a chain each event follows the one before."""
        self._wall = WallClock() if wall is None else wall
        self._topic = topic
        self._is_chain = is_chain
        self._log = log
        self._cursors: dict[Hashable, Cursor] = {}

    def __len__(self) -> int:
        return len(self._cursors)

    def add(self, cursor: Cursor) -> None:
        """One more subscription."""
        self._cursors[cursor.token] = cursor

    def remove(self, token: Hashable) -> None:
        """One less."""
        self._cursors.pop(token, None)

    def waiting(self, start: Cid) -> list[Cursor]:
        """Those that begin after this event, and wait for it."""
        return [one for one in self._cursors.values() if one.waits and one.after == start]

    def starts(self) -> list[Cid]:
        """The events that subscriptions begin after, and wait for."""
        return [one.after for one in self._cursors.values() if one.waits and one.after is not None]

    def waits_for(self, token: Hashable) -> Cid | None:
        """The event that a subscription begins after, if it waits for it."""
        cursor = self._cursors.get(token)
        return cursor.after if cursor is not None and cursor.waits else None

    def missing(self, start: Cid, of_topic: Cid | None = None) -> list[Effect]:
        """Nobody has an event, or it is of another topic; tell those who wait for it."""
        return [Notify(StartMissing(one.token, start, of_topic)) for one in self.waiting(start)]

    def grant(self, token: Hashable, events: int, now_ns: int) -> list[Effect]:
        """A subscription may be told more."""
        cursor = self._cursors.get(token)
        if cursor is None or cursor.credit is None:
            return []
        cursor.credit += events
        return self._tell(cursor, now_ns)

    def before_rewind(self) -> None:
        """The order will begin anew: nobody is told anything twice."""
        log = self._log
        for cursor in self._cursors.values():
            if cursor.waits:
                continue  # it was told nothing yet
            ahead = {
                entry.id for entry in islice(log.order, max(0, cursor.at - log.order_from), None)
            }
            cursor.skip.update([id for id in log.known_ids() if id not in ahead])
            cursor.at = log.order_from

    def arrived(self, entry: Entry) -> None:
        """What led to an event that is not told is not told, either."""
        parent = entry.event.parent
        for cursor in self._cursors.values():
            if parent is not None and entry.id in cursor.skip and parent not in cursor.skip:
                cursor.skip |= self._log.ancestors(parent)

    def tell(self, now_ns: int) -> list[Effect]:
        """Tell everybody what is ready and granted."""
        effects: list[Effect] = []
        for cursor in self._cursors.values():
            effects += self._tell(cursor, now_ns)
        return effects

    def _tell(self, cursor: Cursor, now_ns: int) -> list[Effect]:
        log = self._log
        effects: list[Effect] = []
        if cursor.waits and not self._begin(cursor):
            return []
        if cursor.at < log.order_from:
            cursor.at, cursor.missed = log.order_from, True
        end = log.order_from + len(log.order)
        while cursor.at < end and cursor.credit != 0:
            entry = log.order[cursor.at - log.order_from]
            cursor.at += 1
            if entry.id in cursor.skip:
                cursor.skip.discard(entry.id)
                continue
            past = entry.asked and log.is_before(entry, self._floor_ms(cursor))
            if past or not log.is_first(entry):
                continue
            gap_before = entry.gap_before or cursor.missed or self._skips(cursor, entry)
            gap_before = gap_before or self._is_beside(cursor, entry)
            cursor.missed, cursor.after, cursor.last = False, None, entry.id
            if cursor.credit is not None:
                cursor.credit -= 1
            age_us = (self._wall.read(now_ns) - entry.created_ms * 1_000_000) // 1_000
            effects += (
                Notify(EventArrived(cursor.token, entry.id, entry.event, now_ns, gap_before)),
                EventDelivered(self._topic, entry.id, age_us),
            )
        return effects

    def floors(self) -> list[int]:
        """From when on those are interested that are about what comes."""
        cursors = self._cursors.values()
        return [self._floor_ms(cursor) for cursor in cursors if cursor.since_ns is not None]

    def _floor_ms(self, cursor: Cursor) -> int:
        """What it is not told if it was asked for. If the clock was set since it began, the earlier
        one counts: nothing may be left out over a wrong reading."""
        if cursor.since_ns is None:
            return cursor.floor_ms
        return min(cursor.floor_ms, floor_of(self._wall.read(cursor.since_ns) // MS_NS))

    def _begin(self, cursor: Cursor) -> bool:
        """Begin after an event, if it is ready."""
        assert cursor.after is not None  # what it waits for
        entry = self._log.events.get(cursor.after)
        if entry is None or not entry.ready:
            return False
        cursor.at, cursor.waits, cursor.last = self._log.order_from, False, entry.id
        cursor.skip = self._log.ancestors(entry.id)
        return True

    def _skips(self, cursor: Cursor, first: Entry) -> bool:
        """Whether retention took what lies between the start and the first event told."""
        parent = first.event.parent
        held = parent is None or parent == cursor.after or parent in self._log.events
        return cursor.after is not None and not held

    def _is_beside(self, cursor: Cursor, entry: Entry) -> bool:
        """Whether a chain has forked, and this event is on another branch than the last one told:
        its publisher went on from an older copy of its disk. What followed on the first branch is
        not what this one follows."""
        last = cursor.last
        if not self._is_chain or last is None or entry.event.parent == last:
            return False
        leads_to = self._log.leads_to
        return not (leads_to((entry.id,), last) or leads_to((last,), entry.id))
