"""How fast, and how well, nodes come to know the network: in peace, and while nodes come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.units import seconds
from shoal.protocols.search.measuring.measurement import NO_ROUND, is_newer
from shoal.protocols.search.messages import Totals
from shoal.sim.checkers import Checker
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.search.network import GROWN_SETTINGS, MOST, GrownNetwork, is_near, off_by
from shoal_lab.experiments.search.options import MeasurementOptions, life_events, options_of
from shoal_lab.experiments.search.probes import bare_stage
from shoal_lab.experiments.search.survey import Moment, Moments, search_tables
from shoal_lab.experiments.search.workload import Churn
from shoal_lab.experiments.search_model.figures import StageFigures
from shoal_lab.experiments.search_model.gossip import STEPS_MAX, Step
from shoal_lab.scenarios.experiment_kinds import ExperimentKind, Rows, Tables
from shoal_lab.scenarios.scenario import Scenario
from shoal_lab.testbed.simulated import simulated

ROUND_S_MAX = 700.0  # a round ends after ten minutes, whatever happens
MOMENT_S = 5.0
ROUND_S = 130.0  # in the mean, for the estimate of the time left


class MeasurementFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What rounds came to."""

    nodes: int
    locations: str
    session_s: float
    rounds: tuple[RoundFigures, ...]
    known: float
    """What part of the nodes knew the network as it was within 5 %, in the mean over time."""
    least_known: float
    goings: dict[str, int]
    """How many have started, left and crashed."""

    @property
    def steps(self) -> list[int | None]:
        """Of each round."""
        return [round.steps for round in self.rounds]


class MeasurementExperiment:
    """A network that grows, and is watched for some rounds."""

    def __init__(
        self, scenario: Scenario, seed: int, checkers: Sequence[Checker], replay: str
    ) -> None:
        self.scenario = scenario
        self.options = options_of(scenario, MeasurementOptions)
        self.network = GrownNetwork(
            scenario, seed, self.options.location_range(), checkers=checkers, replay=replay
        )
        self._rounds = Rounds(self.network)
        self._moments = Moments(self.network, MOMENT_S)
        self._stages: list[StageFigures] = []
        self._begin_s = 0.0

    @property
    def simulation(self) -> Simulation:
        return self.network.simulation

    def expected_events(self) -> int:
        return round(expected_events(self.scenario))

    def run(self) -> None:
        self.network.grow()
        self._begin_s = self.simulation.time_s
        churn = Churn(self.network, self.options)
        churn.begin()
        self._moments.begin()
        rounds = self.options.rounds
        self._rounds.watch(rounds, (rounds + 1) * ROUND_S_MAX)
        self._moments.stop()
        self._stages.append(bare_stage(self.network, "end"))

    def figures(self) -> MeasurementFigures:
        known = [moment.shape.known for moment in self._told()]
        return MeasurementFigures(
            nodes=self.scenario.network.nodes,
            locations=str(self.options.locations),
            session_s=self.options.session_s,
            rounds=self._rounds.figures(),
            known=fmean(known),
            least_known=min(known),
            goings=dict(self.network.counts),
        )

    def record(self) -> Callable[[str], Tables]:
        return lambda run: partial(
            search_tables, run, self._stages, steps=self._rounds.steps, moments=self._told()
        )

    def unhealed(self) -> str:
        return "nodes come and go to the end" if self.options.session_s else ""

    def check_liveness(self, figures: MeasurementFigures) -> None:
        if len(figures.rounds) < self.options.rounds or None in figures.steps:
            raise InvariantViolated(
                f"{self.options.rounds} rounds were asked for; 99 % of the nodes were within 5 % "
                f"after {_steps(figures)} steps of those that were seen"
            )

    def _told(self) -> tuple[Moment, ...]:
        return self._moments.told((), self._begin_s)


def measurement_rows(figures: MeasurementFigures) -> Rows:
    """All of it, for a table."""
    rows = [("network", f"{figures.nodes:,} nodes of {figures.locations} locations")]
    if figures.session_s:
        goings = ", ".join(f"{count:,} {name}" for name, count in sorted(figures.goings.items()))
        rows.append(("nodes stay", f"{figures.session_s:g} s in the mean: {goings}"))
    for number, round in enumerate(figures.rounds, 1):
        steps = "never" if round.steps is None else f"after {round.steps} steps"
        rows.append(
            (
                f"round {number}",
                f"within 5 % at 99 % of the nodes {steps}; over after {round.lasted_s:.0f} s, with "
                f"{round.within:.2%} within 5 %, {round.off:.2%} off in the mean",
            )
        )
    rows.append(
        ("known", f"within 5 % to {figures.known:.2%} in the mean, {figures.least_known:.2%} least")
    )
    return rows


