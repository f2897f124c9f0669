"""A gap whose publisher and neighbours are gone: filled from storage, or told in its place."""

from __future__ import annotations

import pytest

from shoal.base.ids import PARTITIONS_MAX
from shoal.base.units import S_NS
from shoal.identity import PrivateKey
from shoal.kernel.machine import Machine
from shoal.protocols.streams.commands import Publish
from shoal.protocols.streams.config import HEADS_MAX, NodeConfig
from shoal.sim import SimNode
from shoal.sim.faults import Loss
from tests.simulation.gap_story import AWAY, EMPTY, LYING, RUNS, SILENT, STREAM, NoData, Story


def play(seed: int, storage: tuple[str, str], *, neighbours: bool, loss: float = 0.0) -> Story:
    """1 to 5 come, 6 to 12 do not, 13 shows it, and then all who could help are gone."""
    story = Story(seed, storage)
    story.join(story.members)
    story.publish(story.members[0], 1, 2, 3, 4, 5)
    story.simulation.run_for(5)
    assert story.contents() == [1, 2, 3, 4, 5]
    story.miss(6, 7, 8, 9, 10, 11, 12, 13)
    story.simulation.run_for(0.15)
    assert story.contents() == [1, 2, 3, 4, 5], "13 has come, and waits"
    if loss:
        now_s = story.simulation.time_s
        Loss(probability=loss, start_s=now_s, end_s=now_s + 120).install(story.simulation)
    story.everybody_dies()
    if neighbours:
        story.join(story.fresh)  # who have never heard of it
    story.simulation.run_for(90)
    if not neighbours:
        story.join(story.fresh)
    return story


STORAGE = [
    ("good", "good"),
    (AWAY, "good"),
    ("good", SILENT),
    (SILENT, "good"),
    (EMPTY, "good"),
    ("good", LYING),
    (LYING, "good"),
]


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("neighbours", [False, True])
def test_a_gap_that_nobody_alive_can_fill_is_filled_from_storage(
    seed: int, storage: tuple[str, str], neighbours: bool
) -> None:
    story = play(seed, storage, neighbours=neighbours)
    story.publish(story.fresh[0], 14, 15)
    story.simulation.run_for(5)
    assert story.contents() == list(range(1, 16))
    assert story.gaps() == []
    assert story.abandoned == 0


@pytest.mark.parametrize("neighbours", [False, True])
def test_it_is_filled_over_links_that_lose_a_third(seed: int, neighbours: bool) -> None:
    """Questions and answers get lost too: mostly all of it comes, or else a gap is told."""
    filled = 0
    for number in range(RUNS):
        story = play(seed + number, ("good", "good"), neighbours=neighbours, loss=0.3)
        contents = story.contents()
        assert contents[-1] == 13
        assert contents == sorted(contents)
        assert story.abandoned == len(story.gaps())
        if not story.abandoned:
            assert contents == list(range(1, 14))
            filled += 1
    assert filled >= RUNS // 2


@pytest.mark.parametrize("storage", [(AWAY, AWAY), (SILENT, AWAY), (LYING, SILENT), (EMPTY, EMPTY)])
@pytest.mark.parametrize("neighbours", [False, True])
def test_if_storage_fails_too_the_gap_is_told_in_its_place_and_all_goes_on(
    seed: int, storage: tuple[str, str], neighbours: bool
) -> None:
    story = play(seed, storage, neighbours=neighbours)
    story.publish(story.fresh[0], 14, 15)
    story.simulation.run_for(5)
    assert story.contents() == [1, 2, 3, 4, 5, 13, 14, 15]
    assert story.gaps() == [13]
    assert story.abandoned == 1


def test_a_node_without_a_history_machine_gives_up_in_time(seed: int) -> None:
    class Plain(Story):
        def _make_member(self, key: PrivateKey, node: SimNode) -> list[Machine]:
            return super()._make_member(key, node)[:1]

    story = Plain(seed, ("good", "good"))
    story.join(story.members)
    story.publish(story.members[0], 1, 2)
    story.miss(3, 4, 5)
    story.simulation.run_for(0.15)
    story.everybody_dies()
    story.simulation.run_for(NodeConfig().storage_wait_ns / S_NS + 2)
    assert story.contents() == [1, 2, 5]
    assert story.gaps() == [5]


@pytest.mark.parametrize("links", [False, True])
def test_thousands_of_messages_are_filled_while_their_chain_goes_on(seed: int, links: bool) -> None:
    """50 messages of 2 kB a second: more than neighbours keep, and more come while it is filled."""
    story = Story(seed, ("good", "good"), members=5, page_rows=256)
    story.join(story.members)
    published = 0

    def publish(duration_s: int) -> None:
        nonlocal published
        for _ in range(50 * duration_s):
            published += 1
            story.members[0].command(0, Publish(STREAM, b"%2000d" % published))
            story.simulation.run_for(0.02)

    publish(2)
    if links:  # only messages are lost, so that nothing is read after an absence
        shaper = NoData(story.late)
        story.simulation.add_shaper(shaper)
        publish(110)
        story.simulation.remove_shaper(shaper)
    else:
        cut = story.cut_off()
        publish(110)
        cut.heal()
    publish(25)
    story.simulation.run_for(10)
    assert story.contents() == list(range(1, published + 1))
    assert story.gaps() == []
    assert story.abandoned == 0


@pytest.mark.parametrize("behind_s", [90, 200])
def test_a_publisher_whose_clock_is_behind_is_followed_from_the_first_message_on(
    seed: int, behind_s: int
) -> None:
    story = Story(seed, (EMPTY, EMPTY))
    publisher = story.members[0]
    publisher.set_clock(-behind_s * S_NS, 0.0)
    story.join(story.members[:-1])
    story.publish(publisher, 1, 2, 3)
    story.join([story.late])
    story.publish(publisher, 4, 5)
    story.miss(6, 7, 8)
    story.simulation.run_for(5)
    assert story.contents() == [4, 5, 6, 7, 8]
    assert story.gaps() == []


def test_the_last_words_of_many_chains_are_all_told(seed: int) -> None:
    """More than one Heads message names: publishers that speak at once, and then are quiet."""
    story = Story(seed, (EMPTY, EMPTY))
    story.join(story.members)
    shaper = NoData(story.late)
    story.simulation.add_shaper(shaper)
    content = 0
    for node in story.members[:-1]:
        for number in range(PARTITIONS_MAX):
            content += 1
            node.command(0, Publish(STREAM, b"%d" % content, partition=number))
    story.simulation.run_for(1)
    story.simulation.remove_shaper(shaper)
    story.simulation.run_for(20)
    assert content > 2 * HEADS_MAX
    assert sorted(story.contents()) == list(range(1, content + 1))
