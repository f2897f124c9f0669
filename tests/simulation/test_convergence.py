"""Whatever joins, leaves, crashes, gets lost or comes late: after quiet the overlay is right.

At every step, in the tracker's view: no degree above d, no self link, no double link, and every
machine's own invariants. After quiet: nodes and tracker agree on every link, and the overlay is
regular and connected.
"""

from __future__ import annotations

from random import Random

import pytest

from shoal.sim.checkers import Checker, DeliveredOnce, MachineInvariants
from shoal_lab.experiments.streams.network_view import check_overlay
from tests.simulation.churn import Churn

RUNS_PER_CASE = 3


@pytest.mark.parametrize("case", range(12))
@pytest.mark.parametrize("degree", [3, 4, 5, 6])
def test_small_overlays_converge(seed: int, degree: int, case: int) -> None:
    for run in range(RUNS_PER_CASE):
        run_seed = seed + run
        nodes = Random(run_seed).choice([2, 3, degree, degree + 1, degree + 2, 12, 20, 40])
        _converges(run_seed, nodes, degree, operations=200, joined=False, checked=True)


@pytest.mark.parametrize("degree", [3, 6])
def test_large_overlays_converge(seed: int, degree: int) -> None:
    churn = _converges(seed, 250, degree, operations=500, joined=True, checked=False)
    assert churn.crashes > 60
    assert churn.leaves > 20
    assert len(churn.network.running()) > 4 * degree


def _converges(
    seed: int, nodes: int, degree: int, *, operations: int, joined: bool, checked: bool
) -> Churn:
    # The tracker's invariants look at the whole graph: with hundreds of nodes, at the end only.
    checkers: list[Checker] = [DeliveredOnce()]
    if checked:
        checkers.append(MachineInvariants())
    test = "tests/simulation/test_convergence.py"
    churn = Churn(
        seed,
        nodes=nodes,
        degree=degree,
        operations=operations,
        joined=joined,
        checkers=checkers,
        replay=f"./test {test} --seed {seed}",
    )
    churn.run()
    try:
        check_overlay(churn.network)
        MachineInvariants().quiet(churn.network.simulation)
    except Exception as error:
        raise churn.network.simulation.failure(error) from error
    return churn
