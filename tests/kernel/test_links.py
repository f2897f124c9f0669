"""The table of claims, without a host around it."""

from __future__ import annotations

import pytest

from shoal.base.errors import InvariantViolated
from shoal.kernel.inputs import LinkClosed, LinkFailed, LinkOpened
from shoal.kernel.link_table import Claim, LinkTable
from tests.support.machines import peer_id

A, B, C = peer_id(1), peer_id(2), peer_id(3)
MINE, YOURS = Claim(0, "mine"), Claim(1, "yours")


def test_the_first_claim_dials_and_the_second_waits_for_it() -> None:
    table = LinkTable(8)
    assert table.claim(A, MINE, soft=False) == (True, [])
    assert table.claim(A, YOURS, soft=False) == (False, [])
    assert table.opened(A) == [(0, LinkOpened(A, "mine")), (1, LinkOpened(A, "yours"))]


def test_a_claim_on_a_link_that_is_up_is_answered_at_once() -> None:
    table = LinkTable(8)
    assert table.opened(A) == []
    assert table.claim(A, MINE, soft=False) == (False, [(0, LinkOpened(A, "mine"))])


def test_only_the_last_release_leaves_a_link_idle() -> None:
    table = LinkTable(8)
    table.claim(A, MINE, soft=False)
    table.claim(A, YOURS, soft=False)
    table.opened(A)
    assert not table.release(A, MINE)
    assert not table.release(A, MINE), "given back already"
    assert table.release(A, YOURS)
    assert table.is_up(A)
    assert not table.is_claimed(A)


def test_a_claim_released_while_dialling_leaves_the_dial_to_the_next() -> None:
    table = LinkTable(8)
    table.claim(A, MINE, soft=False)
    assert not table.release(A, MINE), "no link is up: nothing to park"
    assert table.claim(A, YOURS, soft=False) == (False, []), "one dial at a time"
    assert table.failed(A, "refused") == [(1, LinkFailed(A, "yours", "refused"))]
    assert A not in table


def test_a_failed_dial_does_not_harm_a_link_that_came_in_meanwhile() -> None:
    table = LinkTable(8)
    table.claim(A, MINE, soft=False)
    table.opened(A)
    assert table.failed(A, "timeout") == []
    assert table.is_up(A)


def test_a_claimant_that_was_told_hears_closed_and_one_that_was_not_hears_failed() -> None:
    table = LinkTable(8)
    table.claim(A, MINE, soft=False)
    table.claim(A, YOURS, soft=False)
    table.opened(A)
    assert table.tell(A, MINE)
    assert not table.tell(A, MINE), "told once"
    assert table.closed(A, "gone") == [
        (0, LinkClosed(A, "mine", "gone")),
        (1, LinkFailed(A, "yours", "gone")),
    ]
    assert not table.tell(A, YOURS), "the link is gone"
    assert table.closed(A, "gone") == []


def test_unsent_messages_go_back_once_to_the_machine_that_sent_them() -> None:
    table = LinkTable(8)
    for claim in (MINE, Claim(0, "more"), YOURS):
        table.claim(A, claim, soft=False)
    table.opened(A)
    for claim in (MINE, Claim(0, "more"), YOURS):
        table.tell(A, claim)
    assert table.closed(A, "too-slow", [(0, "x"), (7, "of nobody here"), (0, "y")]) == [
        (0, LinkFailed(A, "mine", "too-slow", ("x", "y"))),
        (0, LinkClosed(A, "more", "too-slow")),
        (1, LinkClosed(A, "yours", "too-slow")),
    ]


def test_a_second_link_to_one_peer_is_a_bug_of_the_driver() -> None:
    table = LinkTable(8)
    table.opened(A)
    with pytest.raises(InvariantViolated, match="second link"):
        table.opened(A)


def test_soft_links_above_the_cap_go_least_recently_used_first() -> None:
    table = LinkTable(1)
    for peer in (A, B, C):
        table.claim(peer, MINE, soft=True)
    assert table.excess_soft() == [A, B]
    table.use([A])
    assert table.excess_soft() == [B, C]
    table.claim(B, YOURS, soft=True)
    assert table.excess_soft() == [C, A]


def test_a_hard_claim_protects_a_link_and_its_release_exposes_it() -> None:
    table = LinkTable(0)
    table.claim(A, MINE, soft=True)
    table.claim(A, YOURS, soft=False)
    assert table.excess_soft() == []
    table.use([A])
    assert table.excess_soft() == []
    table.release(A, YOURS)
    assert table.excess_soft() == [A]
    table.release(A, MINE)
    assert table.excess_soft() == []


def test_claimants_are_named_once_each() -> None:
    table = LinkTable(8)
    assert table.claimants(A) == []
    for claim in (YOURS, MINE, Claim(1, "other")):
        table.claim(A, claim, soft=False)
    assert table.claimants(A) == [1, 0]
