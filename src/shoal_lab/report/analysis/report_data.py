"""What a report is made of: a few numbers per run and per point, and no DataFrame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal_lab.runs.result_schema import Packets, TopicFigures
from shoal_lab.runs.run_frames import Problem

STRETCH_STEPS = 100
"""Stretch is counted in hundredths."""
STRETCH_MAX = 100
"""What is longer counts as this: within a region the direct way takes a tenth of a millisecond,
and a thousand times that is no worse than a hundred times."""


class Spread(msgspec.Struct, frozen=True):
    """One figure over the repeats of a point."""

    mean: float
    min: float
    max: float
    repeats: int


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One run. None: there is nothing to say it from."""

    run: str
    seed: int
    messages: int | None = None
    expected: int | None = None
    delivered: int | None = None
    coverage: float | None = None
    duplicates_per_message: float | None = None
    mean_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    hops_mean: float | None = None
    hops_max: int | None = None
    unicast_ms: float | None = None
    rdp: float | None = None
    """Against the mean of the delay table, as the sources take it."""
    direct_ms: float | None = None
    """Mean direct delay over all ordered pairs of distinct nodes, where policies are compared."""
    tracker_ms: float | None = None
    """Mean delay as the tracker foretold it, over the nodes that published."""
    tracker_error_percent: float | None = None
    publisher_mape_percent: float | None = None
    """Of the tracker, over publishers."""
    shortest_ms: float | None = None
    """Mean delay along the shortest paths of the overlay as it was at the end."""
    shortest_error_percent: float | None = None
    topics: TopicFigures | None = None
    """Of a run of durable topics."""
    packets: Packets | None = None
    """Of a run under packet loss."""

    @property
    def node_rdp(self) -> float | None:
        """The relative delay penalty against pairs of distinct nodes."""
        return self.mean_ms / self.direct_ms if self.mean_ms and self.direct_ms else None

    @property
    def host_late_ms(self) -> float | None:
        """How much later than planned hosts published, in the mean, in a run under packet loss."""
        return None if self.packets is None else self.packets.host_late_us_mean / 1000


class DelayCurve(msgspec.Struct, frozen=True, kw_only=True):
    """All deliveries of a point taken together."""

    delivered: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cdf: tuple[tuple[float, float], ...]
    """Delay in milliseconds, and the share that took so long or less."""


class PairMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """How often each pair of nodes was linked, over many overlays."""

    nodes: int
    degree: int
    overlays: int
    pairs: int
    mean: float
    """Probability of a pair, in the mean over all of them."""
    deviation: float
    """Standard deviation over pairs."""
    least: float
    most: float
    block_p_value: float | None
    """The chance of links between early and late nodes at least this uneven, if they are random;
    over all repeats, each of which was tested by itself."""
    cells: tuple[tuple[float, ...], ...]
    """The matrix in squares of several nodes a side: the mean probability in each."""


