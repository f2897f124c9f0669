"""Search while nodes come and go: what is found, and what becomes of the circle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.protocols.search.bubbles.bubble_size import certainty_of
from shoal.protocols.search.config import SearchConfig
from shoal.sim.checkers import Checker
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.search.network import GROWN_SETTINGS, GrownNetwork
from shoal_lab.experiments.search.options import (
    ChurnOptions,
    bubble_events,
    life_events,
    options_of,
)
from shoal_lab.experiments.search.probes import bare_stage
from shoal_lab.experiments.search.survey import (
    Found,
    Moment,
    Moments,
    Survey,
    count_found,
    said_found,
    search_tables,
    survey,
)
from shoal_lab.experiments.search.workload import Churn, Load
from shoal_lab.experiments.search_model.figures import StageFigures
from shoal_lab.scenarios.experiment_kinds import ExperimentKind, Rows, Tables
from shoal_lab.scenarios.scenario import Scenario
from shoal_lab.testbed.simulated import simulated

SAFETY_NODES_MAX = 4  # above it, checks after every step take most of the time
WARM_S = 200.0  # of load, before it counts: sizes follow the traffic, a round or two later
OLD_DOCUMENTS = 200  # or one of each node, if there are fewer
OLD_WITHIN_S = 60.0
MOMENT_S = 60.0
SETTLE_S = 100.0  # nobody waits for anything after it
ISOLATED_S_MAX = 60.0


class ChurnFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    nodes: int
    session_s: float
    crashes: float
    lasts_s: float
    goings: dict[str, int]
    """How many have started, left and crashed."""
    races: dict[str, int]
    found: Found
    confidence: float
    """That was asked for."""
    known: float
    """What part of the nodes knew the network as it was within 5 %, in the mean over time."""
    complete: float
    """What part had its neighbours, but for one."""
    least_part: float
    isolated_s: float
    """How long a node was without any neighbour, at most."""
    holes: int
    """Neighbours that were missing at the end, when all had settled."""
    places: int
    half_open: int
    """Ends of edges whose other end did not know them then."""
    components: int


class ChurnExperiment:
    """A network whose nodes stay for a while."""

    def __init__(
        self, scenario: Scenario, seed: int, checkers: Sequence[Checker], replay: str
    ) -> None:
        self.scenario = scenario
        self.options = options_of(scenario, ChurnOptions)
        self.network = GrownNetwork(
            scenario, seed, self.options.location_range(), checkers=checkers, replay=replay
        )
        self.confidence = SearchConfig().confidence
        # What shall outlast its owner is durable.
        self._load = Load(self.network, self.options.searches_s, self.confidence, "durable")
        self._moments = Moments(self.network, MOMENT_S)
        self._stages: list[StageFigures] = []
        self._begin_s = 0.0
        self._seen: Survey | None = None

    @property
    def simulation(self) -> Simulation:
        return self.network.simulation

    def expected_events(self) -> int:
        return round(expected_events(self.scenario))

    def run(self) -> None:
        self.network.grow()
        self._load.begin()
        self.simulation.run_for(WARM_S)
        self._load.put_old(min(OLD_DOCUMENTS, self.scenario.network.nodes), OLD_WITHIN_S)
        self._begin_s = self.simulation.time_s
        churn = Churn(self.network, self.options)
        churn.begin()
        self._moments.begin()
        self.simulation.run_for(self.options.lasts_s)
        self._moments.stop()
        self._load.stop()
        churn.stop()
        self.simulation.run_for(self.options.away_s + SETTLE_S)
        self._seen = survey(self.network.circles())
        self._stages.append(bare_stage(self.network, "end"))

    def figures(self) -> ChurnFigures:
        shapes = [moment.shape for moment in self._told()]
        seen = self._seen
        assert seen is not None
        return ChurnFigures(
            nodes=self.scenario.network.nodes,
            session_s=self.options.session_s,
            crashes=self.options.crashes,
            lasts_s=self.options.lasts_s,
            goings=dict(self.network.counts),
            races=dict(sorted(self.network.races.items())),
            found=count_found(one for one in self._load.asked if one.at_s >= self._begin_s),
            confidence=self.confidence,
            known=fmean(shape.known for shape in shapes),
            complete=fmean(shape.complete for shape in shapes),
            least_part=min(shape.largest_part for shape in shapes),
            isolated_s=self._moments.isolation.longest_s,
            holes=seen.holes,
            places=seen.places,
            half_open=len(seen.half_open),
            components=seen.components,
        )

    def record(self) -> Callable[[str], Tables]:
        return lambda run: partial(search_tables, run, self._stages, moments=self._told())

    def unhealed(self) -> str:
        return ""

    def check_liveness(self, figures: ChurnFigures) -> None:
        if figures.components != 1:
            raise InvariantViolated(f"the network ended in {figures.components} parts")
        if figures.isolated_s > ISOLATED_S_MAX:
            raise InvariantViolated(f"a node was alone for {figures.isolated_s:.0f} s")

    def _told(self) -> tuple[Moment, ...]:
        return self._moments.told(self._load.asked, self._begin_s)


def churn_rows(figures: ChurnFigures) -> Rows:
    """All of it, for a table."""
    goings = ", ".join(f"{count:,} {name}" for name, count in sorted(figures.goings.items()))
    races = ", ".join(f"{count:,} {name}" for name, count in figures.races.items())
    return [
        ("network", f"{figures.nodes:,} nodes, for {figures.lasts_s:,.0f} s"),
        ("nodes stay", f"{figures.session_s:g} s in the mean: {goings}"),
        ("searches", f"{said_found(figures.found)}, asked for {figures.confidence:g}"),
        ("size known", f"within 5 % to {figures.known:.2%} of the nodes in the mean"),
        ("neighbours", f"{figures.complete:.2%} of the nodes have theirs, but for one"),
        ("largest part", f"{figures.least_part:.2%} of the nodes at least"),
        ("alone", f"for {figures.isolated_s:.0f} s at most"),
        ("races", races or "none"),
        (
            "at the end",
            f"{figures.holes:,} holes at {figures.places:,} places, {figures.half_open} half open "
            f"edges, in {figures.components} parts",
        ),
    ]


def churn_line(figures: ChurnFigures) -> str:
    """The most important ones."""
    return (
        f"{said_found(figures.found)}; size known to {figures.known:.2%}, alone for "
        f"{figures.isolated_s:.0f} s at most"
    )


def expected_events(scenario: Scenario) -> float:
    """About how many events of the simulator a scenario takes."""
    options, nodes = options_of(scenario, ChurnOptions), scenario.network.nodes
    lasts_s = WARM_S + OLD_WITHIN_S + options.lasts_s
    bubbles = 3 * lasts_s * options.searches_s  # of a document, and of two searches
    certainty = certainty_of(SearchConfig().confidence)
    return life_events(nodes, options.location_range(), lasts_s) + bubbles * bubble_events(
        nodes, certainty
    )


CHURN = ExperimentKind(
    name="search/churn",
    run=simulated(ChurnExperiment, SAFETY_NODES_MAX),
    figures=ChurnFigures,
    rows=churn_rows,
    line=churn_line,
    cost=expected_events,
    reads=GROWN_SETTINGS,
    options=ChurnOptions,
)
