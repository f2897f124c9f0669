"""Durable topics in small networks: the long forms are the scenarios and campaigns/topics.py."""

from __future__ import annotations

import pytest

from campaigns.topics import Settings, run_one
from shoal.sim.simulation import SimulationFailure
from shoal_lab.experiments.topics.figures import TopicsFigures
from shoal_lab.scenarios.experiment_kinds import RunRequest, find_kind
from shoal_lab.scenarios.scenario import find_scenario, load_scenario

NODES, TOPICS, EVENTS = 24, 6, 200
SMALL = Settings(NODES, TOPICS, EVENTS)


def reddit(*overrides: str, seed: int = 1) -> TopicsFigures:
    small = [f"nodes={NODES}", f"options.topics={TOPICS}", f"messages={EVENTS}", "interval_ms=100"]
    scenario = load_scenario(find_scenario("topics-reddit"), [*small, *overrides])
    request = RunRequest(scenario=scenario, seed=seed)
    outcome = find_kind("topics", "reddit").run(request)
    assert outcome.checks.liveness == "passed"
    assert isinstance(outcome.figures, TopicsFigures)
    return outcome.figures


@pytest.mark.parametrize("slow", ["false", "true"])
@pytest.mark.parametrize("ordered", ["false", "true"])
def test_every_reader_gets_every_event(ordered: str, slow: str) -> None:
    figures = reddit(f"options.ordered={ordered}", f"options.slow={slow}")
    assert figures.running == NODES - 2
    assert figures.issued == EVENTS
    # Of those that asked the author, the ones that died have no answer.
    assert figures.injected >= EVENTS - 2
    assert figures.delivered == figures.due > 0
    assert figures.coverage_percent == 100
    assert figures.wrong == figures.gaps == figures.told_again == 0
    assert figures.to_100_ms is not None
    assert figures.to_100_ms.p50 < (5000 if slow == "true" else 1500)
    assert figures.dht is not None
    assert figures.topic_state_bytes.mean > 0
    assert figures.dht_state_bytes.mean > 0


@pytest.mark.parametrize(("kind", "seed"), [("unordered", 1), ("ordered", 2)])
def test_nothing_is_lost_by_deaths_and_a_cut(kind: str, seed: int) -> None:
    outcome = run_one((kind, seed), SMALL)
    assert outcome.failure == ""
    assert outcome.issued == EVENTS
    assert outcome.injected > EVENTS * 0.6, "the halves go on, as far as they can"
    assert outcome.delivered == outcome.due > 0
    assert outcome.wrong == outcome.gaps == 0


def test_a_run_that_has_no_time_to_finish_fails() -> None:
    """The check can fail: events of the last moment are on their way still."""
    with pytest.raises(SimulationFailure, match="did not come within the drain of 0 s"):
        reddit("nodes=12", "messages=40", "options.slow=true", "options.ordered=true", "drain_s=0")
