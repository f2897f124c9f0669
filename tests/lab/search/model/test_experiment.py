"""The kind of experiment: studies, their figures and tables."""

from __future__ import annotations

import msgspec
import pytest

from shoal.base.errors import ConfigError, InvariantViolated
from shoal.protocols.search.bubbles.bubble_size import bubble_size
from shoal.sim.simulation import SimulationFailure
from shoal_lab.experiments.search_model import study
from shoal_lab.experiments.search_model.figures import ModelFigures, StageFigures
from shoal_lab.experiments.search_model.options import Event, ModelOptions
from shoal_lab.experiments.search_model.study import MODEL, check_theory
from shoal_lab.runs.run_tables import run_table_schema
from shoal_lab.runs.runner import RunResult, run_scenario
from shoal_lab.scenarios.experiment_kinds import RunProgress, RunRequest, find_kind
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario


def run(nodes: int = 2000, seed: int = 1, **options: object) -> RunResult:
    return run_scenario(scenario(nodes, **options), seed)


def scenario(nodes: int, **options: object) -> Scenario:
    return Scenario(
        name="model",
        protocol="search",
        experiment="model",
        network=NetworkSettings(nodes=nodes),
        options=msgspec.convert({"bubbles": 60, "holders": 1, **options}, ModelOptions),
    )


def matched(stage: StageFigures, data: str) -> list[float]:
    return [match.matched for match in stage.matches if match.data == data]


def test_a_healthy_network_finds_what_theory_says() -> None:
    figures: ModelFigures = run(10_000, bubbles=100).figures
    (before,) = figures.stages
    assert matched(before, "new") == pytest.approx(
        [0.2212, 0.6321, 0.8946, 0.9817, 0.9999], abs=0.02
    )
    assert before.largest_part == 1.0
    assert all(match.hops_max <= match.hops_bound for match in before.matches)
    assert all(abs(spread - 1) < 0.05 for spread in before.load_spread)
    assert figures.steps[0] in range(12, 16)


def test_a_crash_is_an_outage_that_rerouting_softens_and_repair_ends() -> None:
    figures: ModelFigures = run(10_000, event="crash 50 %", bubbles=100).figures
    stages = {stage.stage: stage for stage in figures.stages}
    assert [*stages] == ["before", "unnoticed", "rerouted", "noticed", "repaired"]
    at_two = {name: matched(stage, "old")[3] for name, stage in stages.items() if name != "before"}
    assert at_two["unnoticed"] < 0.25
    assert at_two["rerouted"] > 0.9
    assert at_two["noticed"] > 0.9
    assert matched(stages["repaired"], "new")[3] == pytest.approx(0.9817, abs=0.01)
    assert at_two["repaired"] < matched(stages["repaired"], "new")[3], "half of the copies are gone"
    assert stages["noticed"].threshold == stages["before"].threshold
    assert stages["repaired"].threshold < 0.6 * stages["before"].threshold
    assert stages["noticed"].largest_part < stages["repaired"].largest_part
    assert figures.splits > 10_000
    sizes = {m.data: m.data_size for m in stages["repaired"].matches if m.certainty == 2}
    assert sizes["old"] == stages["before"].matches[3].data_size > sizes["new"]


def test_who_leaves_in_good_order_leaves_a_whole_network() -> None:
    figures: ModelFigures = run(20_000, event="leave 90 %").figures
    left = figures.last
    assert (left.stage, left.nodes, left.largest_part) == ("left", 2000, 1.0)
    assert matched(left, "new")[3] == pytest.approx(0.9817, abs=0.02)
    assert figures.splits == 0


def test_a_network_in_parts_is_not_measured() -> None:
    figures: ModelFigures = run(
        3000, event="crash 90 %", bubbles=5, holders=2, rejoin_below=1
    ).figures
    assert figures.steps == (None, None)
    assert figures.last.largest_part < 0.99
    whole = run(3000, event="crash 90 %", bubbles=5).figures
    assert whole.last.largest_part == 1.0
    assert whole.steps[0] is not None


