"""What a simulated network found, and how it is told."""

from __future__ import annotations

import msgspec

from shoal.lab.kinds import Rows
from shoal.lab.search.model.figures import StageFigures, stage_rows, worst_match
from shoal.lab.search.moments import Found, Moment


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


def said_found(found: Found) -> str:
    """What part of the searches succeeded."""
    told = []
    for name, part, count in (
        ("old", found.old, found.old_searches),
        ("new", found.new, found.new_searches),
    ):
        if part is not None:
            told.append(f"{part:.3f} of {count:,} for {name} data")
    return ", ".join(told) or "none"


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.0f} s"
