"""Standing queries: some nodes leave one, others put documents later. Who is told of what?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from shoal.base.errors import InvariantViolated
from shoal.base.units import S_NS
from shoal.protocols.search.bubbles.bubble_size import certainty_of
from shoal.protocols.search.commands import PutDocument, Seen, WatchDocuments
from shoal.protocols.search.config import SearchConfig
from shoal.sim.checkers import Checker
from shoal.sim.simulation import Simulation
from shoal_lab.experiments.search.network import GROWN_SETTINGS, SEARCH_SLOT, GrownNetwork
from shoal_lab.experiments.search.options import (
    WatchOptions,
    bubble_events,
    life_events,
    options_of,
)
from shoal_lab.experiments.search.probes import bare_stage
from shoal_lab.experiments.search.survey import search_tables
from shoal_lab.experiments.search_model.figures import StageFigures
from shoal_lab.scenarios.experiment_kinds import ExperimentKind, Rows, Tables
from shoal_lab.scenarios.scenario import Scenario
from shoal_lab.testbed.simulated import simulated

LEFT_S = 5.0  # until queries are where they wait
DRAIN_S = 10.0
LIFE_NS = 600 * S_NS
ERRORS_MAX = 4.0  # standard errors that the part of told documents may be below the confidence


class WatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. An event is a document and a standing query that it matches."""

    nodes: int
    queries: int
    documents: int
    confidence: float
    """Stated: of the configuration that all nodes have."""
    due: int
    """Events."""
    told: int
    """Of which the owner of the query heard."""
    told_again: int
    """More than once."""
    wrong: int
    """Documents that do not match, or came before the query."""

    @property
    def part(self) -> float:
        """Of the events, those that reached the owner."""
        return self.told / self.due if self.due else 1.0

    @property
    def error(self) -> float:
        """The standard error of the stated confidence, over queries that miss by themselves."""
        return math.sqrt(self.confidence * (1 - self.confidence) / max(1, self.queries))


class WatchExperiment:
    """A network with standing queries."""

    def __init__(
        self, scenario: Scenario, seed: int, checkers: Sequence[Checker], replay: str
    ) -> None:
        self.scenario = scenario
        self.options = options_of(scenario, WatchOptions)
        self.network = GrownNetwork(
            scenario, seed, self.options.location_range(), checkers=checkers, replay=replay
        )
        self._rng = self.simulation.random("watching")
        self._subject_of: dict[str, int] = {}
        self._told: Counter[tuple[int, str]] = Counter()
        self._stages: list[StageFigures] = []
        for node in self.network.nodes:
            node.listeners.append(self._hear)

    @property
    def simulation(self) -> Simulation:
        return self.network.simulation

    def expected_events(self) -> int:
        return round(expected_events(self.scenario))

    def run(self) -> None:
        self.network.grow()
        nodes, options = self.network.nodes, self.options
        owners = self._rng.sample(nodes, min(options.queries, len(nodes)))
        for query, owner in enumerate(owners):
            text = f"title:{_subject(self._about(query))}"
            owner.command(SEARCH_SLOT, WatchDocuments(text), query)
        self.simulation.run_for(LEFT_S)
        interval_s = self.scenario.workload.interval_ms / 1000
        for number in range(options.documents):
            when_s = self.simulation.time_s + number * interval_s
            self.simulation.at_s(when_s, partial(self._put, number))
        self.simulation.run_for(options.documents * interval_s + DRAIN_S)
        self._stages.append(bare_stage(self.network, "end"))

    def figures(self) -> WatchFigures:
        rows = self._watches()
        return WatchFigures(
            nodes=self.scenario.network.nodes,
            queries=len(rows),
            documents=len(self._subject_of),
            confidence=self.network.config.confidence,
            due=sum(row["due"] for row in rows),
            told=sum(row["told"] for row in rows),
            told_again=sum(row["told_again"] for row in rows),
            wrong=sum(
                self._about(query) != self._subject_of.get(name) for query, name in self._told
            ),
        )

    def record(self) -> Callable[[str], Tables]:
        return lambda run: partial(search_tables, run, self._stages, watches=self._watches())

    def unhealed(self) -> str:
        return ""

    def check_liveness(self, figures: WatchFigures) -> None:
        if figures.told_again or figures.wrong:
            raise InvariantViolated(
                f"{figures.told_again} documents were told again, {figures.wrong} do not match"
            )
        least = figures.confidence - ERRORS_MAX * figures.error
        if figures.part < least:
            raise InvariantViolated(
                f"{figures.part:.4f} of {figures.due} events reached the owner of their query, "
                f"{figures.confidence:g} is the stated confidence"
            )

    def _about(self, query: int) -> int:
        return query % self.options.subjects

    def _put(self, number: int) -> None:
        node = self.network.draw_ready(self._rng)
        if node is None:
            return
        subject, name = self._rng.randrange(self.options.subjects), f"document{number}"
        self._subject_of[name] = subject
        content = {"title": _subject(subject), "number": number}
        node.command(SEARCH_SLOT, PutDocument(name, content, "fading", LIFE_NS), name)

    def _hear(self, event: Any) -> None:
        if type(event) is Seen and isinstance(event.token, int):
            self._told[event.token, event.document.name] += 1

    def _watches(self) -> list[dict[str, int]]:
        due = Counter(self._subject_of.values())
        told: Counter[int] = Counter()
        again: Counter[int] = Counter()
        for (query, _), times in self._told.items():
            told[query] += 1
            again[query] += times - 1
        queries = range(min(self.options.queries, len(self.network.nodes)))
        return [
            {
                "query": query,
                "due": due[self._about(query)],
                "told": told[query],
                "told_again": again[query],
            }
            for query in queries
        ]


def watch_rows(figures: WatchFigures) -> Rows:
    """All of it, for a table."""
    return [
        ("network", f"{figures.nodes:,} nodes"),
        ("standing queries", f"{figures.queries:,}"),
        ("documents", f"{figures.documents:,}"),
        (
            "events told",
            f"{figures.told:,} of {figures.due:,} ({figures.part:.4f}); confidence "
            f"{figures.confidence:g}",
        ),
        ("told again", f"{figures.told_again:,}, and {figures.wrong:,} that do not match"),
    ]


def watch_line(figures: WatchFigures) -> str:
    """The most important ones."""
    return (
        f"{figures.told:,} of {figures.due:,} events told ({figures.part:.4f}, confidence "
        f"{figures.confidence:g}), {figures.told_again:,} again"
    )


def expected_events(scenario: Scenario) -> float:
    """About how many events of the simulator a scenario takes."""
    options, nodes = options_of(scenario, WatchOptions), scenario.network.nodes
    lasts_s = options.documents * scenario.workload.interval_ms / 1000
    bubbles = options.documents + options.queries
    certainty = certainty_of(SearchConfig().confidence)
    return life_events(nodes, options.location_range(), lasts_s) + bubbles * bubble_events(
        nodes, certainty
    )


def _subject(number: int) -> str:
    return f"subject{number}"


WATCH = ExperimentKind(
    name="search/watch",
    run=simulated(WatchExperiment),
    figures=WatchFigures,
    rows=watch_rows,
    line=watch_line,
    cost=expected_events,
    reads=GROWN_SETTINGS | {"interval_ms"},
    options=WatchOptions,
)
