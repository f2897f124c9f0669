"""What a scenario of durable topics may ask for besides network, workload and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.lab.scenario import NODES_MAX, Scenario
from shoal.lab.topics.tables import digest_workload
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

    workload_digest: str | msgspec.UnsetType = msgspec.UNSET
    """Of that folder's tables, filled in when it is read: other tables are another run."""

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


def pin_workload(options: TopicsOptions | None) -> TopicsOptions | None:
    """With the whole path of a workload, and the digest of its tables; ConfigError if these are
    others by now."""
    if options is None or options.workload is None:
        return options
    digest, known = digest_workload(options.workload), options.workload_digest
    if known not in (msgspec.UNSET, digest):
        raise ConfigError(
            f"options.workload_digest = {known!r}: {options.workload} has other tables by now, "
            f"with {digest}: put the old ones back, or begin anew"
        )
    whole = str(Path(options.workload).absolute())
    return msgspec.structs.replace(options, workload=whole, workload_digest=digest)


def options_of(scenario: Scenario) -> TopicsOptions:
    """The options of a scenario, also of one that was not read from a file."""
    return scenario.options or TopicsOptions()
