"""What a report does one after the other, and about how long each part takes.

Only proportions matter: the time left is told from the time that went by. Seconds are those of a
report over 20 million deliveries on two cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

LOOKING = "looking at the files"
STARTING = "starting Spark"
COUNTING = "counting deliveries"
PATHS = "shortest paths"
OVERLAYS = "topologies"
COMPARING = "comparing policies"
SEARCHING = "search networks"
CHECKING = "a file cannot be read: checking every page"
WRITING = "writing the page"

START_S = 8.0
COUNT_S, COUNT_ROWS_PER_S = 6.0, 4_000_000
PATHS_S, PATH_LINKS_PER_S = 4.0, 30_000_000
"""A search from one node looks at all links."""
OVERLAYS_S, OVERLAYS_ROWS_PER_S = 1.0, 1_000_000
COMPARE_S, COMPARE_ROWS_PER_S = 8.0, 1_000_000
"""Pairs of nodes are grouped, and each looked up among the direct delays."""
SEARCH_S = 5.0
"""Small tables, and a query for each of them."""
RUN_S = 0.02
"""Opening the files of a run, for each of the tables."""
WRITE_S = 1.0


class Stage(msgspec.Struct, frozen=True):
    """A part of the work, and where it lies between nothing (0) and everything (1)."""

    said: str
    begin: float = 0.0
    end: float = 0.0


Tell = Callable[[Stage], None]
"""Hears what is being done, whenever that changes."""


def plan_stages(
    runs: Sequence[Mapping[str, int]], compared: Sequence[Mapping[str, int]] = ()
) -> dict[str, Stage]:
    """By what they say. `runs`: the rows of each table, of each run; `compared`: the same of those
    whose policies are compared."""
    total = Counter[str]()
    links = 0
    for tables in runs:
        total.update(tables)
        sources = min(tables.get("messages", 0), tables.get("nodes", 0))
        links += sources * tables.get("topologies", 0)
    costs_s = dict.fromkeys(
        (STARTING, COUNTING, PATHS, OVERLAYS, COMPARING, SEARCHING, WRITING), 0.0
    )
    costs_s |= {STARTING: START_S, WRITING: WRITE_S}
    if total["messages"]:
        costs_s[COUNTING] = COUNT_S + total["deliveries"] / COUNT_ROWS_PER_S + RUN_S * len(runs)
    if total["topologies"]:
        costs_s[PATHS] = PATHS_S + links / PATH_LINKS_PER_S + RUN_S * len(runs)
    if overlays := total["pairs"] + total["diameters"]:
        costs_s[OVERLAYS] = OVERLAYS_S + overlays / OVERLAYS_ROWS_PER_S
    if rows := sum(tables.get("deliveries", 0) + tables.get("delays", 0) for tables in compared):
        costs_s[COMPARING] = COMPARE_S + rows / COMPARE_ROWS_PER_S + RUN_S * len(compared)
    if total["search_stages"]:
        costs_s[SEARCHING] = SEARCH_S + RUN_S * len(runs)
    all_s, spent_s = sum(costs_s.values()), 0.0
    stages = {}
    for said, cost_s in costs_s.items():
        stages[said] = Stage(said, spent_s / all_s, (spent_s + cost_s) / all_s)
        spent_s += cost_s
    return stages
