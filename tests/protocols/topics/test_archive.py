"""The archive: whatever was on disk when a node died is read when it comes back."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.identity.topics.cid import Cid, cid_of
from shoal.kernel.effects import Effect, Load, Store
from shoal.kernel.inputs import Loaded
from shoal.protocols.topics.archive import (
    ARCHIVE,
    EMPTY_MAX,
    READS_MAX,
    REMOVED_MIN,
    UNSAVED_MAX,
    Archive,
    StoredTopic,
)

Disk = dict[bytes, bytes]
TOPIC = cid_of(b"topic")


class Reader:
    """An archive, and what it read."""

    def __init__(self, disk: Disk | None = None, *, has_disk: bool = True) -> None:
        self.topics: dict[Cid, StoredTopic] = {}
        self.events: dict[int, bytes] = {}
        self.done = 0
        self.most = 0
        """Reads that were under way at once."""
        self.loads = 0
        self.archive = Archive(self._topic, self._event, self._all, has_disk)
        waiting = self.archive.start(0)
        while waiting:
            self.most = max(self.most, len(waiting))
            load = waiting.pop(0)
            assert isinstance(load, Load)
            assert not self.done, "all was read"
            self.loads += 1
            waiting += self.archive.loaded(Loaded(load.token, (disk or {}).get(load.key)), 0)

    def _topic(self, id: Cid, topic: StoredTopic, now_ns: int) -> list[Effect]:
        assert not self.events, "topics come first"
        self.topics[id] = topic
        return []

    def _event(self, number: int, block: bytes, now_ns: int) -> list[Effect]:
        self.events[number] = block
        return []

    def _all(self, now_ns: int) -> list[Effect]:
        self.done += 1
        return []


def write(disk: Disk, effects: Sequence[Effect]) -> None:
    for effect in effects:
        assert isinstance(effect, Store)
        if effect.value is None:
            disk.pop(effect.key, None)
        else:
            disk[effect.key] = effect.value


def topics_of(archive: Archive) -> list[Effect]:
    stored = StoredTopic(b"block", 7, False, [])
    return [*archive.save_topic(TOPIC, stored), *archive.save_topics([TOPIC])]


def test_a_new_disk_is_empty() -> None:
    reader = Reader()
    assert (reader.topics, reader.events, reader.done) == ({}, {}, 1)


def test_without_a_disk_nothing_is_read_or_written() -> None:
    reader = Reader(has_disk=False)
    archive = reader.archive
    assert reader.done == 1
    assert [archive.add(b"x"), archive.add(b"y")] == [(0, []), (1, [])]
    assert [archive.remove(0), archive.save_numbers(), topics_of(archive)] == [[], [], []]


def test_topics_come_back() -> None:
    archive = Reader().archive
    other = cid_of(b"other")
    disk: Disk = {}
    stored = StoredTopic(b"block", 7, True, [b"cut off here"], False)
    write(disk, archive.save_topic(TOPIC, stored))
    write(disk, archive.save_topics([TOPIC, other]))
    reader = Reader(disk)
    # The other one was named before it was written.
    assert reader.topics == {TOPIC: stored}
    assert reader.done == 1


def test_a_topic_of_an_older_folder_is_read() -> None:
    archive = Reader().archive
    disk: Disk = {}
    write(disk, topics_of(archive))
    key = next(key for key, value in disk.items() if b"block" in value)
    disk[key] = msgspec.msgpack.encode([b"block", 7, False, []])
    assert Reader(disk).topics == {TOPIC: StoredTopic(b"block", 7, False, [], synced=True)}


def test_numbers_go_on_where_they_ended() -> None:
    archive = Reader().archive
    disk: Disk = {}
    write(disk, topics_of(archive))
    for expected in range(3):
        number, effects = archive.add(b"%d" % expected)
        assert number == expected
        assert [one.token for one in effects if isinstance(one, Store)] == [ARCHIVE]
        write(disk, effects)
    reader = Reader(disk)
    assert reader.events == {0: b"0", 1: b"1", 2: b"2"}
    assert reader.archive.add(b"3")[0] == 3


def test_the_range_of_numbers_is_saved_when_it_changed() -> None:
    archive = Reader().archive
    assert archive.save_numbers() == []
    archive.add(b"0")
    archive.add(b"1")
    assert len(archive.save_numbers()) == 1
    assert archive.save_numbers() == []
    archive.remove(0)
    assert len(archive.save_numbers()) == 1


def test_what_was_removed_stays_away_and_is_not_looked_for() -> None:
    archive = Reader().archive
    disk: Disk = {}
    write(disk, topics_of(archive))
    for number in range(5):
        write(disk, archive.add(b"%d" % number)[1])
    for number in range(4):
        write(disk, archive.remove(number))
    write(disk, archive.save_numbers())
    reader = Reader(disk)
    assert reader.events == {4: b"4"}
    assert reader.most <= READS_MAX
    write(disk, [*reader.archive.remove(4), *reader.archive.save_numbers()])
    assert Reader(disk).archive.add(b"")[0] == 5, "a number is not used twice"


def test_the_range_lags_behind_no_further_than_is_looked() -> None:
    assert UNSAVED_MAX < EMPTY_MAX
    archive = Reader().archive
    disk: Disk = {}
    write(disk, topics_of(archive))
    for number in range(3 * UNSAVED_MAX):
        write(disk, archive.add(b"%d" % number)[1])
        if number:
            write(disk, archive.remove(number - 1))
    assert Reader(disk).events == {3 * UNSAVED_MAX - 1: b"%d" % (3 * UNSAVED_MAX - 1)}


def aged(count: int, *, saves: bool = True) -> tuple[Archive, Disk]:
    """One event stayed, and one of each hundred; all others went."""
    archive = Reader().archive
    disk: Disk = {}
    write(disk, topics_of(archive))
    for number in range(count):
        write(disk, archive.add(b"%d" % number)[1])
        if number > 50 and (number - 50) % 100:
            write(disk, archive.remove(number - 50))
        if saves and not number % 1_000:
            write(disk, archive.save_numbers())
    return archive, disk


@pytest.mark.parametrize("count", [20_000, 60_000])
def test_the_start_takes_as_long_as_there_are_events_not_as_there_were(count: int) -> None:
    _, disk = aged(count)
    reader = Reader(disk)
    assert len(reader.events) == count // 100 + 50
    assert reader.loads < 2 * (REMOVED_MIN + EMPTY_MAX)


def test_a_folder_without_gaps_is_read_slowly_once() -> None:
    archive, disk = aged(20_000, saves=False)
    write(disk, [*archive.save_numbers()])
    del disk[b"g"]
    before = Reader(disk)
    assert before.loads > 20_000
    write(disk, before.archive.save_numbers())
    after = Reader(disk)
    assert after.loads < 2 * EMPTY_MAX
    assert after.events == before.events


def test_gaps_without_their_range_hide_nothing_and_no_number_is_used_twice() -> None:
    archive, disk = aged(20_000)
    for number in range(1, 20_000):
        write(disk, archive.remove(number))
    write(disk, archive.save_numbers())
    number, effects = archive.add(b"new")
    write(disk, effects)
    del disk[b"n"]
    reader = Reader(disk)
    assert reader.events == {0: b"0", number: b"new"}
    assert reader.archive.add(b"")[0] == number + 1


def test_a_range_that_could_not_be_saved_hides_nothing() -> None:
    archive = Reader().archive
    disk: Disk = {}
    write(disk, topics_of(archive))
    for number in range(3 * EMPTY_MAX):
        effects = archive.add(b"%d" % number)[1]
        write(disk, [one for one in effects if isinstance(one, Store) and one.key[:1] == b"e"])
    assert len(Reader(disk).events) == 3 * EMPTY_MAX


@mock.patch.multiple("shoal.protocols.topics.archive", REMOVED_MIN=2, GAP_MIN=1)
@settings(max_examples=60)
@given(st.data())
def test_a_crash_at_any_point_loses_nothing_that_was_written(data: st.DataObject) -> None:
    disk: Disk = {}
    archive = Reader().archive
    effects: list[Effect] = topics_of(archive)
    held: dict[int, bytes] = {}
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(0, 12))):
            match data.draw(st.sampled_from("amrs")):
                case "a" | "m" as kind:
                    for _ in range(1 if kind == "a" else data.draw(st.integers(2, 600))):
                        number, added = archive.add(b"x")
                        assert number not in held
                        held[number] = b"x"
                        effects += added
                case "r" if held:
                    first = data.draw(st.sampled_from(sorted(held)))
                    many = data.draw(st.integers(1, 20))
                    for number in [one for one in held if first <= one < first + many]:
                        del held[number]
                        effects += archive.remove(number)
                case "s":
                    effects += archive.save_numbers()
        # The disk writes in order, and dies in between.
        done = data.draw(st.integers(0, len(effects)))
        write(disk, effects[:done])
        reader = Reader(disk)
        assert reader.done == 1
        on_disk = {int.from_bytes(key[1:]): disk[key] for key in disk if key[:1] == b"e"}
        if b"s" in disk:
            assert reader.events == on_disk
        archive, held, effects = reader.archive, dict(reader.events), []
