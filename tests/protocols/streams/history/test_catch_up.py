"""A node that was away: what it has storage asked for, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.base.ids import KEYS_PARTITION, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, Send
from shoal.kernel.wall_clock import WallClock
from shoal.protocols.streams.commands import CatchUp, FilledFromStorage
from shoal.protocols.streams.config import ClientConfig, NodeConfig
from shoal.protocols.streams.member.joined_stream import Absence
from shoal.protocols.streams.messages import FindStorage
from tests.support.history import ONE, Keeper, Library, Silent, history
from tests.support.machines import Scripted
from tests.support.streams import (
    BOB,
    CAROL,
    MALLORY,
    ME,
    NOW_MS,
    NOW_NS,
    STREAM,
)

CONFIG = NodeConfig()
MESSAGES = history(35)
SINCE = Position(NOW_MS - 10_000 + 5, 0)  # the first five are older


class Returner(Library):
    """A reader beside a stream machine that only listens."""

    def __init__(self, *keepers: Keeper | None, **settings: Any) -> None:
        self.streams = Scripted(accepts=(FilledFromStorage,))
        super().__init__(*keepers, beside=[self.streams], **settings)

    def catch_up(
        self, stream: StreamId = STREAM, since: Position = SINCE, peer: NodeId = ME
    ) -> None:
        self.host.received(peer, CatchUp(stream, since))
        self.settle()

    @property
    def filled(self) -> list[FilledFromStorage]:
        events: list[Any] = self.streams.inputs
        heard = [getattr(event, "message", None) for event in events]
        return [message for message in heard if isinstance(message, FilledFromStorage)]

    @property
    def found(self) -> list[bytes]:
        return [signed for filled in self.filled for signed in filled.found]


# What is read


def test_all_that_was_published_since_comes_page_by_page() -> None:
    returner = Returner(Keeper(MESSAGES))
    returner.catch_up()
    assert returner.found == MESSAGES[5:]
    assert {(f.publisher, f.partition, f.chain) for f in returner.filled} == {(CAROL, 0, "c")}
    assert returner.pages == [], "the application hears nothing of it"
    assert returner.client._jobs == {}


def test_messages_of_several_chains_come_back_chain_by_chain() -> None:
    sent = [*MESSAGES, *history(5, publisher=BOB), *history(5, chain="d")]
    returner = Returner(Keeper(sent, page_rows=100))
    returner.catch_up(since=Position(0, 0))
    chains = {(f.publisher, f.chain): len(f.found) for f in returner.filled}
    assert chains == {(CAROL, "c"): 35, (BOB, "c"): 5, (CAROL, "d"): 5}


def test_every_partition_is_read_and_the_keys_of_all() -> None:
    parts = [history(3, partition=partition) for partition in (0, 1, 2, 3, KEYS_PARTITION)]
    returner = Returner(Keeper([signed for part in parts for signed in part]), partitions=3)
    returner.catch_up(since=Position(0, 0))
    assert returner.found == [*parts[0], *parts[1], *parts[2], *parts[4]]


def test_a_busy_partition_is_not_read_to_its_end() -> None:
    parts = [history(35, partition=partition) for partition in range(2)]
    keeper = Keeper([signed for part in parts for signed in part])
    returner = Returner(keeper, partitions=2, config=ClientConfig(catch_up_rows_max=20))
    returner.catch_up(since=Position(0, 0))
    assert returner.found == [*parts[0][:20], *parts[1][:20]]
    assert returner.client._jobs == {}


def test_a_storage_node_that_lacks_it_is_not_the_only_one_asked() -> None:
    returner = Returner(Keeper(), Keeper(MESSAGES))
    returner.catch_up()
    assert returner.found == MESSAGES[5:]


def test_many_streams_take_turns_and_all_of_them_come() -> None:
    streams = [StreamId(f"stream/{number}") for number in range(10)]
    sent = {stream: history(3, stream=stream) for stream in streams}
    keeper = Keeper([signed for stream in streams for signed in sent[stream]])
    returner = Returner(keeper, config=ClientConfig(catch_ups_at_once=2))
    for stream in streams:
        returner.host.received(ME, CatchUp(stream, Position(0, 0)))
        assert len(returner.client._jobs) <= 2
    returner.settle()
    assert sorted(returner.found) == sorted(signed for each in sent.values() for signed in each)


def test_streams_that_nobody_keeps_end_while_the_next_ones_begin() -> None:
    """Where it is known that nobody keeps a stream, its read is over as soon as it has begun."""
    kept, *unkept = (StreamId(f"stream/{number}") for number in range(500))
    returner = Returner(config=ClientConfig(catch_ups_at_once=1))
    for stream in unkept:
        returner.catch_up(stream)
    asked = returner.host.sent
    returner.host.received(ME, CatchUp(kept, SINCE))
    (question,) = [message for _, message in asked]
    for stream in unkept:  # they wait for the one
        returner.host.received(ME, CatchUp(stream, SINCE))
    assert [message for _, message in asked] == [question] == [FindStorage(kept)]
    returner.settle()
    assert returner.found == []
    assert returner.client._jobs == {}


def test_without_storage_it_ends_there_and_may_be_asked_for_again() -> None:
    returner = Returner(partitions=2)
    returner.catch_up()
    returner.advance(120 * S_NS)
    assert returner.found == []
    assert returner.client._jobs == {}
    assert not returner.host.timers
    returner.keepers[ONE] = Keeper(MESSAGES)
    returner.storage = (ONE,)
    returner.advance(60 * S_NS)
    returner.catch_up()
    assert returner.found == MESSAGES[5:]


@pytest.mark.parametrize("keeper", [Silent(), None])
def test_storage_that_does_not_answer_is_asked_again_later(keeper: Keeper | None) -> None:
    returner = Returner(keeper, partitions=3)
    returner.catch_up()
    returner.advance(30 * S_NS)
    assert returner.found == []
    returner.keepers[ONE] = Keeper(MESSAGES)
    returner.advance(60 * S_NS)
    assert returner.found == MESSAGES[5:]
    assert returner.client._jobs == {}
    assert not returner.host.timers


def test_trackers_that_do_not_answer_are_asked_again_later() -> None:
    returner = Returner(Keeper(MESSAGES))
    returner.tracker_is_up = False
    returner.catch_up()
    returner.advance(returner.client.config.catch_up_retry_ns - 1)
    returner.tracker_is_up = True
    assert returner.found == []
    returner.advance(1)
    assert returner.found == MESSAGES[5:]


def test_after_one_partition_failed_the_others_are_not_tried() -> None:
    silent = Silent()
    returner = Returner(silent, partitions=50)
    returner.catch_up()
    returner.advance(returner.client.config.catch_up_retry_ns)
    assert {question.partition for question in silent.asked} == {0}


def test_an_absence_is_given_up_after_so_many_tries() -> None:
    silent = Silent()
    returner = Returner(silent, config=ClientConfig(catch_up_tries=3, fill_rounds=1))
    returner.catch_up()
    returner.advance(600 * S_NS)
    assert len(silent.asked) == 3
    assert not returner.host.timers
    returner.catch_up()
    assert len(silent.asked) == 4


def test_whoever_was_away_again_reads_at_once_what_it_missed_before() -> None:
    returner = Returner(None)
    returner.catch_up()
    returner.advance(25 * S_NS)
    returner.keepers[ONE] = Keeper(MESSAGES)
    later = Position(SINCE.timestamp_ms + 20, 0)
    returner.catch_up(since=later)
    assert returner.found == MESSAGES[5:]
    returner.advance(60 * S_NS)
    assert returner.found == MESSAGES[5:], "once"


def test_whoever_was_away_again_while_a_read_failed_reads_from_the_first_absence() -> None:
    returner = Returner(Silent(), config=ClientConfig(fill_rounds=1))
    returner.catch_up()
    returner.catch_up(since=Position(SINCE.timestamp_ms + 20, 0))
    returner.keepers[ONE] = Keeper(MESSAGES)
    returner.advance(10 * S_NS)
    assert returner.found == MESSAGES[5:]


def test_only_the_own_stream_machine_may_ask() -> None:
    returner = Returner(Keeper(MESSAGES))
    returner.host.link_opened(MALLORY)
    returner.catch_up(peer=MALLORY)
    assert returner.rejected == [(MALLORY, "not-mine")]
    assert returner.found == []


# When it is asked for


def since_ms(effects: list[Effect]) -> list[int]:
    """From when on the history machine is asked to read, before now."""
    asked = [effect.message for effect in effects if isinstance(effect, Send)]
    return [NOW_MS - m.since.timestamp_ms for m in asked if isinstance(m, CatchUp)]


def test_an_absence_is_made_up_for_with_some_time_before_it() -> None:
    absence = Absence(STREAM, ME, CONFIG, NOW_NS - 200 * S_NS)
    assert absence.moved(False, True, NOW_NS - 199 * S_NS) == [], "a join takes a second"
    assert absence.moved(True, True, NOW_NS - 100 * S_NS) == []
    assert absence.moved(True, False, NOW_NS - 20 * S_NS) == []
    effects = absence.moved(False, True, NOW_NS)
    assert since_ms(effects) == [20_000 + CONFIG.absent_before_ns // MS_NS]
    assert absence.moved(True, True, NOW_NS) == []


def test_a_moment_alone_is_no_absence() -> None:
    absence = Absence(STREAM, ME, CONFIG, NOW_NS - 200 * S_NS)
    absence.moved(True, False, NOW_NS - CONFIG.absent_ns + 1)
    assert absence.moved(False, True, NOW_NS) == []


def test_what_lies_before_the_joining_is_not_asked_for() -> None:
    absence = Absence(STREAM, ME, CONFIG, NOW_NS - 40 * S_NS)
    assert since_ms(absence.moved(False, True, NOW_NS)) == [40_000]


def test_an_absence_of_hours_is_made_up_for_from_its_beginning() -> None:
    absence = Absence(STREAM, ME, CONFIG, NOW_NS - 40_000 * S_NS)
    absence.moved(True, False, NOW_NS - 30_000 * S_NS)
    since = 30_000_000 + CONFIG.absent_before_ns // MS_NS
    assert since_ms(absence.moved(False, True, NOW_NS)) == [since]


@pytest.mark.parametrize("back", [False, True])
def test_a_clock_that_was_just_set_makes_no_absence_too_short(back: bool) -> None:
    """Ahead, wrongly; or back, to where it belongs."""
    wall = WallClock()
    absence = Absence(STREAM, ME, CONFIG, NOW_NS - 200 * S_NS, wall)
    absence.moved(True, False, NOW_NS - 20 * S_NS)
    wall.set(3600 * S_NS, NOW_NS - 5 * S_NS)
    if back:
        wall.set(0, NOW_NS - S_NS)
    since = 20_000 + CONFIG.absent_before_ns // MS_NS
    assert since_ms(absence.moved(False, True, NOW_NS)) == [since]
