"""Experiments with the tracker's algorithm alone."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest

from shoal.base.errors import InvariantViolated
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.sim.simulation import SimulationFailure
from shoal_lab.experiments.overlays.diameter import DiameterSurvey, diameter_bounds, hops_between
from shoal_lab.experiments.overlays.growing import OverlayOptions, grow_overlay
from shoal_lab.experiments.overlays.randomness import PairSurvey
from shoal_lab.runs.runner import run_scenario
from shoal_lab.scenarios.experiment_kinds import RunRequest, find_kind
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario

RING = np.array([[(at - 1) % 8, (at + 1) % 8, -1] for at in range(8)])


def scenario(experiment: str, nodes: int = 40, overlays: int = 5) -> Scenario:
    return Scenario(
        name="overlays",
        experiment=experiment,
        network=NetworkSettings(nodes=nodes),
        options=OverlayOptions(overlays),
    )


def test_pairs_are_counted_once_each() -> None:
    survey = PairSurvey(8, 3)
    survey.add(RING)
    survey.add(RING)
    columns = survey.columns()["pairs"]
    linked = {
        (int(a), int(b)): int(count)
        for a, b, count in zip(columns["a"], columns["b"], columns["count"], strict=True)
    }
    assert len(linked) == 28, "every pair has a row"
    assert {pair for pair in linked if linked[pair]} == {
        (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (0, 7),
    }  # fmt: skip
    assert set(linked.values()) == {0, 2}
    assert survey.figures().pair_probability == 8 / 28


def test_hops_go_round_a_ring() -> None:
    assert hops_between(RING)[0].tolist() == [0, 1, 2, 3, 4, 3, 2, 1]
    survey = DiameterSurvey(8, 3)
    survey.add(RING)
    figures = survey.figures()
    assert (figures.diameter_min, figures.diameter_max) == (4, 4)
    assert figures.hops_mean == 16 / 7


def test_an_overlay_in_two_parts_is_refused() -> None:
    cut = RING.copy()
    cut[[0, 7, 3, 4]] = [[1, 3, -1], [6, 4, -1], [2, 0, -1], [5, 7, -1]]
    with pytest.raises(InvariantViolated, match="not connected"):
        DiameterSurvey(8, 3).add(cut)


@pytest.mark.parametrize(
    ("nodes", "degree", "bounds"),
    # By hand, with natural logarithms: log_3 of 32 is 3.15, of 2 / 24 * 3.47 -1.13, of 887 6.18.
    [(32, 4, (2, 8)), (2048, 4, (6, 12)), (2, 4, (1, 1))],
)
def test_the_published_bounds(nodes: int, degree: int, bounds: tuple[int, int]) -> None:
    assert diameter_bounds(nodes, degree) == bounds


def test_an_odd_number_of_slots_leaves_one_free() -> None:
    ends = grow_overlay(7, 3, Random(1))
    assert (ends < 0).sum() == 1
    assert (grow_overlay(3, 4, Random(1)) >= 0).sum() == 6, "few nodes are all linked"


@pytest.mark.parametrize("experiment", ["randomness", "diameter"])
def test_a_seed_is_one_run(experiment: str) -> None:
    first, again = (run_scenario(scenario(experiment), 1) for _ in range(2))
    assert first.trace_hash == again.trace_hash
    assert first.figures == again.figures
    assert first.trace_hash != run_scenario(scenario(experiment), 2).trace_hash
    assert first.events == 200
    assert (first.checks.safety, first.checks.liveness) == ("passed", "passed")


def test_figures_of_overlays_are_what_theory_says() -> None:
    pairs = run_scenario(scenario("randomness", nodes=100, overlays=50)).figures
    assert pairs.pair_probability == pytest.approx(4 / 99)
    assert abs(pairs.dispersion_distance) < 5
    assert pairs.block_p_value > 1e-6
    hops = run_scenario(scenario("diameter", nodes=128, overlays=3)).figures
    assert hops.within == 3
    assert 3 < hops.hops_mean < hops.diameter_min <= hops.diameter_max


def test_an_unsound_overlay_fails_with_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomPolicy, "neighbours", lambda self, node: ())
    request = RunRequest(scenario=scenario("diameter"), seed=3, replay="this command")
    with pytest.raises(SimulationFailure, match=r"seed 3, overlay 0: .*slots.*\nreplay: this comm"):
        find_kind("streams", "diameter").run(request)
    unchecked = msgspec.structs.replace(request, check=False)
    with pytest.raises(SimulationFailure, match="not connected"):
        find_kind("streams", "diameter").run(unchecked)


def test_progress_is_told_in_overlays() -> None:
    told: list[str] = []
    run_scenario(scenario("randomness"), progress=lambda now: told.append(now.said))
    assert told == [f"{number} of 5 overlays" for number in range(1, 6)]