class Diameter(msgspec.Struct, frozen=True, kw_only=True):
    """The diameters of the overlays of one size and degree."""

    nodes: int
    degree: int
    overlays: int
    min: int
    mean: float
    max: int


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Delay through the overlay over direct delay, of ordered pairs of nodes that had messages."""

    pairs: int
    quantiles: tuple[tuple[float, float], ...]
    """A share of the pairs, and the stretch that so many do not pass."""
    no_longer: float
    """The share that the overlay takes no longer for than the direct way."""
    cdf: tuple[tuple[float, float], ...]
    """Stretch, and the share of pairs with so much or less."""


class LinkMap(msgspec.Struct, frozen=True, kw_only=True):
    """The links of an overlay between the places of its nodes."""

    places: tuple[tuple[float, float], ...]
    """Of each node, in the unit square: near in delay is near on the map."""
    links: tuple[tuple[int, int, float], ...]
    """Node, node, and milliseconds one way."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All runs with the same settings."""

    scenario: str
    about: str
    settings: dict[str, Any]
    """All of them, by dotted name."""
    label: str
    """Those that tell this point from the others of its scenario."""
    runs: tuple[RunFigures, ...]
    delays: DelayCurve | None = None
    matrix: PairMatrix | None = None
    diameters: tuple[Diameter, ...] = ()
    stretch: Stretch | None = None
    links: LinkMap | None = None
    search: SearchPoint | None = None

    @property
    def nodes(self) -> int:
        """How many take part; 0 if the settings do not say."""
        return _number(self.settings.get("network.nodes"))

    @property
    def degree(self) -> int:
        """Neighbours of a node; 0 if the settings do not say."""
        return _number(self.settings.get("network.degree"))

    @property
    def planned_messages(self) -> int:
        """How many are published in a run; 0 if the settings do not say."""
        each = self.settings.get("workload.messages_per_node")
        return _number(
            self.settings.get("workload.messages") if each is None else each * self.nodes
        )

    def over_repeats(self, figure: str) -> Spread | None:
        """Mean, least and greatest of one figure of the runs; None if no run has it."""
        values = self.values(figure)
        if not values:
            return None
        return Spread(sum(values) / len(values), min(values), max(values), len(values))

    def values(self, figure: str) -> list[float]:
        """One figure of all runs that have it."""
        found = (getattr(run, figure) for run in self.runs)
        return [float(value) for value in found if value is not None]


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """A run over sockets and the simulation of the same settings and seed."""

    scenario: str
    label: str
    """Of the point, whatever it ran on."""
    seed: int
    simulator: str
    sockets: str
    """The two runs."""
    nodes: tuple[tuple[float, float], ...]
    """Of each node the mean delay in milliseconds, simulated and over sockets."""
    hops: tuple[tuple[int, int, int], ...]
    """Links taken, and how many deliveries took so many: simulated, and over sockets."""
    links: tuple[int, int, int]
    """That both have, that only the simulation has, and only the run over sockets."""
    late_ms: float | None = None
    """How much too late frames were given over sockets, in the mean."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What made runs, where it is the same for several."""

    commit: str
    shoal: str
    python: str
    machine: str
    packages: dict[str, str]
    runs: int


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of runs, as a report tells of it."""

    folder: str
    points: tuple[Point, ...]
    provenance: tuple[Provenance, ...]
    replays: tuple[tuple[str, str], ...]
    """One run of each point, and the command that repeats it."""
    problems: tuple[Problem, ...]
    twins: tuple[Twin, ...] = ()

    @property
    def runs(self) -> int:
        """How many could be read."""
        return sum(len(point.runs) for point in self.points)

    def of(self, scenario: str) -> list[Point]:
        """The points of one scenario, smallest first."""
        return [point for point in self.points if point.scenario == scenario]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


# What a report knows of search networks: a few numbers per point, and no DataFrame.


class StageOfSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The network in one stage, in the mean over runs."""

    stage: str
    runs: int
    nodes: float
    edges: float
    least_part: float
    threshold: float


class MatchOfSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of bubbles of one certainty in one stage, over all runs."""

    stage: str
    certainty: float
    data: str
    pairs: int
    matched: float
    error: float
    theory: float
    data_size: float
    query_size: float
    reached: float
    messages: float
    collisions: float
    hops_max: int
    hops_bound: int


class LoadOfSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of all nodes of one degree in one stage."""

    stage: str
    degree: int
    nodes: int
    messages: int


class MomentOfSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The network at a time, in the mean over runs, and all searches from then on."""

    time_s: int
    nodes: float
    largest_part: float
    complete: float
    known: float
    old_searches: int
    old_found: int
    new_searches: int
    new_found: int


class WatchesOfSearch(msgspec.Struct, frozen=True, kw_only=True):
    """All standing queries of a point."""

    queries: int
    due: int
    told: int
    told_again: int
    least_told: float | None


class SearchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """All of one point."""

    stages: tuple[StageOfSearch, ...]
    """In no order of time: a report knows it."""
    matches: tuple[MatchOfSearch, ...] = ()
    loads: tuple[LoadOfSearch, ...] = ()
    steps: tuple[int | None, ...] = ()
    """Of all rounds, or holders of the largest fish, of all runs."""
    curve: tuple[tuple[int, float], ...] = ()
    """Step, and what part of the nodes was within 5 %."""
    moments: tuple[MomentOfSearch, ...] = ()
    watches: WatchesOfSearch | None = None


def mean_absolute(errors_percent: Sequence[float]) -> float | None:
    """The mean absolute percentage error over overlays, as the paper takes it (MAPE)."""
    return math.fsum(map(abs, errors_percent)) / len(errors_percent) if errors_percent else None
