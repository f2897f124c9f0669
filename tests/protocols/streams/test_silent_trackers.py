"""Trackers that are there and silent: passed over, and joined again once they speak."""

from __future__ import annotations

from itertools import pairwise

from shoal.base.units import S_NS
from shoal.protocols.streams.commands import JoinStream
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Leave, Left
from tests.support.streams import ALICE, STREAM, instruction, sent
from tests.support.tracker_guest import FIRST, SECOND, THIRD, Guest, dialled, joins

CONFIG = NodeConfig()


def passed_over() -> Guest:
    """With the second tracker, since the first never answered."""
    guest = Guest()
    guest.command(JoinStream(STREAM))
    guest.link_up(FIRST)
    assert dialled(guest.advance(CONFIG.answer_ns)) == [SECOND]
    guest.link_up(SECOND)
    guest.receive(SECOND, instruction(1, epoch=11))
    assert guest.at == SECOND
    return guest


def test_a_tracker_that_is_there_and_never_answers_is_passed_over() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    guest.link_up(FIRST)
    assert dialled(guest.advance(CONFIG.answer_ns - 1)) == [], "a takeover may hold its answer"
    said = guest.advance(CONFIG.join_retry_ns)
    assert dialled(said) == [SECOND]
    assert guest.at == FIRST, "as long as no other is there, that one may still answer"
    effects = guest.link_up(SECOND)
    assert [peer for peer, _ in joins(effects)] == [SECOND]
    assert (Leave(STREAM), (FIRST,)) in sent(effects, Leave)
    assert guest.at == SECOND


def test_a_silent_tracker_hears_no_join_until_it_speaks_and_is_joined_at_once_then() -> None:
    guest = passed_over()
    effects = guest.advance(600 * S_NS)
    assert joins(effects) == []
    assert len(sent(effects, Leave)) == 600 * S_NS // CONFIG.join_retry_ns
    assert [peer for peer, _ in joins(guest.receive(FIRST, Left(STREAM)))] == [FIRST]
    assert guest.at == SECOND
    guest.receive(FIRST, instruction(1, epoch=12))
    assert guest.at == FIRST


def test_a_silent_tracker_whose_link_breaks_is_dialled_and_asked_for_a_word() -> None:
    guest = passed_over()
    guest.link_down(FIRST)
    guest.fire(("dial", FIRST))
    guest.link_down(FIRST)
    assert FIRST in dialled(guest.advance(2 * CONFIG.seek_ns))
    effects = guest.link_up(FIRST)
    assert joins(effects) == []
    assert sent(effects, Leave) == [(Leave(STREAM), (FIRST,))]
    assert [peer for peer, _ in joins(guest.receive(FIRST, Left(STREAM)))] == [FIRST]


def test_a_tracker_that_speaks_but_takes_nobody_in_is_tried_less_and_less_often() -> None:
    guest = passed_over()
    tries_s: list[int] = []
    joined = False
    for second in range(1200):
        for message, peers in sent(guest.advance(S_NS)):
            if peers == (FIRST,) and isinstance(message, Leave):
                joined = False
                more = joins(guest.receive(FIRST, Left(STREAM)))
            else:
                more = [(FIRST, message)] if peers == (FIRST,) else []
            if more and not joined:
                joined = True
                tries_s.append(second)
        if guest.claims.get((FIRST, "")) is False:
            joined = bool(joins(guest.link_up(FIRST)))
            tries_s += [second] * joined
        assert guest.at == SECOND
    waits_s = [b - a for a, b in pairwise(tries_s)]
    patience_s = CONFIG.answer_ns // S_NS
    assert 8 <= len(tries_s) <= 14
    assert waits_s[0] < patience_s + 10
    assert waits_s[-1] > patience_s + CONFIG.silent_max_ns // S_NS


def test_a_tracker_that_denies_every_join_is_not_asked_for_ever() -> None:
    guest = Guest()
    guest.command(JoinStream(STREAM))
    asked = joins(guest.link_up(FIRST))
    count = 0
    while asked and count < 1000:
        guest.now_ns += S_NS // 10
        asked = joins(guest.receive(FIRST, Left(STREAM)))
        count += 1
    assert count <= CONFIG.answer_ns // (S_NS // 10)
    assert dialled(guest.advance(CONFIG.join_retry_ns)) == [SECOND]


def test_a_node_with_neighbours_waits_longer_for_a_silent_tracker() -> None:
    guest = Guest().joined(ALICE)
    guest.link_down(FIRST)
    guest.fire(("dial", FIRST))
    guest.link_up(FIRST)
    assert dialled(guest.advance(CONFIG.answer_linked_ns - 1)) == []
    guest.advance(CONFIG.join_retry_ns)
    [(peer, join)] = joins(guest.link_up(SECOND))
    assert (peer, join.neighbours) == (SECOND, (ALICE,))
    assert guest.active == (ALICE,)


def test_a_better_tracker_that_is_silent_does_not_keep_another_better_one_away() -> None:
    guest = Guest().failed_over()
    guest.link_down(SECOND)
    guest.fire(("dial", SECOND))
    guest.link_down(SECOND)
    guest.link_up(THIRD)
    guest.receive(THIRD, instruction(1, epoch=12))
    guest.advance(2 * CONFIG.seek_ns)
    guest.link_up(FIRST)
    guest.advance(CONFIG.answer_ns + 2 * CONFIG.seek_ns)
    assert [peer for peer, _ in joins(guest.link_up(SECOND))] == [SECOND]
