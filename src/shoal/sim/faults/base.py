"""What faults have in common: when they are, and whom they hit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.kernel.records import FaultInjected
from shoal.sim.network import Shaper

if TYPE_CHECKING:
    from shoal.sim.simulation import SimNode, Simulation

Probability = Annotated[float, Meta(ge=0, le=1)]
LARGE = 1e9  # beyond any use; keeps out inf, which TOML can write
NotNegative = Annotated[float, Meta(ge=0, le=LARGE)]
Positive = Annotated[float, Meta(gt=0, le=LARGE)]


class Fault(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True
):
    """Something that goes wrong, from start_s to end_s (none: to the end of the run)."""

    start_s: Annotated[float, Meta(ge=0)] = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ConfigError(
                f"end_s = {self.end_s:g}: end_s must come after start_s = {self.start_s:g}"
            )

    def install(self, simulation: Simulation) -> None:
        """Schedule this fault."""
        raise TypeError(f"{type(self).__name__} says nothing of what it does")

    def announce(self, simulation: Simulation, what: str) -> None:
        """Leave a record: a trace without its faults explains nothing."""
        name = str(self.__struct_config__.tag)
        node = next(iter(simulation.nodes))
        simulation.trace.add(simulation.scheduler.now_ns, node, FaultInjected(name, what))


class LinkFault(Fault, frozen=True, kw_only=True):
    """A fault of every link, as long as it lasts."""

    def shaper(self, simulation: Simulation) -> Shaper:
        """What becomes of messages under this fault."""
        raise TypeError(f"{type(self).__name__} does not say what becomes of messages")

    def install(self, simulation: Simulation) -> None:
        shaper = self.shaper(simulation)

        def begin() -> None:
            simulation.add_shaper(shaper)
            self.announce(simulation, "begins")

        def end() -> None:
            simulation.remove_shaper(shaper)
            self.announce(simulation, "ends")

        simulation.at_s(self.start_s, begin)
        if self.end_s is not None:
            simulation.at_s(self.end_s, end)


def pick(nodes: Sequence[SimNode], fraction: float, rng: Random) -> list[SimNode]:
    """A random part of some nodes, in their order; at least one, if it is not none of them."""
    count = max(round(len(nodes) * fraction), min(len(nodes), math.ceil(fraction)))
    return sorted(rng.sample(list(nodes), count), key=lambda node: node.index)
