"""What a scenario of streams/loss may ask for, and the plan that comes of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.base.errors import ConfigError
from shoal.base.units import MS_NS, S_NS
from shoal_lab.experiments.loss import experiment
from shoal_lab.experiments.loss.experiment import make_plan
from shoal_lab.report import published
from shoal_lab.runs.plan import load_plan
from shoal_lab.scenarios.scenario import find_scenario, load_scenario

FILE = """
protocol = "streams"
experiment = "loss"
[network]
nodes = 3
delays = 20
[workload]
messages = 7
publishers = "in-turn"
interval_ms = 10
drain_s = 2
[options]
loss_percent = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def test_the_plan_of_a_run(file: Path) -> None:
    plan = make_plan(load_scenario(file), 7)
    assert (plan.hosts, plan.tracker, plan.loss, plan.seed) == (4, 3, 0.05, 7)
    assert plan.transport == "websocket"
    assert plan.delays_ns == ((20 * MS_NS,) * 4,) * 4
    assert plan.offsets_ns == tuple(
        tuple(at * 10 * MS_NS for at in times) for times in ((0, 3, 6), (1, 4), (2, 5))
    )
    assert plan.end_ns == 60 * MS_NS + 2 * S_NS
    assert plan.redundant_feeds is None
    assert make_plan(load_scenario(file, ["redundant_feeds=1"]), 7).redundant_feeds == 1


def test_publishers_are_drawn_by_the_seed(file: Path) -> None:
    some = load_scenario(file, ["publisher_count=2", "publishers='random'"])
    plans = [make_plan(some, seed) for seed in (1, 1, 2, 3)]
    assert plans[0] == plans[1]
    assert len({plan.offsets_ns for plan in plans}) > 1
    for plan in plans:
        assert sorted(at for times in plan.offsets_ns for at in times) == [
            at * 10 * MS_NS for at in range(7)
        ]
        assert sum(bool(times) for times in plan.offsets_ns) <= 2


def test_the_tracker_is_in_the_region_after_the_last_node(file: Path) -> None:
    plan = make_plan(load_scenario(file, ["nodes=16", "delays='aws'"]), 1)
    assert plan.delays_ns[0] == plan.delays_ns[16]
    assert plan.delays_ns[0][1] != plan.delays_ns[0][2]


def test_transports_are_swept_and_differ_in_nothing_else(file: Path) -> None:
    both = load_plan(file, ['options.transport=["websocket", "webrtc"]']).runs
    assert len({run.run for run in both}) == 2
    plans = [make_plan(run.scenario, run.seed) for run in both]
    assert [plan.transport for plan in plans] == ["websocket", "webrtc"]
    assert msgspec.structs.replace(plans[0], transport="webrtc") == plans[1]


def test_webrtc_without_its_engine_names_the_extra(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "find_spec", lambda name: None)
    make_plan(load_scenario(file), 1)
    with pytest.raises(ConfigError, match=r"no module webrtc: pip install 'shoal\[webrtc\]'"):
        make_plan(load_scenario(file, ['options.transport="webrtc"']), 1)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("options.loss_percent=51", "options.loss_percent = 51: expected `float` <= 50.0"),
        ("options.loss=1", "options.loss: no such field: there are loss_percent, transport"),
        ('options.transport="quic"', "options.transport = 'quic'"),
        ("nodes=201", "network.nodes = 201: each is a process and a namespace here: at most 200"),
        ("trackers=2", "network.trackers = 2: streams/loss takes no notice of that: leave it out"),
    ],
)
def test_what_cannot_be_had_is_refused(file: Path, override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(load_scenario(file, [override]), 1)
    assert complaint in str(caught.value)


def test_the_published_experiment_has_its_published_settings() -> None:
    runs = load_plan(find_scenario("streams-loss")).runs
    assert {run.scenario.network.nodes for run in runs} == {published.LOSS_NODES}
    rates = list(dict.fromkeys(run.scenario.options.loss_percent for run in runs))
    assert tuple(rates) == published.LOSS_PERCENT
    assert {run.scenario.options.transport for run in runs} == {"websocket", "webrtc"}
