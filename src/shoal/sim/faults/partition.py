"""Networks that fall in two."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.ids import NodeId
from shoal.base.units import ns_of_seconds
from shoal.sim.faults.base import Fault, NotNegative, pick
from shoal.sim.network import Frame, LinkEnd, Shaper
from shoal.sim.simulation import Simulation


class Partition(Fault, frozen=True, kw_only=True, tag="partition"):
    """Cuts some nodes off from the rest: given regions, or a random fraction.

    Messages across the cut are lost, and so, after detect_s, are the links; dials time out.
    """

    end_s: NotNegative
    regions: tuple[str, ...] = ()
    fraction: Annotated[float, Meta(gt=0, lt=1)] | None = None
    role: str = "node"
    detect_s: NotNegative = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.regions) == (self.fraction is not None):
            raise ConfigError(
                f"regions = {list(self.regions)}, fraction = {self.fraction}: "
                "give either regions or a fraction"
            )

    def install(self, simulation: Simulation) -> None:
        simulation.at_s(self.start_s, lambda: self._begin(simulation))

    def _begin(self, simulation: Simulation) -> None:
        nodes = simulation.with_role(self.role)
        if self.fraction is not None:
            away = pick(nodes, self.fraction, simulation.fault_random("partition"))
        else:
            away = [node for node in nodes if node.region in self.regions]
            if not away:
                raise ConfigError(f"{self!r}: no {self.role} is in these regions")
        cut = _Cut(simulation, dict.fromkeys(node.id for node in away))
        simulation.add_shaper(cut)
        self.announce(simulation, f"{len(away)} nodes cut off")
        detect_ns = ns_of_seconds(self.detect_s)
        simulation.scheduler.after(detect_ns, cut.time_out)

        def heal() -> None:
            cut.heal()
            self.announce(simulation, "heals")

        simulation.at_s(self.end_s, heal)


class _Cut(Shaper):
    def __init__(self, simulation: Simulation, away: dict[NodeId, None]) -> None:
        self._simulation = simulation
        self._away = away
        self._healed = False

    def cuts(self, a: NodeId, b: NodeId) -> bool:
        return (a in self._away) != (b in self._away)

    def shape(self, end: LinkEnd, frame: Frame, arrivals_ns: list[int]) -> list[int]:
        return [] if self.cuts(end.host.node, end.peer) else arrivals_ns

    def time_out(self, _: None) -> None:
        """Both sides give up on the links across."""
        if not self._healed:
            for end in self._across():
                end.broke("timeout")

    def heal(self) -> None:
        """Messages pass again, and so does the news of links closed meanwhile."""
        self._healed = True
        self._simulation.remove_shaper(self)
        for end in self._across():
            if not end.partner.open:
                end.closed_by_peer("closed")

    def _across(self) -> list[LinkEnd]:
        running = [node.host for node in self._simulation.nodes.values() if node.host is not None]
        ends = [end for host in running for end in host.ends.values()]
        return [end for end in ends if self.cuts(end.host.node, end.peer)]
