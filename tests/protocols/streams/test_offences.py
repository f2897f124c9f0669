"""Offences: how many are too many, and whose are remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.stream_node import Offences
from tests.support.streams import ALICE, BOB, node

CONFIG = NodeConfig(offences_max=3, offenders_max=4)


def test_the_last_of_too_many_tells_and_then_it_begins_anew() -> None:
    offences = Offences(CONFIG)
    assert [offences.add(ALICE) for _ in range(7)] == [False, False, True] * 2 + [False]


def test_each_is_counted_alone() -> None:
    offences = Offences(CONFIG)
    assert [offences.add(peer) for peer in (ALICE, BOB, ALICE, BOB)] == [False] * 4
    assert offences.add(BOB)
    assert offences.add(ALICE)


@given(st.lists(st.integers(0, 9)))
def test_the_newest_offenders_are_remembered_and_no_others(history: list[int]) -> None:
    offences = Offences(CONFIG)
    counts: dict[int, int] = {}
    for number in history:
        count = counts.pop(number, 0) + 1
        too_many = count == CONFIG.offences_max
        if not too_many:
            counts[number] = count
            if len(counts) > CONFIG.offenders_max:
                del counts[next(iter(counts))]
        assert offences.add(node(number)) is too_many
