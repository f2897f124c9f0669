"""Who finds what in a simulated network: while it is healthy, and around a crash or a leave.

Stages are those of the model, without "rerouted": real nodes reroute when they notice. Around an
event documents are put and looked for all the time (load.py), so that success can be told over
time; pairs of bubbles are counted stage by stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.units import ns_of_seconds
from shoal.protocols.search.bubbles.bubble_size import confidence_of
from shoal.protocols.search.config import SearchConfig
from shoal.sim.checkers import Checker
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.search.network import GROWN_SETTINGS, MOST, GrownNetwork
from shoal_lab.experiments.search.options import (
    MatchOptions,
    bubble_events,
    life_events,
    options_of,
)
from shoal_lab.experiments.search.probes import Looking
from shoal_lab.experiments.search.survey import (
    Found,
    Moment,
    Moments,
    count_found,
    said_found,
    search_tables,
)
from shoal_lab.experiments.search.workload import Load
from shoal_lab.experiments.search_model.figures import StageFigures, stage_rows, worst_match
from shoal_lab.experiments.search_model.study import CERTAINTIES, THEORY_NODES_MIN, check_theory
from shoal_lab.scenarios.experiment_kinds import ExperimentKind, Rows, Tables
from shoal_lab.scenarios.scenario import Scenario
from shoal_lab.testbed.simulated import simulated

# What a simulated network found, and how it is told.


class AroundEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Searches around a crash or a leave."""

    before: Found
    unnoticed: Found
    """Until links to the dead have broken."""
    noticed: Found
    """From then on until the network has recovered."""
    after: Found
    complete_s: float | None
    """After the event: until 99 % of the nodes had their neighbours, but for one; None: never."""
    known_s: float | None
    """The same, and 99 % knew the network as it is now, within 5 %."""
    isolated_s: float
    """How long a node was without any neighbour, at most."""
    least_part: float
    """What part of the living was in the largest component when that was smallest."""
    moments: tuple[Moment, ...]


class SimulatedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One network, and what became of it."""

    nodes: int
    locations: str
    event: str
    stages: tuple[StageFigures, ...]
    around: AroundEvent | None

    @property
    def last(self) -> StageFigures:
        """The stage in which the network stayed."""
        return self.stages[-1]


def match_rows(figures: SimulatedFigures) -> Rows:
    """All of it, for a table."""
    rows = [("network", f"{figures.nodes:,} nodes of {figures.locations} locations")]
    if figures.event != "none":
        rows.append(("event", figures.event))
    for stage in figures.stages:
        rows += stage_rows(stage)
    around = figures.around
    if around is not None:
        rows += [
            ("searches before", said_found(around.before)),
            ("until it was noticed", said_found(around.unnoticed)),
            ("until it was over", said_found(around.noticed)),
            ("searches after", said_found(around.after)),
            ("neighbours again", _after(around.complete_s)),
            ("size known again", _after(around.known_s)),
            ("largest part", f"{around.least_part:.2%} of the living at least"),
            ("alone", f"for {around.isolated_s:.0f} s at most"),
        ]
    return rows


def match_line(figures: SimulatedFigures) -> str:
    """The most important ones."""
    last = figures.last
    parts = [f"{last.nodes:,} nodes {last.stage}, largest part {last.largest_part:.2%}"]
    parts += worst_match(last)
    if figures.around is not None:
        parts.append(f"during the outage {said_found(figures.around.noticed)}")
        parts.append(f"size known again {_after(figures.around.known_s)}")
    return ", ".join(parts)


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.0f} s"


SAFETY_NODES_MAX = 4  # above it, checks after every step take most of the time
CERTAINTY = 2.0  # of documents and searches around an event
WARM_S = 200.0  # of load, before it counts: sizes follow the traffic, a round or two later
WARM_PER_S = 1.0  # and do not follow how much of it there is
OLD_DOCUMENTS = 200  # or one of each node, if there are fewer
OLD_WITHIN_S = 20.0
MOMENT_S = 5.0
NOTICED_S = 1.5  # after links broke: the longest way, and what nodes do then
RECOVERED_S_MAX = 1200.0
SUCCESS_MIN = 0.9
HALF = 0.5

EVENT_S = 600.0  # from it to the recovery, for the estimate of the time left


class MatchExperiment:
    """A network that grows, is looked at, and may lose most of its nodes."""

    def __init__(
        self, scenario: Scenario, seed: int, checkers: Sequence[Checker], replay: str
    ) -> None:
        self.scenario = scenario
        self.options = options_of(scenario, MatchOptions)
        self.network = GrownNetwork(
            scenario,
            seed,
            self.options.location_range(),
            SearchConfig(confidence=confidence_of(CERTAINTY)),
            checkers=checkers,
            replay=replay,
        )
        self._looking = Looking(self.network, self.options.bubbles)
        self._moments = Moments(self.network, MOMENT_S)
        self._stages: list[StageFigures] = []
        self._around: AroundEvent | None = None

    @property
    def simulation(self) -> Simulation:
        return self.network.simulation

    def expected_events(self) -> int:
        return round(expected_events(self.scenario))

    def run(self) -> None:
        self.network.grow()
        if self.options.event == "none":
            self._look("before", settled=True)
        else:
            self._play()

    def figures(self) -> SimulatedFigures:
        return SimulatedFigures(
            nodes=self.scenario.network.nodes,
            locations=str(self.options.locations),
            event=self.options.event,
            stages=tuple(self._stages),
            around=self._around,
        )

    def record(self) -> Callable[[str], Tables]:
        return lambda run: partial(
            search_tables,
            run,
            self._stages,
            moments=() if self._around is None else self._around.moments,
        )

    def unhealed(self) -> str:
        return ""

    def check_liveness(self, figures: SimulatedFigures) -> None:
        check_theory(figures.stages)
        around, event = figures.around, self.options.happening()
        if around is None or figures.nodes < THEORY_NODES_MIN:
            return
        if event.kind == "crash" and event.part > HALF:
            return  # what is left has lost too much of what was put before
        for data, part in (("old", around.noticed.old), ("new", around.noticed.new)):
            if part is not None and part < SUCCESS_MIN:
                raise InvariantViolated(
                    f"{part:.3f} of the searches for {data} data succeeded between the moment at "
                    f"which failed sends were noticed and the recovery: {SUCCESS_MIN:g} must"
                )

    # Around an event

    def _play(self) -> None:
        options, simulation = self.options, self.simulation
        load = Load(self.network, WARM_PER_S, confidence_of(CERTAINTY), "fading")
        load.begin()
        simulation.run_for(WARM_S)
        load.put_old(min(OLD_DOCUMENTS, self.scenario.network.nodes), OLD_WITHIN_S)
        self._look("before", settled=True)
        load.per_s = options.searches_s
        self._moments.begin()
        before_s = simulation.time_s
        simulation.run_for(max(1, options.quiet_s // MOMENT_S) * MOMENT_S)
        event_s = noticed_s = simulation.time_s
        self._happen()
        crashed = options.happening().kind == "crash"
        if crashed:
            noticed_s += options.detect_s + NOTICED_S
            self._outage(noticed_s)
        complete_s, known_s = self._recover(event_s)
        recovered_s = simulation.time_s
        simulation.run_for(options.quiet_s)
        load.stop()
        self._moments.stop()
        self._look("repaired" if crashed else "left", settled=True)

        def found(begin_s: float, end_s: float) -> Found:
            return count_found(one for one in load.asked if begin_s <= one.at_s < end_s)

        moments = self._moments.told(load.asked, event_s)
        self._around = AroundEvent(
            before=found(before_s, event_s),
            unnoticed=found(event_s, noticed_s),
            noticed=found(noticed_s, recovered_s),
            after=found(recovered_s, math.inf),
            complete_s=complete_s,
            known_s=known_s,
            isolated_s=self._moments.isolation.longest_s,
            least_part=min(moment.shape.largest_part for moment in moments),
            moments=moments,
        )

    def _happen(self) -> None:
        """To so many nodes at once; the first is among them, or not, as all others are."""
        event, network = self.options.happening(), self.network
        running = network.running()
        count = min(len(running) - 1, round(event.part * len(running)))
        for node in self.simulation.random("event").sample(running, count):
            if event.kind == "crash":
                network.crash(node, ns_of_seconds(self.options.detect_s))
            else:
                network.leave(node)

    def _outage(self, noticed_s: float) -> None:
        self._look("unnoticed", settled=False)
        if self.simulation.time_s < noticed_s:
            self.simulation.run_until_s(noticed_s)
        self._look("noticed", settled=False)

    def _recover(self, event_s: float) -> tuple[float | None, float | None]:
        """When all had their neighbours again, and when they knew the network as it is now."""
        complete_s: float | None = None
        while self.simulation.time_s < event_s + RECOVERED_S_MAX:
            self.simulation.run_for(MOMENT_S)
            shape = self._moments.last
            if complete_s is None and shape.complete >= MOST:
                complete_s = self.simulation.time_s - event_s
            if complete_s is not None and shape.known >= MOST:
                return complete_s, self.simulation.time_s - event_s
        return complete_s, None

    def _look(self, stage: str, *, settled: bool) -> None:
        self._stages.append(self._looking.look(stage, settled=settled))


def expected_events(scenario: Scenario) -> float:
    """About how many events of the simulator a scenario takes."""
    options, nodes = options_of(scenario, MatchOptions), scenario.network.nodes
    event, locations = options.happening(), options.location_range()
    probes = 2 * options.bubbles * bubble_events(nodes, sum(CERTAINTIES))
    if event.kind == "none":
        return life_events(nodes, locations, 0.0) + probes
    later_s = EVENT_S + 2 * options.quiet_s
    lives = life_events(nodes, locations, WARM_S + later_s * (1 - event.part))
    # Of a document, and of two searches.
    bubbles = 3 * (WARM_PER_S * WARM_S + options.searches_s * later_s)
    return lives + 3 * probes + bubbles * bubble_events(nodes, CERTAINTY)


MATCH = ExperimentKind(
    name="search/match",
    run=simulated(MatchExperiment, SAFETY_NODES_MAX),
    figures=SimulatedFigures,
    rows=match_rows,
    line=match_line,
    cost=expected_events,
    reads=GROWN_SETTINGS,
    options=MatchOptions,
)
