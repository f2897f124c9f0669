"""What scenarios of simulated search networks may ask for besides the network."""

from __future__ import annotations

import math
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.protocols.search.config import SearchConfig
from shoal_lab.experiments.search_model.options import BUBBLES_MAX, Event, ModelOptions
from shoal_lab.scenarios.scenario import Scenario, Seconds

LOCATIONS_MAX = SearchConfig().locations_max

Part = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class SearchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[options] that all of these experiments have."""

    locations: str | int = 3
    """Of each node: a number, or a range of which all are equally likely."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        _, high = self.location_range()
        if high > LOCATIONS_MAX:
            raise ConfigError(
                f"locations = {self.locations!r}: a node has {LOCATIONS_MAX} at most; more are for "
                "the model"
            )

    def location_range(self) -> tuple[int, int]:
        """Fewest and most locations of a node, in the words of the model."""
        return ModelOptions(locations=self.locations).location_range()


class MatchOptions(SearchOptions, frozen=True, kw_only=True):
    """Of search/match: pairs of bubbles, and what happens to the network."""

    event: str = "none"
    """What happens: "none", "crash 50 %" or "leave 90 %", of all nodes at once."""

    bubbles: Annotated[int, Meta(ge=1, le=BUBBLES_MAX)] = 200
    """Of data, and as many queries, for each certainty; every pair counts."""

    detect_s: Seconds = 15.0
    """After a crash: until links to the dead break. Machines that lost power say nothing."""

    searches_s: Annotated[float, Meta(gt=0, le=1000)] = 5.0
    """Around an event: searches a second for what was put before it, and as many for what was put
    just then."""

    quiet_s: Seconds = 60.0
    """So long before an event, and after the network has recovered, searches are counted."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        super().__post_init__()
        self.happening()

    def happening(self) -> Event:
        """What the event's words say."""
        return ModelOptions(event=self.event).happening()


class ChurnedOptions(SearchOptions, frozen=True, kw_only=True):
    """Nodes that come and go."""

    session_s: Seconds = 0.0
    """How long a node stays, in the mean; 0: for ever."""

    away_s: Annotated[float, Meta(gt=0, le=1e8)] = 60.0
    """How long it is gone then."""

    crashes: Part = 0.1
    """What part of the goings are crashes."""

    detect_s: Seconds = 15.0
    """Until links to the dead break."""


class MeasurementOptions(ChurnedOptions, frozen=True, kw_only=True):
    """Of search/measurement."""

    rounds: Annotated[int, Meta(ge=1, le=1000)] = 3
    """How many are looked at, once the network has grown."""


class ChurnOptions(ChurnedOptions, frozen=True, kw_only=True):
    """Of search/churn."""

    session_s: Seconds = 3600.0

    lasts_s: Seconds = 7200.0

    searches_s: Annotated[float, Meta(gt=0, le=1000)] = 2.0
    """Searches a second for documents of the beginning, and as many for those put just then."""


class WatchOptions(SearchOptions, frozen=True, kw_only=True):
    """Of search/watch."""

    queries: Count = 100
    """Standing ones, each of another node."""

    subjects: Count = 20
    """That queries and documents are about; each has one."""

    documents: Count = 500


AnyOptions = TypeVar("AnyOptions", bound=SearchOptions)


def options_of(scenario: Scenario, kind: type[AnyOptions]) -> AnyOptions:
    """The options of a scenario, also of one that was not read from a file."""
    return scenario.options or kind()


# What simulated search networks cost, in events of the simulator: for the estimate of the time
# left. Measured with 500 to 2,000 nodes.


JOIN_EVENTS = 60.0  # of one node, its walks and dials
PING_EVENTS_S = 0.2  # over one edge, each way
GROW_S = 250.0  # after the first join, until all know the network
STEP_EVENTS = 2.2  # of a bubble at a node: it comes, and its signature is checked
THRESHOLD_NODES = 1.5  # T over nodes, with three locations each


def life_events(nodes: int, locations: tuple[int, int], lasts_s: float) -> float:
    """Of nodes that join and then stay for so long."""
    edges = sum(locations)  # two at each, in the mean
    return nodes * (JOIN_EVENTS + edges * PING_EVENTS_S * (GROW_S + lasts_s))


def bubble_events(nodes: int, certainty: float) -> float:
    """Of one bubble."""
    return STEP_EVENTS * certainty * math.sqrt(THRESHOLD_NODES * nodes)
