"""Every scenario that ships runs to its end, in a small version of itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shoal.sim.faults import ServiceTime
from shoal_lab.runs.places import ThisProcess
from shoal_lab.runs.plan import load_plan
from shoal_lab.runs.sweep import run_plan
from shoal_lab.scenarios.scenario import find_scenario, list_scenarios

SMALL = ["nodes=[8,12]", "degree=4", "repeats=1", "on=simulator"]  # sockets: tests/system
SMALLER = {
    "delivery": ["messages=20", "settle_s=20"],
    "randomness": ["options.overlays=3"],
    "diameter": ["options.overlays=3"],
    "reddit": ["messages=20", "options.topics=3"],
    "model": ["options.bubbles=3"],
    "match": ["options.bubbles=3", "options.searches_s=0.2"],
    "measurement": ["options.rounds=1"],
    "churn": ["options.lasts_s=60", "options.searches_s=0.2"],
    "watch": ["options.queries=4", "options.documents=8"],
}
FEWER = {  # of what they sweep besides
    "streams-feeds": ["redundant_feeds=0"],
    "topics-reddit": ["options.slow=false"],
    "topics-floodsub": ["options.slow=true"],
    "topics-churn": ["options.ordered=true"],
    "search-million": ["options.event='crash 50 %'"],
    "search-match": ["options.locations='2-10'"],
    "search-crash": ["options.event='leave 50 %'"],
    "search-measurement": ["options.locations=3"],
    "search-measurement-churn": ["options.locations=3", "options.crashes=0.1"],
}
TABLES = {
    "delivery": "deliveries",
    "randomness": "pairs",
    "diameter": "diameters",
    "reddit": "topic_events",
    **dict.fromkeys(("model", "match", "measurement", "churn", "watch"), "search_stages"),
}
STAGES = {"model": 5, "search-crash": 2}


def rows(name: str, experiment: str, nodes: int, messages: int) -> int:
    """Of its table, if nothing goes wrong."""
    if experiment == "delivery":
        return messages * (nodes - 1)
    if experiment == "reddit":
        return messages
    if TABLES[experiment] == "search_stages":
        return STAGES.get(name, STAGES.get(experiment, 1))
    return nodes * (nodes - 1) // 2 if experiment == "randomness" else 3


def simulated() -> list[Path]:
    """All but what needs namespaces and real time, which tests/system/test_loss.py runs."""
    return [file for file in list_scenarios() if file.stem != "streams-loss"]


@pytest.mark.parametrize("file", simulated(), ids=lambda file: file.stem)
def test_a_small_version_runs_and_leaves_its_tables(file: Path, tmp_path: Path) -> None:
    experiment = load_plan(file).runs[0].scenario.experiment
    plan = load_plan(file, [*SMALL, *SMALLER[experiment], *FEWER.get(file.stem, [])])
    runs = list(run_plan(plan, ThisProcess(), folder=tmp_path))
    assert {run.planned.scenario.network.nodes for run in runs} == {8, 12}
    assert not [run.failure for run in runs if run.failure]
    for run in runs:
        scenario = run.planned.scenario
        table = pq.read_table(tmp_path / run.planned.run / f"{TABLES[experiment]}.parquet")
        wanted = rows(file.stem, experiment, scenario.network.nodes, scenario.messages)
        # Under faults some nodes are away for some messages.
        assert 0 < table.num_rows <= wanted
        assert table.num_rows == wanted or scenario.faults
        assert set(table["run"].to_pylist()) == {run.planned.run}


def test_the_published_experiments_have_their_published_settings() -> None:
    runs = load_plan(find_scenario("streams-propagation")).runs
    assert len(runs) == 63
    assert {run.scenario.network.nodes for run in runs} == {32 * 2**i for i in range(7)}
    assert all(run.scenario.messages == 2 * run.scenario.network.nodes for run in runs)
    assert all(run.scenario.prediction for run in runs)
    redundancy = load_plan(find_scenario("streams-redundancy")).runs
    assert [run.scenario.network.degree for run in redundancy] == [*range(4, 17)]
    assert {run.scenario.network.nodes for run in redundancy} == {64}
    aware = load_plan(find_scenario("aware-aws")).runs
    assert len(aware) == 3 * 4 * 9
    assert {run.scenario.faults for run in aware} == {(ServiceTime(per_message_ms=0.1),)}
    for name in ("sphere", "transit-stub"):
        runs = load_plan(find_scenario(f"aware-{name}")).runs
        assert {(r.scenario.network.nodes, r.scenario.network.delays) for r in runs} == {
            (1000, name)
        }
    (randomness,) = load_plan(find_scenario("streams-randomness")).runs
    assert randomness.scenario.network.nodes == randomness.scenario.options.overlays == 1000
