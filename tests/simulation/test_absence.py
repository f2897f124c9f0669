"""A member that was cut off and comes back: what storage has of its absence is all there is."""

from __future__ import annotations

import pytest

from tests.simulation.gap_story import AWAY, EMPTY, LYING, RUNS, SILENT, Story


def play_absence(seed: int, storage: tuple[str, str], *, away_s: float = 15.0) -> Story:
    """The late one is cut off; last words are said, and all who heard them die; then it comes back
    among nodes that are all newer than these words."""
    story = Story(seed, storage)
    story.join(story.members)
    story.publish(story.members[0], 1, 2, 3)
    story.simulation.run_for(5)
    cut = story.cut_off()
    story.publish(story.members[0], 4, 5)
    story.simulation.run_for(3)
    story.everybody_dies()
    story.join(story.fresh)
    story.simulation.run_for(away_s)
    cut.heal()
    story.simulation.run_for(60)
    return story


@pytest.mark.parametrize("storage", [("good", "good"), (EMPTY, "good"), (LYING, "good")])
def test_whoever_comes_back_among_newcomers_gets_last_words_from_storage(
    seed: int, storage: tuple[str, str]
) -> None:
    for number in range(RUNS):
        story = play_absence(seed + number, storage)
        assert story.contents() == [1, 2, 3, 4, 5]
        story.publish(story.fresh[0], 6)
        story.simulation.run_for(5)
        assert story.contents() == [1, 2, 3, 4, 5, 6]
        assert story.gaps() == []


@pytest.mark.parametrize("storage", [(EMPTY, EMPTY), (AWAY, SILENT)])
def test_last_words_that_nobody_alive_has_are_missed_without_a_sign(
    seed: int, storage: tuple[str, str]
) -> None:
    # Nothing tells of them: no later message of the chain, no neighbour, no storage node. What is
    # promised is that all goes on.
    for number in range(RUNS):
        story = play_absence(seed + number, storage)
        assert story.contents() == [1, 2, 3]
        story.publish(story.fresh[0], 6)
        story.simulation.run_for(5)
        assert story.contents() == [1, 2, 3, 6]
        assert story.gaps() == []
        assert story.abandoned == 0


@pytest.mark.parametrize("goes_on", [False, True])
def test_whoever_was_away_for_longer_than_live_messages_live_gets_all_of_it(
    seed: int, goes_on: bool
) -> None:
    story = Story(seed, ("good", "good"))
    story.join(story.members)
    story.publish(story.members[0], 1, 2, 3)
    story.simulation.run_for(5)
    cut = story.cut_off()
    for content in range(4, 14):
        story.publish(story.members[0], content)
        story.simulation.run_for(60)
    if not goes_on:  # the last words of the chain are as old
        story.simulation.run_for(600)
    cut.heal()
    story.simulation.run_for(20)
    if goes_on:
        story.publish(story.members[0], 14)
        story.simulation.run_for(10)
    assert story.contents() == list(range(1, 15 if goes_on else 14))
    assert story.gaps() == []
    assert story.abandoned == 0
