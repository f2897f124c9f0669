"""An answer that claims to be complete is; and a minute after the last fault every answer is.

Late messages are acknowledged once no storage node can claim to be complete without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.base.ids import MessageId
from shoal.identity.message_body import Position
from shoal.protocols.streams.commands import MessageRange, ReadHistory
from tests.simulation.storage_truth import (
    NAMED,
    Alone,
    Answer,
    CutOff,
    Shelf,
    StorageTruth,
    run,
)


@pytest.mark.parametrize("number", range(5))
def test_no_acknowledged_message_is_missing_from_an_answer_that_claims_to_be_complete(
    number: int, seed: int
) -> None:
    outcome = run(seed * 5 + number)
    assert outcome.untrue == []
    assert outcome.unsure == [], "a minute after the last fault"
    assert outcome.unkept == 0, "a minute after the last fault"
    assert outcome.acknowledged > 50
    assert outcome.complete > 100
    assert outcome.incomplete > 0, "or the faults were none"


class Story:
    """Three storage nodes that were compared, and what is done to them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.truth = StorageTruth(seed, folder)
        self.number = 0
        for shelf in self.truth.shelves:
            shelf.start()
        self.until_s(10)

    def until_s(self, time_s: float) -> None:
        self.truth.simulation.run_until_s(time_s)

    def publish(self, late_s: float) -> MessageId:
        """A message with a timestamp of so long ago; handed in until it is kept."""
        self.number += 1
        self.truth._publish(self.number, int(late_s * 1000), NAMED[0])
        return next(reversed(self.truth._unkept))

    def is_acknowledged(self, id: MessageId) -> bool:
        return id in self.truth.acknowledged

    def holders(self, id: MessageId) -> list[Shelf]:
        return [shelf for shelf in self.truth.shelves if id in shelf.ids()]

    def read(self, id: MessageId) -> None:
        """The minute around a message; what is untrue is in the outcome."""
        begin, end = (Position(id.timestamp_ms + ms, 0) for ms in (-30_000, 1_000))
        command = ReadHistory(NAMED[0], 0, MessageRange(begin, end))
        acknowledged = self.truth.acknowledged
        due = {i for i in acknowledged if begin <= Position(i.timestamp_ms, i.sequence) <= end}
        self.truth.readers[0].command(0, command, Answer(command, due, set()))

    @property
    def complete(self) -> int:
        """So many answers claimed to be."""
        assert self.truth.outcome.untrue == []
        return self.truth.outcome.complete


@pytest.fixture
def story(tmp_path: Path, seed: int) -> Iterator[Story]:
    made = Story(seed, tmp_path)
    made.truth.read_on = False
    yield made
    for shelf in made.truth.shelves:
        shelf.store.close()


def test_a_late_message_on_one_disk_is_not_acknowledged(story: Story) -> None:
    """Its storage node is killed before the others have it, and these claim to be complete."""
    truth, (one, *_) = story.truth, story.truth.shelves
    alone = Alone(truth.simulation, truth.nodes, one.node)
    truth.simulation.add_shaper(alone)
    cuts = [CutOff(truth.simulation, one.node, shelf.node) for shelf in truth.shelves[1:]]
    for cut in cuts:
        truth.simulation.add_shaper(cut)
    id = story.publish(late_s=120)
    story.until_s(10.8)
    assert story.holders(id) == [one]
    one.node.crash()
    for cut in cuts:
        cut.heal()
    story.until_s(12)
    story.read(id)
    story.until_s(20)
    assert story.complete == 1, "without the message, which is not acknowledged"
    alone.heal()
    story.until_s(40)
    assert len(story.holders(id)) == 3
    assert not story.is_acknowledged(id), "the first could come back alone, and claim"
    one.start()
    story.until_s(60)
    assert story.is_acknowledged(id)
    story.read(id)
    story.until_s(65)
    assert story.complete == 2


def test_a_late_message_is_acknowledged_at_once_if_all_storage_nodes_take_it(story: Story) -> None:
    id = story.publish(late_s=120)
    story.until_s(11)
    assert story.is_acknowledged(id)
    assert len(story.holders(id)) == 3


@pytest.mark.parametrize("dead", [1, 2])
def test_what_is_newer_than_a_dead_storage_node_does_not_wait_for_it(
    dead: int, story: Story
) -> None:
    for shelf in story.truth.shelves[:dead]:
        shelf.node.crash()
    story.until_s(12)
    fresh = story.publish(late_s=0)
    story.until_s(12.5)
    assert story.is_acknowledged(fresh)
    story.until_s(200)
    late, old = story.publish(late_s=100), story.publish(late_s=300)
    story.until_s(230)
    assert story.is_acknowledged(late)
    assert not story.is_acknowledged(old), "the dead one may claim to have all of that time"
    for shelf in story.truth.shelves[:dead]:
        shelf.start()
    story.until_s(260)
    assert story.is_acknowledged(old)


def test_a_storage_node_knows_after_a_restart_up_to_when_a_dead_one_may_claim(
    story: Story,
) -> None:
    """All of them were away, and one does not come back."""
    for shelf in story.truth.shelves:
        shelf.node.crash()
    story.until_s(200)
    for shelf in story.truth.shelves[1:]:
        shelf.start()
    story.until_s(210)
    between, old = story.publish(late_s=100), story.publish(late_s=300)
    story.until_s(240)
    assert story.is_acknowledged(between)
    assert not story.is_acknowledged(old)


def test_without_its_disk_it_does_not_know_that(story: Story) -> None:
    one, two, dead = story.truth.shelves
    for shelf in (one, two, dead):
        shelf.node.crash()
    story.until_s(200)
    for shelf in (one, two):
        shelf.empty()
        shelf.start()
    story.until_s(210)
    between = story.publish(late_s=100)
    story.until_s(240)
    assert not story.is_acknowledged(between)
    dead.start()
    story.until_s(270)
    assert story.is_acknowledged(between)
