"""Regions that are lost, and nodes that die at once. The long form is campaigns/crashes.py."""

from __future__ import annotations

import msgspec
import pytest

from campaigns.crashes import AT_RANDOM, Outcome, Settings, kinds, run_one

SMALL = Settings(nodes=80, publishers=5, minutes=1.5)


@pytest.mark.parametrize("died", [kinds()[0], AT_RANDOM[0]])
def test_whoever_stays_is_connected_and_misses_nothing(died: str) -> None:
    outcome = run_one(died, SMALL)
    assert outcome.count == (5 if died not in AT_RANDOM else 24)
    assert outcome.good, outcome


def test_what_is_not_good() -> None:
    good = Outcome("x", 1, 2.0, 0, 0, 0, 0.0)
    assert good.good
    for wrong in ({"connected_s": None}, {"connected_s": 11.0}, {"lost": 1}, {"gaps": 1}):
        assert not msgspec.structs.replace(good, **wrong).good
