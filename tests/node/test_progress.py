"""Where a reader of a stream goes on: what each message's offset says."""

from __future__ import annotations

from uuid import UUID

import pytest

from shoal.base.errors import UsageError
from shoal.base.ids import MessageId, NodeId, node_id
from shoal.base.offsets import Offset, PartitionOffset, format_offset, parse_offset
from shoal.node.streams.reader_offsets import (
    GIVEN_MAX,
    LATE_MS,
    STEPS_MIN,
    Place,
    Places,
    Progress,
    Step,
    format_places,
    parse_places,
)
from tests.support.streams import STREAM

LOG = UUID(int=7)
ALICE, BOB = node_id(b"a" * 20), node_id(b"b" * 20)
NOW_MS = 1_767_225_600_000


def step(
    at_ms: int,
    publisher: NodeId = ALICE,
    *,
    partition: int = 0,
    chain: str = "c",
    received_ms: int | None = None,
    seq: int | None = None,
) -> Step:
    id = MessageId(STREAM, partition, NOW_MS + at_ms, 0, publisher, chain)
    place = None if seq is None else PartitionOffset(LOG, seq)
    return Step(id, NOW_MS + (at_ms if received_ms is None else received_ms), place)


def place_after(progress: Progress, *steps: Step) -> Place:
    """Of partition 0, as it comes out of its text."""
    for made in steps:
        mark = progress.gave(made)
    return parse_places(mark.offset()).partitions[0]


def test_an_offset_names_every_chain_of_the_last_minute() -> None:
    late = 2 * LATE_MS
    place = place_after(Progress(), step(0), step(late - 9, BOB), step(late, chain="d"))
    assert place.begin == (NOW_MS + late - LATE_MS, 0)
    assert place.given == {(BOB, "c"): (NOW_MS + late - 9, 0), (ALICE, "d"): (NOW_MS + late, 0)}


def test_an_offset_does_not_go_back() -> None:
    place = place_after(Progress(), step(LATE_MS), step(5, BOB), step(4, BOB))
    assert place.begin == (NOW_MS, 0)
    assert place.given == {(ALICE, "c"): (NOW_MS + LATE_MS, 0), (BOB, "c"): (NOW_MS + 5, 0)}


def test_a_clock_that_is_ahead_does_not_cost_others_their_time() -> None:
    assert place_after(Progress(), step(LATE_MS, received_ms=0)).begin == (NOW_MS - LATE_MS, 0)


def test_what_was_not_asked_for_stays_so() -> None:
    progress = Progress({0: Place((NOW_MS, 0)), 1: Place((NOW_MS, 0))})
    mark = progress.gave(step(5))
    first, other = parse_places(mark.offset()).partitions.values()
    assert (first.begin, other) == ((NOW_MS, 0), Place((NOW_MS, 0)))


def test_the_offset_of_a_message_stays_what_it_was() -> None:
    progress = Progress()
    marks = [progress.gave(step(n, chain=f"c{n % 90}")) for n in range(4 * STEPS_MIN)]
    for number, mark in enumerate(marks):
        given = parse_places(mark.offset()).partitions[0].given
        assert len(given) == min(number + 1, 90)
        assert max(given.values()) == (NOW_MS + number, 0)


def test_with_too_many_chains_late_messages_have_less_time() -> None:
    steps = [step(n, chain=f"c{n}") for n in range(GIVEN_MAX + 5)]
    place = place_after(Progress(), *steps)
    assert place.begin == (NOW_MS + 4, 1)
    assert min(place.given.values()) == (NOW_MS + 5, 0)
    assert len(place.given) == GIVEN_MAX


def test_a_log_is_followed_until_something_comes_that_is_not_from_it() -> None:
    progress = Progress({0: Place(log=PartitionOffset(LOG, 4))})
    mark = progress.gave(step(1, seq=5))
    assert mark.offset() == format_offset(Offset({0: PartitionOffset(LOG, 5)}))
    place = place_after(progress, step(2, BOB), step(3, seq=6))
    assert place.log is None
    assert place.given == {(ALICE, "c"): (NOW_MS + 3, 0), (BOB, "c"): (NOW_MS + 2, 0)}


# Text


def test_text_says_logs_and_messages() -> None:
    by_message = Place((5, 1), {(ALICE, "c"): (7, 0)})
    by_log = Place(log=PartitionOffset(LOG, 9))
    places = Places({2: by_log, 0: by_message, 1: Place((5, 0))})
    text = format_places(places)
    assert parse_places(text) == places
    assert format_places(parse_places(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is no offset"),
        ('{"v":1,"p":{},"m":7}', "Expected `object`"),
        ('{"v":1,"p":{},"m":{"100":{"from":[0,0]}}}', "one of 0..99"),
        ('{"v":1,"p":{},"m":{"0":{"from":[-1,0]}}}', "is no offset"),
        ('{"v":1,"p":{},"m":{"0":{"from":[0,0],"given":[["bob","c",0,0]]}}}', "bob"),
        ('{"v":2,"p":{},"m":{}}', "upgrade Shoal"),
    ],
)
def test_what_is_no_offset_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_places(text)


def test_who_reads_logs_only_is_told_so() -> None:
    with pytest.raises(UsageError, match="it names messages"):
        parse_offset('{"v":1,"p":{},"m":{"0":{"from":[0,0]}}}')
