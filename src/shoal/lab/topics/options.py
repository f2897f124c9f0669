"""What a scenario of durable topics may ask for besides network, workload and faults."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.lab.scenario import NODES_MAX, Scenario
from shoal.lab.topics.workload import INJECTORS, TOPICS

System = Literal["topics", "floodsub"]


class TopicsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[options] of these experiments."""

    system: System = "topics"
    """Ours, or libp2p's Floodsub as a baseline: see floodsub.py."""

    ordered: bool = False
    """Only a topic's author publishes in it, and all others ask it to: one chain of events. If not,
    everybody publishes after the last event seen. Floodsub has no order."""

    slow: bool = False
    """Every message takes 500 ms longer, give or take 300, as in the disturbed runs of the
    sources; dials and handshakes take 500 ms longer each way."""

    topics: Annotated[int, Meta(ge=1, le=NODES_MAX)] = TOPICS

    workload: str | None = None
    """A folder that `shoal pipeline reddit` wrote: its topics, readers and first `messages` events
    take the place of drawn ones, and `topics` and `size_bytes` say nothing."""

    injectors: Annotated[int, Meta(ge=1, le=NODES_MAX)] = INJECTORS

    kills: Annotated[int, Meta(ge=0, le=NODES_MAX)] = 0
    """So many nodes die in the middle of publishing, for good."""

    kill_authors: bool = False
    """Whether authors of topics are among those. An ordered topic ends with its author."""

    neighbours: Annotated[int, Meta(ge=1, le=NODES_MAX)] = 10
    """Of a Floodsub node, drawn at random; it has this many in the mean."""

    def __post_init__(self) -> None:
        if self.system == "floodsub" and self.ordered:
            raise ConfigError(
                "ordered = true: Floodsub knows no order: write false, or system = 'topics'"
            )


def options_of(scenario: Scenario) -> TopicsOptions:
    """The options of a scenario, also of one that was not read from a file."""
    return scenario.options or TopicsOptions()
