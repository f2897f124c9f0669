"""Search in the lab: small versions of the scenarios, and what must hold in them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.base.errors import InvariantViolated
from shoal_lab.experiments.search.match import MatchExperiment, SimulatedFigures
from shoal_lab.experiments.search.measurement import MeasurementExperiment
from shoal_lab.experiments.search.watches import WatchExperiment
from shoal_lab.runs.runner import run_scenario
from shoal_lab.scenarios.scenario import find_scenario, load_scenario

LATER = ("options.documents=40", "interval_ms=100")


def run(name: str, *overrides: str) -> Any:
    return run_scenario(load_scenario(find_scenario(name), overrides)).figures


def test_pairs_meet_as_in_the_model() -> None:
    """And a little more often than theory says, which is for large networks."""
    small = ("nodes=150", "options.locations=3", "options.bubbles=40")
    (simulated,) = run("search-match", *small).stages
    (modelled,) = run("search-million", *small, "options.event='none'").stages
    assert simulated.largest_part == 1.0
    for match, same in zip(simulated.matches, modelled.matches, strict=True):
        noise = 4 * (match.error**2 + same.error**2) ** 0.5
        assert match.matched == pytest.approx(same.matched, abs=noise + 0.01)
        assert match.matched > match.theory - 0.03
        assert match.query_size == pytest.approx(same.query_size, abs=1)
        assert match.reached == pytest.approx(match.query_size, abs=1)
        # Over six seeds the largest bubbles took 2 to 10 % more.
        assert match.messages == pytest.approx(same.messages, rel=0.12)


def test_a_crash_is_noticed_and_healed() -> None:
    figures: SimulatedFigures = run(
        "search-crash",
        "nodes=60",
        "options.event='crash 30 %'",
        "options.bubbles=5",
        "options.searches_s=1",
        "options.quiet_s=30",
    )
    assert [stage.stage for stage in figures.stages] == [
        "before", "unnoticed", "noticed", "repaired",
    ]  # fmt: skip
    assert [stage.nodes for stage in figures.stages] == [60, 42, 42, 42]
    around = figures.around
    assert around is not None
    assert around.before.new is not None
    assert around.unnoticed.new is not None
    assert around.unnoticed.new < around.before.new
    assert around.after.new is not None
    assert around.after.new > 0.85
    assert around.complete_s is not None
    assert around.moments[0].time_s == pytest.approx(-30)
    assert around.moments[-1].shape.nodes == 42


def test_most_may_leave() -> None:
    figures: SimulatedFigures = run(
        "search-crash",
        "nodes=30",
        "options.event='leave 80 %'",
        "options.bubbles=2",
        "options.searches_s=1",
        "options.quiet_s=20",
    )
    assert [stage.stage for stage in figures.stages] == ["before", "left"]
    assert figures.last.nodes == 6
    assert figures.last.largest_part == 1.0
    assert figures.around is not None
    assert figures.around.known_s is not None


def test_standing_queries_are_told_once() -> None:
    figures = run("search-watch", "nodes=60", "options.queries=20", "options.subjects=5", *LATER)
    assert figures.due > 50
    assert figures.part > 0.95
    assert figures.told_again == figures.wrong == 0


def test_checks_can_fail() -> None:
    scenario = load_scenario(find_scenario("search-watch"), ["nodes=4"])
    watching = WatchExperiment(scenario, 1, (), "")
    figures = run("search-watch", "nodes=20", "options.queries=4", "options.documents=8")
    with pytest.raises(InvariantViolated, match="1 documents were told again"):
        watching.check_liveness(_with(figures, told_again=1))
    with pytest.raises(InvariantViolated, match="is the stated confidence"):
        watching.check_liveness(_with(figures, told=0))
    scenario = load_scenario(
        find_scenario("search-measurement"), ["nodes=4", "options.locations=3"]
    )
    measuring = MeasurementExperiment(scenario, 1, (), "")
    with pytest.raises(InvariantViolated, match="3 rounds were asked for"):
        measuring.check_liveness(_with(run_measurement(), rounds=()))


def test_an_outage_in_which_too_little_is_found_fails() -> None:
    options = ["nodes=1000", "options.event='crash 50 %'"]
    experiment = MatchExperiment(load_scenario(find_scenario("search-crash"), options), 1, (), "")
    figures: SimulatedFigures = run(
        "search-crash",
        "nodes=20",
        "options.event='crash 10 %'",
        "options.bubbles=2",
        "options.searches_s=1",
        "options.quiet_s=10",
    )
    assert figures.around is not None
    bad = _with(figures.around, noticed=_with(figures.around.noticed, new_found=0, new_searches=9))
    with pytest.raises(InvariantViolated, match=r"0\.000 of the searches for new data succeeded"):
        experiment.check_liveness(_with(figures, nodes=1000, around=bad))


def test_rounds_of_a_small_network() -> None:
    figures = run_measurement()
    assert figures.steps[0] in range(1, 10), "small networks beat quickly"
    assert figures.known > 0.99


def run_measurement() -> Any:
    return run("search-measurement", "nodes=50", "options.locations=3", "options.rounds=1")


def _with(struct: Any, **changes: object) -> Any:
    return msgspec.structs.replace(struct, **changes)