def test_balance_moves_work_from_queries_to_data() -> None:
    figures: ModelFigures = run(10_000, balance=16.0, bubbles=100).figures
    match = figures.stages[0].matches[3]
    assert match.data_size == pytest.approx(16 * match.query_size, rel=0.03)
    assert match.matched == pytest.approx(match.theory, abs=0.02)


def test_a_seed_is_one_run() -> None:
    first, again = (run(300, event="crash 30 %", bubbles=5) for _ in range(2))
    assert (first.trace_hash, first.figures) == (again.trace_hash, again.figures)
    assert first.trace_hash != run(300, 2, event="crash 30 %", bubbles=5).trace_hash
    assert msgspec.json.decode(msgspec.json.encode(first.figures), type=ModelFigures) == (
        first.figures
    )


def test_tables_hold_what_the_figures_say() -> None:
    told: list[RunProgress] = []
    request = RunRequest(
        scenario=scenario(2000, event="leave 50 %"), seed=1, record=True, progress=told.append
    )
    outcome = find_kind("search", "model").run(request)
    assert outcome.tables is not None
    tables = outcome.tables("a-run")()
    assert [*tables] == ["search_stages", "search_matches", "search_loads", "search_steps"]
    for name, table in tables.items():
        assert table.schema == run_table_schema(name)
        assert set(table["run"].to_pylist()) == {"a-run"}
    assert tables["search_stages"]["nodes"].to_pylist() == [2000, 1000]
    assert tables["search_matches"].num_rows == 5 + 2 * 5
    assert sum(tables["search_loads"]["messages"].to_pylist()) == outcome.events
    assert isinstance(outcome.figures, ModelFigures)
    assert outcome.figures.steps == (tables["search_steps"].num_rows,)
    assert [one.fraction for one in told] == sorted(one.fraction for one in told)
    assert told[-1].fraction > 0.5


def test_what_is_not_asked_for_is_not_done() -> None:
    figures: ModelFigures = run(bubbles=0, holders=0).figures
    assert (figures.steps, figures.stages[0].matches) == ((), ())
    assert "matches" not in MODEL.line(figures)


def test_figures_are_told() -> None:
    figures = run(event="crash 50 %", bubbles=5).figures
    rows = dict(MODEL.rows(figures))
    assert rows["network"] == "2,000 nodes of 2-10 locations"
    assert rows["repaired"].startswith("1,000 nodes, ")
    assert rows["repair"].endswith("rounds")
    assert "1,000 nodes repaired" in MODEL.line(figures)


def test_pairs_that_miss_each_other_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    good: ModelFigures = run().figures
    check_theory(good.stages)
    stage = good.stages[0]
    worse = tuple(
        msgspec.structs.replace(match, matched=match.matched - 0.1) for match in stage.matches
    )
    bad = msgspec.structs.replace(stage, matches=worse)
    with pytest.raises(InvariantViolated, match=r"before, c = 0\.5: 0\.\d+ of the pairs met"):
        check_theory((bad,))
    monkeypatch.setattr(study, "bubble_size", lambda *of: bubble_size(*of) // 2)
    with pytest.raises(SimulationFailure, match=r"seed 1: .*theory says"):
        run()
    unchecked = RunRequest(scenario=scenario(2000), seed=1, check=False)
    assert MODEL.run(unchecked).checks.liveness == "off"


def test_options_are_read() -> None:
    assert ModelOptions().location_range() == (2, 10)
    assert ModelOptions(locations=3).location_range() == (3, 3)
    assert ModelOptions(event="crash 50 %").happening() == Event("crash", 0.5)
    assert ModelOptions().happening() == Event("none", 0.0)


@pytest.mark.parametrize("locations", [1, "1-4", "5-3", "2-101", "few", -3])
def test_locations_that_cannot_be_are_refused(locations: str | int) -> None:
    with pytest.raises(ConfigError, match=r"locations = .*: write a number from 2 to 100, or a"):
        ModelOptions(locations=locations)


@pytest.mark.parametrize("event", ["crash", "crash 0 %", "crash 100 %", "flood 5 %", "leave 5"])
def test_events_that_cannot_be_are_refused(event: str) -> None:
    with pytest.raises(ConfigError, match=rf"event = '{event}': write 'none', or 'crash 50 %'"):
        ModelOptions(event=event)
