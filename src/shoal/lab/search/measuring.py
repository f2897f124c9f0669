"""How fast, and how well, nodes come to know the network: in peace, and while nodes come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.lab.kinds import ExperimentKind, Rows, Tables
from shoal.lab.scenario import Scenario
from shoal.lab.search.churn import Churn
from shoal.lab.search.costs import life_events
from shoal.lab.search.grown import GROWN_SETTINGS, GrownNetwork
from shoal.lab.search.looking import bare_stage
from shoal.lab.search.model.figures import StageFigures
from shoal.lab.search.moments import Moment, Moments
from shoal.lab.search.options import MeasurementOptions, options_of
from shoal.lab.search.rounds import RoundFigures, Rounds
from shoal.lab.search.tables import search_tables
from shoal.lab.simulated import simulated
from shoal.sim.checkers import Checker
from shoal.sim.simulation import Simulation

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
