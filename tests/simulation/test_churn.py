"""Nodes that come and go all the time: two seeds of campaigns/churn.py, with fewer nodes and for
half a minute."""

from __future__ import annotations

import msgspec
import pytest

from campaigns import churn
from shoal.kernel.records import Delivered
from shoal.sim.trace import Row

SMALL = churn.Settings(nodes=150, minutes=0.6)


@pytest.mark.parametrize("kill_tracker", [False, True])
def test_whoever_stays_misses_nothing_while_others_come_and_go(
    seed: int, kill_tracker: bool
) -> None:
    settings = msgspec.structs.replace(SMALL, kill_tracker=kill_tracker)
    outcome = churn.run_one((seed + kill_tracker, settings))
    assert outcome.leaves > 10
    assert outcome.published == 20 * 5 * 36
    assert outcome.good, outcome


@pytest.mark.parametrize(
    ("delivery", "problem"), [("dropped", "lost"), ("dropped midway", "disordered")]
)
def test_the_campaign_notices_a_message_that_is_missing(
    seed: int, delivery: str, problem: str
) -> None:
    settings = msgspec.structs.replace(SMALL, nodes=8, publishers=2, minutes=0.1)
    run = churn.ChurnRun(seed, settings, "")
    victim = run.network.nodes[0].id
    ledger, count = run.ledger.__call__, 0

    def forgetful(rows: list[Row]) -> None:
        nonlocal count
        kept = []
        for row in rows:
            theirs = row[1] == victim and isinstance(row[2], Delivered)
            count += theirs
            if theirs and (count == 20 if delivery == "dropped midway" else count > 30):
                continue
            kept.append(row)
        ledger(kept)

    run.simulation.trace._sinks[:] = [forgetful]
    outcome = run.play()
    assert getattr(outcome, problem) > 0
    assert not outcome.good