def measurement_line(figures: MeasurementFigures) -> str:
    """The most important ones."""
    return (
        f"within 5 % at 99 % of the nodes after {_steps(figures)} steps; at any time "
        f"{figures.known:.2%} within 5 %"
    )


def _steps(figures: MeasurementFigures) -> str:
    return ", ".join("never" if steps is None else str(steps) for steps in figures.steps) or "no"


def expected_events(scenario: Scenario) -> float:
    """About how many events of the simulator a scenario takes."""
    options = options_of(scenario, MeasurementOptions)
    lasts_s = (options.rounds + 1) * ROUND_S
    return life_events(scenario.network.nodes, options.location_range(), lasts_s)


MEASUREMENT = ExperimentKind(
    name="search/measurement",
    run=simulated(MeasurementExperiment),
    figures=MeasurementFigures,
    rows=measurement_rows,
    line=measurement_line,
    cost=expected_events,
    reads=GROWN_SETTINGS,
    options=MeasurementOptions,
)

# Rounds of the measurement, as seen from outside: how fast nodes come to know the network.
#
# A round begins when the first node begins it. A step is five seconds: a beat, but in small
# networks, which beat faster. At each step a node counts that has all three sums within 5 %: of its
# estimate while it is in the round, and of its result once it has gone on to the next one.


LOOK_S = 1.0


class RoundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One round."""

    steps: int | None
    """Until 99 % of the nodes were within 5 %; None: they never were."""
    lasted_s: float
    """From its first node to the first of the next round."""
    within: float
    """What part of the nodes was within 5 % with what they took for its result."""
    off: float
    """How far the worst of the three sums of a node was off then, in the mean."""


class _Round:
    def __init__(self, number: int, place: int, at_s: float) -> None:
        self.number = number
        self.place = place
        self.at_s = at_s
        self.next_s: float | None = None
        self.steps: list[Step] = []
        self.result: tuple[float, float] | None = None


class Rounds:
    """Watches a network that has grown."""

    def __init__(self, network: GrownNetwork) -> None:
        self._network = network
        self._newest = NO_ROUND
        self._first = True
        self._open: list[_Round] = []
        self._done: list[_Round] = []

    def watch(self, rounds: int, within_s: float) -> None:
        """Let time pass until so many whole rounds were seen, or for so long."""
        simulation = self._network.simulation
        end_s = simulation.time_s + within_s
        while len(self._done) < rounds and simulation.time_s < end_s:
            simulation.run_for(LOOK_S)
            self._look(simulation.time_s)

    @property
    def steps(self) -> list[Step]:
        """Of all rounds that were seen to their end."""
        return [step for round in self._done for step in round.steps]

    def figures(self) -> tuple[RoundFigures, ...]:
        """Of the same rounds."""
        told = []
        for round in self._done:
            enough = (step.step for step in round.steps if step.within >= MOST)
            assert round.next_s is not None
            assert round.result is not None
            within, off = round.result
            told.append(
                RoundFigures(
                    steps=next(enough, None),
                    lasted_s=round.next_s - round.at_s,
                    within=within,
                    off=off,
                )
            )
        return tuple(told)

    def _look(self, now_s: float) -> None:
        self._find_new(now_s)
        beat_s = seconds(self._network.config.beat_ns)
        for round in list(self._open):
            due = len(round.steps) + 1
            if now_s < round.at_s + due * beat_s:
                continue
            within, off, ended = self._judge(round)
            round.steps.append(Step(due, round.place, within))
            if ended or due >= STEPS_MAX:
                # Everybody has its result, or never will.
                round.result = within, off
                round.next_s = round.next_s or now_s
                self._open.remove(round)
                self._done.append(round)

    def _find_new(self, now_s: float) -> None:
        newest = self._newest
        for node in self._network.running():
            number = self._network.machine(node).parts.measurement.round
            if number != NO_ROUND and (newest == NO_ROUND or is_newer(number, newest)):
                newest = number
        if newest == self._newest:
            return
        if not self._first:  # the first that is seen may have begun long ago
            for round in self._open:
                round.next_s = round.next_s or now_s
            place = len(self._done) + len(self._open)
            self._open.append(_Round(newest, place, now_s))
        self._first, self._newest = False, newest

    def _judge(self, round: _Round) -> tuple[float, float, bool]:
        true, near, errors, inside = self._network.true_totals(), 0, [], 0
        running = self._network.running()
        for node in running:
            measurement = self._network.machine(node).parts.measurement
            found: Totals | None = None
            if measurement.round == round.number:
                found, inside = measurement.estimate, inside + 1
            elif measurement.round != NO_ROUND and is_newer(measurement.round, round.number):
                found = measurement.known
            near += is_near(found, true)
            if found is not None:
                errors.append(off_by(found, true))
        ended = round.next_s is not None and not inside
        return near / max(1, len(running)), fmean(errors) if errors else 1.0, ended
