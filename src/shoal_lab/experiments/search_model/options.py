"""What a scenario of the model may ask for."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.protocols.search.bubbles.bubble_size import BALANCE_MAX
from shoal_lab.scenarios.scenario import Scenario

LOCATIONS_MIN, LOCATIONS_MAX = 2, 100
BUBBLES_MAX = 10_000  # of each kind; all pairs of them are looked at
HOLDERS_MAX = 16

_RANGE = re.compile(r"(\d{1,4})-(\d{1,4})")
_EVENT = re.compile(r"(crash|leave) (\d{1,2}) ?%")


class Event(NamedTuple):
    """What happens to the network."""

    kind: Literal["none", "crash", "leave"]
    part: float
    """Of all nodes, to whom it happens."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[options] of these experiments."""

    locations: str | int = "2-10"
    """Of each node: a number, or a range of which all are equally likely."""

    event: str = "none"
    """What happens: "none", "crash 50 %" or "leave 90 %", of all nodes at once."""

    rejoin_below: Annotated[int, Meta(ge=1, le=LOCATIONS_MAX)] = 2
    """After a crash, who has fewer edges than this asks hosts that it knows of; others look for new
    neighbours through those they have. The protocol has 2: who has one neighbour left, or none."""

    bubbles: Annotated[int, Meta(ge=0, le=BUBBLES_MAX)] = 300
    """Of data, and as many queries, for each certainty; every pair counts. 0: no matches."""

    balance: Annotated[float, Meta(ge=1 / BALANCE_MAX, le=BALANCE_MAX)] = 1.0
    """Traffic of queries over that of data: above 1, data bubbles are larger than query bubbles."""

    holders: Annotated[int, Meta(ge=0, le=HOLDERS_MAX)] = 3
    """Nodes that are tried as owners of the largest fish. 0: no measurement."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        self.location_range()
        self.happening()

    def location_range(self) -> tuple[int, int]:
        """Fewest and most locations of a node."""
        told = str(self.locations)
        found = _RANGE.fullmatch(told if "-" in told else f"{told}-{told}")
        low, high = map(int, found.groups()) if found else (0, 0)
        if not LOCATIONS_MIN <= low <= high <= LOCATIONS_MAX:
            raise ConfigError(
                f"locations = {self.locations!r}: write a number from {LOCATIONS_MIN} to "
                f"{LOCATIONS_MAX}, or a range such as '2-10'"
            )
        return low, high

    def happening(self) -> Event:
        """What the event's words say."""
        if self.event == "none":
            return Event("none", 0.0)
        found = _EVENT.fullmatch(self.event)
        if found is None or not int(found[2]):
            raise ConfigError(
                f"event = {self.event!r}: write 'none', or 'crash 50 %' or 'leave 90 %' with 1 to "
                "99 per cent of the nodes"
            )
        return Event("crash" if found[1] == "crash" else "leave", int(found[2]) / 100)


def options_of(scenario: Scenario) -> ModelOptions:
    """The options of a scenario, also of one that was not read from a file."""
    return scenario.options or ModelOptions()
