"""What a report knows of search networks: a few numbers per point, and no DataFrame."""

from __future__ import annotations

import msgspec


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
