"""Running scenarios: results, verdicts, and failures that can be seen again."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import msgspec
import pytest

from shoal.base.errors import InvariantViolated
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Input
from shoal.sim.faults import Loss
from shoal.sim.host import SimNode
from shoal.sim.simulation import Simulation, SimulationFailure
from shoal_lab.runs.runner import replay_command, run_scenario
from shoal_lab.scenarios.experiment_kinds import RunProgress
from shoal_lab.scenarios.scenario import NetworkSettings, Scenario, WorkloadSettings
from shoal_lab.testbed import simulated
from shoal_lab.testbed.process_memory import quiet_collector

SMALL = Scenario(
    name="small",
    network=NetworkSettings(nodes=8),
    workload=WorkloadSettings(messages=10, settle_s=15.0, drain_s=3.0),
)


class FailsAt:
    """A planted bug: something is wrong from a moment on."""

    def __init__(self, time_s: float) -> None:
        self.time_s = time_s
        self.simulation: Simulation | None = None

    def step(self, node: SimNode, event: Input, effects: Sequence[Effect]) -> None:
        assert node.host is not None
        if node.host.simulation.time_s >= self.time_s:
            raise InvariantViolated("planted")

    def quiet(self, simulation: Simulation) -> None:
        """Never reached."""


def test_a_run_gives_figures_and_verdicts() -> None:
    result = run_scenario(SMALL, 5)
    assert (result.scenario, result.protocol, result.seed) == ("small", "streams", 5)
    assert (result.checks.safety, result.checks.liveness) == ("passed", "passed")
    assert result.figures.delivered == result.figures.expected == 70
    assert result.events > result.records / 2 > 100
    assert result.events_per_cpu_second > 0
    assert result.simulated_seconds == SMALL.end_s


def test_the_seed_of_the_scenario_is_the_default() -> None:
    by_default = run_scenario(SMALL)
    assert by_default.seed == SMALL.seed
    assert by_default.trace_hash == run_scenario(SMALL, SMALL.seed).trace_hash
    assert by_default.trace_hash != run_scenario(SMALL, SMALL.seed + 1).trace_hash


def test_checks_and_wire_mode_change_nothing() -> None:
    wire = msgspec.structs.replace(SMALL, network=msgspec.structs.replace(SMALL.network, wire=True))
    runs = [run_scenario(SMALL), run_scenario(SMALL, check=False), run_scenario(wire, check=True)]
    assert len({run.trace_hash for run in runs}) == 1
    assert [run.checks.safety for run in runs] == ["passed", "off", "passed"]
    assert [run.checks.liveness for run in runs] == ["passed", "off", "passed"]


def test_large_networks_are_checked_for_liveness_only() -> None:
    large = Scenario(
        name="large",
        network=NetworkSettings(
            nodes=simulated.SAFETY_NODES_MAX + 1, delays=5.0, join_interval_ms=1
        ),
        workload=WorkloadSettings(messages=1, settle_s=15.0, drain_s=1.0),
    )
    checks = run_scenario(large).checks
    assert (checks.safety, checks.liveness) == ("off", "passed")


def test_liveness_is_not_asked_of_a_network_that_stays_broken() -> None:
    lossy = msgspec.structs.replace(SMALL, faults=(Loss(probability=0.3, start_s=10.0),))
    result = run_scenario(lossy)
    assert result.checks.liveness == "a fault lasts to the end"
    assert result.figures.lost_after_healing == 0


def test_json_is_one_flat_object() -> None:
    fields = msgspec.json.decode(run_scenario(SMALL).as_json())
    wanted = {
        "scenario", "seed", "trace_hash", "nodes", "published", "expected", "delivered", "lost",
        "duplicates_per_message", "delay_ms", "hops", "degree", "connected", "events",
        "events_per_cpu_second", "cpu_seconds",
    }  # fmt: skip
    assert wanted <= fields.keys()
    assert fields["delay_ms"].keys() == {"mean", "p50", "p99", "max"}
    assert fields["hops"].keys() == {"mean", "max"}
    assert fields["degree"] == {"min": 4, "max": 4, "nodes": {"4": 8}}


def test_a_failed_check_says_seed_and_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "safety_checkers", lambda: [FailsAt(16.0)])
    with pytest.raises(SimulationFailure) as caught:
        run_scenario(SMALL, 5, overrides=["workload.messages=10"])
    assert str(caught.value).startswith("seed 5, t = 16.")
    assert "InvariantViolated: planted" in str(caught.value)
    last = str(caught.value).splitlines()[-1]
    assert last == "replay: shoal lab run small --seed 5 --set workload.messages=10"


def test_a_lost_message_fails_liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    # Loss that the scenario does not know of.
    monkeypatch.setattr(Scenario, "healed_s", 0.0)
    lossy = msgspec.structs.replace(SMALL, faults=(Loss(probability=1.0, start_s=15.0),))
    with pytest.raises(SimulationFailure, match=r"deliveries never came.*\nreplay: .* --seed 1$"):
        run_scenario(lossy)


@pytest.mark.parametrize(
    ("overrides", "check", "tail"),
    [
        ([], None, ""),
        ([], True, " --check"),
        (["network.nodes=9"], False, " --set network.nodes=9 --no-check"),
        (['about="two words"'], None, """ --set 'about="two words"'"""),
    ],
)
def test_the_replay_command_repeats_everything(
    overrides: list[str], check: bool | None, tail: str
) -> None:
    assert replay_command("x", 7, overrides, check) == f"shoal lab run x --seed 7{tail}"


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.sim.simulation.PROGRESS_EVENTS", 100)
    told: list[RunProgress] = []
    run_scenario(SMALL, progress=told.append)
    assert len(told) > 3
    assert [p.events for p in told] == sorted(p.events for p in told)
    assert all(0 < p.fraction < 1 and p.done <= p.end for p in told)
    assert told[-1].fraction > 0.5, "the estimate is about right"


def test_the_collector_is_left_as_it_was() -> None:
    before = gc.get_threshold()
    during: list[int] = []

    def fail() -> None:
        with quiet_collector():
            during.extend(gc.get_threshold())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during[0] > before[0]
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
