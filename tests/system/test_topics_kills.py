"""Processes of topics that are killed and stopped. The long form is campaigns/topics_kills.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from campaigns import topics_kills
from campaigns.kills import Failure
from campaigns.topic_journal import Given, Journal, Tail
from campaigns.topic_words import Accepted
from campaigns.topics_kills import OPEN, ORDERED, Run, Settings
from shoal.identity.topics.cid import cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.node import Event
from tests.support.topics import ALICE, event_of

SMALL = Settings(processes=8, kills=3, events=60, seconds=6, drain_s=90)


def test_what_was_accepted_outlives_three_kills_and_a_stop(tmp_path: Path, seed: int) -> None:
    outcome = topics_kills.run(replace(SMALL, seed=seed), tmp_path)
    assert not outcome.failure
    assert sum(outcome.killed.values()) == 3
    assert outcome.running == 7
    assert outcome.accepted > 30
    assert outcome.delivered == outcome.due == 7 * outcome.accepted
    assert outcome.stopped_lacked > 0
    assert outcome.caught_up_s is not None


def accepted(made: Run, topic: int) -> int:
    """An event of the topic that is due everywhere."""
    event = next(n for n, event in enumerate(made.workload.events) if event.topic == topic)
    made.ledgers[topic].issue(event, 1)
    made.told(Accepted(event, 2))
    return event


def test_the_campaign_notices_what_is_missing_forked_or_told_again(tmp_path: Path) -> None:
    made = Run(SMALL, tmp_path)
    event = accepted(made, ORDERED)
    for node in range(1, 8):
        made.given(node, Given(ORDERED, event, b"a", None, False, 3))
    assert "topic 0 ends differently" in made.failure()
    made.given(0, Given(ORDERED, event, b"a", None, False, 3))
    assert not made.failure()
    made.given(0, None)
    made.given(0, Given(ORDERED, event, b"a", None, False, 3))
    assert "twice" in made.failure(), "a chain goes on where it was, also after a restart"

    open_made = Run(SMALL, tmp_path)
    event = accepted(open_made, OPEN)
    assert f"8 deliveries are missing: event {event} at node 0" in open_made.failure()
    for node in range(8):
        open_made.given(node, Given(OPEN, event, b"a", None, False, 3))
    open_made.given(0, None)
    open_made.given(0, Given(OPEN, event, b"a", None, False, 3))
    assert not open_made.failure(), "where topics fork, some come again after a restart"
    open_made.given(0, Given(OPEN, event, b"a", None, False, 3))
    assert "twice" in open_made.failure()

    with pytest.raises(Failure, match="which nobody published"):
        Run(SMALL, tmp_path).given(0, Given(OPEN, event, b"a", None, False, 3))


def test_a_journal_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    descriptor = event_of(ALICE)
    event = Event(cid_of(encode_descriptor(descriptor)), descriptor, gap_before=True)
    first, tail = Journal(path), Tail(path)
    assert (first.life, first.last) == (1, {})
    first.write(ORDERED, 7, event, 11)
    given = Given(ORDERED, 7, event.id, None, True, 11)
    assert tail.read() == [None, given]
    with path.open("ab") as file:
        file.write(b"0 8 half a li")
    assert tail.read() == []
    second = Journal(path)
    assert (second.life, second.last) == (2, {ORDERED: event.id})
    assert tail.read() == [None]
    assert Tail(path).read() == [None, given, None]
