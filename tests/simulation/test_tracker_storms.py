"""Whatever happens to trackers: nobody who stayed misses a message without being told, and in the
end all are in one overlay at the best tracker."""

from __future__ import annotations

from functools import partial

import pytest

from shoal.base.units import S_NS
from shoal.sim.faults import _Cut
from tests.simulation.failover import BUSY_S, DETECT_NS, Failover
from tests.simulation.storm import Storm

RUNS_PER_CASE = 6


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("case", range(4))
def test_nothing_is_lost_in_a_storm_and_all_come_together(
    seed: int, case: int, lossy: bool
) -> None:
    for run in range(RUNS_PER_CASE):
        storm = Storm(seed + 1000 * case + run, lossy=lossy)
        storm.run()
        try:
            storm.check()
        except Exception as error:
            raise storm.network.simulation.failure(error) from error


@pytest.mark.parametrize("run", range(2))
def test_what_a_node_publishes_alone_at_its_tracker_reaches_the_others(seed: int, run: int) -> None:
    # All but one reach the first tracker; with the second that one is alone, and goes on talking.
    town = Failover(seed + run, nodes=8, spare=0)
    town.busy(until_s=BUSY_S + 30)
    town.cut(BUSY_S + 2, BUSY_S + 17, town.trackers[0], town.stayed[:1])
    town.run_until(BUSY_S + 16)
    assert town.network.active(town.stayed[0]) == ()
    town.run_until(BUSY_S + 60)
    town.check()


@pytest.mark.parametrize("run", range(2))
def test_a_best_tracker_that_comes_back_without_knowing_the_date(seed: int, run: int) -> None:
    # It refuses the epochs that all know; newcomers know none, and must not be there alone.
    town = Failover(seed + run, nodes=12, spare=2)
    town.busy(until_s=BUSY_S + 35)
    best = town.trackers[0]
    town.crash(BUSY_S + 5, best)
    town.run_until(BUSY_S + 15)
    best.set_clock(-3 * 24 * 3600 * S_NS, 0.0)
    best.start()
    town.start(BUSY_S + 25, *town.spare)
    town.run_until(BUSY_S + 70)
    town.check()


def test_whoever_comes_back_among_newcomers_has_what_its_neighbours_have(seed: int) -> None:
    # Newcomers neither have nor tell of what was published before them. Storage does
    # (test_absence.py); without it, that much holds.
    for run in range(6):
        town = Failover(seed + run, nodes=8, spare=0)
        away, talker = town.stayed[:2]
        simulation = town.simulation
        cut = _Cut(simulation, {away.id: None})
        town.run_until(BUSY_S)
        simulation.add_shaper(cut)
        simulation.scheduler.after(DETECT_NS, cut.time_out)
        simulation.at_s(BUSY_S + 3, partial(town.network.publish, talker, b"last words"))
        for number, node in enumerate(town.stayed[2:]):
            town.crash(BUSY_S + 4 + 2 * number, node)
            town.start(BUSY_S + 5 + 2 * number, node)
        town.run_until(BUSY_S + 20)
        cut.heal()
        town.run_until(BUSY_S + 50)
        (last_words,) = town.once.published
        neighbours = [simulation.nodes[peer] for peer in town.network.active(away)]
        assert len(neighbours) == 4
        have = [last_words in town.once.delivered(node) for node in neighbours]
        assert (last_words in town.once.delivered(away)) == any(have)
