"""A gap whose publisher and neighbours are gone: filled from storage, or told in its place.

Storage nodes are outside the overlay here, so that nothing is filled by them as neighbours.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from shoal.base.ids import PARTITIONS_MAX, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.stream_message import decode_body
from shoal.kernel.contact import Contact
from shoal.kernel.effects import Effect, OpenLink, Send
from shoal.kernel.inputs import Input, MessageReceived
from shoal.kernel.machine import Machine
from shoal.kernel.records import GapAbandoned
from shoal.protocols.streams.commands import (
    JoinStream,
    MessageArrived,
    Publish,
    PublishAccepted,
)
from shoal.protocols.streams.config import HEADS_MAX, NodeConfig
from shoal.protocols.streams.history.client import HistoryClient
from shoal.protocols.streams.history.messages import QUESTIONS
from shoal.protocols.streams.history.reader import cursor_of
from shoal.protocols.streams.history.wire import HistoryCodec
from shoal.protocols.streams.messages import Flood
from shoal.protocols.streams.node import StreamNode
from shoal.protocols.streams.random_policy import RandomPolicy
from shoal.protocols.streams.ring import TrackerRing
from shoal.protocols.streams.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.sim import RegionDelay, SimNode, Simulation, load_table
from shoal.sim.checkers import DeliveredOnce, MachineInvariants
from shoal.sim.faults import Loss
from shoal.sim.faults.partition import _Cut
from shoal.sim.network import Frame, LinkEnd, Shaper
from shoal.sim.trace import Row
from tests.support.history import Keeper

STREAM = StreamId("0xowner/city/vehicles")
MEMBERS = 8
RUNS = 6
SILENT = "silent"
AWAY = "away"
EMPTY = "empty"
LYING = "lying"


class KeeperNode:
    """The machine of a storage node, with a keeper's answers."""

    accepts = QUESTIONS

    def __init__(self, keeper: Keeper, how: str) -> None:
        self._keeper = keeper
        self._how = how

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        if not isinstance(event, MessageReceived) or self._how == SILENT:
            return []
        answer = self._keeper.answer(event.message)
        if self._how == LYING:
            forged = tuple(bytes(65) + signed[65:] for signed in answer.rows)
            answer = type(answer)(answer.request, forged, answer.next)
        # Whoever is asked claims the link too, or it would be closed as unclaimed.
        claim = OpenLink(Contact(event.peer), "answers")
        return [claim, Send(answer, (event.peer,))]

    def check_invariants(self) -> None:
        """There is nothing to break."""


class NoData(Shaper):
    """One node gets no stream messages for a while; all else comes through."""

    keeps_order = True

    def __init__(self, victim: SimNode) -> None:
        self.victim = victim

    def cuts(self, a: Any, b: Any) -> bool:
        return False

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        is_data = isinstance(frame.message, Flood)
        return [] if is_data and end.peer == self.victim.id else arrivals_ns


class Story:
    """Some members, of whom the last one misses something, and two storage nodes."""

    def __init__(
        self, seed: int, storage: tuple[str, str], *, members: int = MEMBERS, page_rows: int = 3
    ) -> None:
        self.simulation = Simulation(
            seed,
            RegionDelay(load_table("aws")),
            codecs=[StreamsCodec(), HistoryCodec()],
            checkers=[MachineInvariants(), DeliveredOnce()],
        )
        entropy = SeededEntropy(seed)
        self._page_rows = page_rows
        self.kept: list[bytes] = []
        self.delivered: list[tuple[bytes, bool]] = []
        self.abandoned = 0
        self.simulation.trace.to(self._rows)
        tracker = PrivateKey.generate(entropy)
        self._ring = TrackerRing([Contact(tracker.address)])
        self.members = [self._member(PrivateKey.generate(entropy)) for _ in range(members)]
        self.fresh = [self._member(PrivateKey.generate(entropy)) for _ in range(MEMBERS)]
        self.late = self.members[-1]
        self.late.listeners.append(self._told)
        contacts = []
        for how in storage:
            id = PrivateKey.generate(entropy).address
            contacts.append(Contact(id))
            node = self.simulation.add_node(id, partial(self._make_keeper, how), role="storage")
            if how != AWAY:
                node.start()
        self._contacts = tuple(contacts)
        self.simulation.add_node(tracker.address, self._make_tracker, role="tracker").start()

    def _member(self, key: PrivateKey) -> SimNode:
        node = self.simulation.add_node(key.address, partial(self._make_member, key))
        node.listeners.append(self._published)
        return node

    def _make_member(self, key: PrivateKey, node: SimNode) -> list[Machine]:
        rng = self.simulation.random("node", node.index)
        return [
            StreamNode(node.id, self._ring, key.sign, "c", rng),
            HistoryClient(node.id, self._ring.order),
        ]

    def _make_tracker(self, node: SimNode) -> list[Machine]:
        def policy(stream: StreamId) -> RandomPolicy:
            return RandomPolicy(4, self.simulation.random("policy", stream))

        return [Tracker(policy, storage_of=lambda stream: self._contacts)]

    def _make_keeper(self, how: str, node: SimNode) -> list[Machine]:
        return [KeeperNode(Kept([] if how == EMPTY else self.kept, self._page_rows), how)]

    def _published(self, event: Any) -> None:
        if isinstance(event, PublishAccepted):
            self.kept.append(event.signed)

    def _told(self, event: Any) -> None:
        if isinstance(event, MessageArrived):
            self.delivered.append((event.message.content, event.gap_before))

    def _rows(self, rows: list[Row]) -> None:
        self.abandoned += sum(
            isinstance(record, GapAbandoned) and node == self.late.id for _, node, record in rows
        )

    # The story

    def join(self, nodes: list[SimNode]) -> None:
        for node in nodes:
            node.start()
            node.command(0, JoinStream(STREAM))
        self.simulation.run_for(15)

    def publish(self, node: SimNode, *contents: int) -> None:
        for content in contents:
            node.command(0, Publish(STREAM, b"%d" % content))
            self.simulation.run_for(0.05)

    def cut_off(self) -> _Cut:
        """The late one loses all its links; until it heals."""
        cut = _Cut(self.simulation, {self.late.id: None})
        self.simulation.add_shaper(cut)
        self.simulation.scheduler.after(2 * S_NS, cut.time_out)
        self.simulation.run_for(0.1)
        return cut

    def miss(self, *contents: int) -> None:
        """The late one misses some messages, and gets to know of it with the one after them."""
        shaper = NoData(self.late)
        self.simulation.add_shaper(shaper)
        self.publish(self.members[0], *contents[:-1])
        self.simulation.run_for(0.3)
        self.simulation.remove_shaper(shaper)
        self.publish(self.members[0], contents[-1])

    def everybody_dies(self) -> None:
        for node in self.members[:-1]:
            node.crash()

    def contents(self) -> list[int]:
        return [int(content) for content, _ in self.delivered]

    def gaps(self) -> list[int]:
        return [int(content) for content, gap in self.delivered if gap]


class Kept(Keeper):
    """Sees what is published later, too."""

    def __init__(self, messages: list[bytes], page_rows: int) -> None:
        super().__init__(page_rows=page_rows)
        self._source = messages

    def answer(self, question: Any) -> Any:
        if len(self.messages) < len(self._source):
            self.messages = sorted(
                self._source, key=lambda signed: cursor_of(decode_body(signed).id)
            )
        return super().answer(question)


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
