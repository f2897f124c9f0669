"""Comparing clocks: the median of those that are pinned, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.records import Rejected
from shoal.protocols.streams.messages import AskTime, TellTime
from shoal.protocols.streams.peer_clocks import (
    ClockConfig,
    ClocksCompared,
    CompareClocks,
    PeerClocks,
    median,
)
from tests.support.machines import peer_id

ME = peer_id(0)
START_NS = 1_767_225_600 * S_NS


class Desk(FakeHost):
    """One machine, with peers that are pinned."""

    def __init__(self, pinned: Sequence[NodeId], ahead_s: float = 0) -> None:
        self.clocks = PeerClocks(ME, lambda: [Contact(peer) for peer in pinned], Random(1))
        super().__init__(ME, [self.clocks])
        self.time_ns = START_NS
        self.wall_stepped(round(ahead_s * S_NS), START_NS - 100 * S_NS)
        self.start()

    def round(self, theirs_s: dict[NodeId, float], delay_ms: int = 100) -> ClocksCompared:
        """Ask; these answer by clocks that are so far ahead of the true time."""
        self.command(self.clocks, CompareClocks())
        for contact in list(self.dialled):
            self.link_opened(contact.node)
        self.dialled.clear()
        asked = [(peer, message) for peer, message in self.sent if isinstance(message, AskTime)]
        self.sent.clear()
        self.advance(delay_ms * MS_NS)
        for peer, message in asked:
            if peer in theirs_s:
                told_ns = self.time_ns - delay_ms * MS_NS // 2 + round(theirs_s[peer] * S_NS)
                self.received(peer, TellTime(message.nonce, told_ns // MS_NS))
        if len(theirs_s) < len(asked):
            self.advance(self.clocks.config.answer_ns)
        return self.last()

    def last(self) -> ClocksCompared:
        told = self.notified[-1]
        assert isinstance(told, ClocksCompared)
        return told

    def reasons(self) -> list[str]:
        return [record.reason for record in self.records if isinstance(record, Rejected)]


@pytest.mark.parametrize("ahead_s", [0, 600, -600, 3600, -30 * 86_400])
def test_it_tells_by_how_much_our_clock_is_ahead(ahead_s: int) -> None:
    peers = [peer_id(n) for n in (1, 2, 3)]
    desk = Desk(peers, ahead_s)
    compared = desk.round(dict.fromkeys(peers, 0.0))
    assert compared.final
    assert compared.ahead_ns == pytest.approx(ahead_s * S_NS, abs=60 * MS_NS)
    assert (len(compared.answers), compared.asked) == (3, 3)
    assert not any(desk.links.is_claimed(peer) for peer in peers), "links are given back"


def test_a_minority_that_is_wrong_moves_nothing() -> None:
    peers = [peer_id(n) for n in range(1, 6)]
    compared = Desk(peers).round({p: (86_400 if n < 2 else 0) for n, p in enumerate(peers)})
    assert compared.ahead_ns is not None
    assert abs(compared.ahead_ns) < S_NS


@pytest.mark.parametrize(
    ("ahead", "middle"),
    [([], None), ([7], 7), ([0, 900], 0), ([-900, 30], 30), ([5, -900, 900], 5), ([1, 2, 8, 9], 2)],
)
def test_of_two_in_the_middle_the_one_counts_that_blames_us_less(
    ahead: list[int], middle: int | None
) -> None:
    assert median(ahead) == middle


def test_strangers_and_late_or_made_up_answers_count_nothing() -> None:
    desk = Desk([peer_id(1)])
    desk.link_opened(peer_id(9))
    desk.received(peer_id(9), TellTime(1, 0))
    desk.command(desk.clocks, CompareClocks())
    desk.link_opened(peer_id(1))
    desk.received(peer_id(9), TellTime(1, 0))
    desk.received(peer_id(1), TellTime(1, 0))  # of another nonce
    assert desk.reasons() == ["unasked-time"] * 3
    (_, asked) = desk.sent[-1]
    desk.received(peer_id(1), TellTime(asked.nonce, START_NS // MS_NS))
    assert desk.last().ahead_ns == 0
    desk.received(peer_id(1), TellTime(asked.nonce, 0))
    assert desk.last().ahead_ns == 0
    assert desk.reasons() == ["unasked-time"] * 4


def test_nobody_answers_and_they_are_asked_again_soon() -> None:
    desk = Desk([peer_id(1), peer_id(2)])
    compared = desk.round({})
    assert (compared.final, compared.ahead_ns, compared.asked) == (True, None, 2)
    desk.notified.clear()
    desk.advance(ClockConfig().again_ns)
    assert desk.dialled or desk.sent


def test_a_step_of_our_own_clock_spoils_the_round() -> None:
    desk = Desk([peer_id(1)])
    desk.command(desk.clocks, CompareClocks())
    desk.link_opened(peer_id(1))
    (_, asked) = desk.sent[-1]
    desk.advance(50 * MS_NS)
    desk.wall_stepped(3600 * S_NS, desk.time_ns)
    desk.advance(50 * MS_NS)
    desk.received(peer_id(1), TellTime(asked.nonce, desk.time_ns // MS_NS))
    assert (desk.last().final, desk.last().ahead_ns) == (True, None)


def test_whoever_asks_is_answered_with_the_time_of_day_and_not_too_often() -> None:
    desk = Desk([], ahead_s=600)
    desk.link_opened(peer_id(4))
    for nonce in range(20):
        desk.received(peer_id(4), AskTime(nonce))
    told = [message for _, message in desk.sent if isinstance(message, TellTime)]
    assert told[0] == TellTime(0, (START_NS + 600 * S_NS) // MS_NS)
    assert len(told) == ClockConfig().answers_burst
    assert desk.reasons() == ["asks-time-too-often"] * (20 - len(told))
