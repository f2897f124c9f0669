"""The registry of a simulated network: what everybody may do, told late, and away at times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.access import Permission, Tell, Verdict
from shoal.kernel.inputs import AccessChanged

if TYPE_CHECKING:
    from shoal.sim.simulation import Simulation

FOREVER_NS = 2**63 - 1
UNREACHABLE = "the simulated chain is out of reach"


class SimAccess:
    """The access port of all nodes. Nobody may do anything until it is granted.

    A change counts at once for whoever asks, and is told `poll_ns` later to those who asked
    before. During an outage nothing is answered and nothing told; what was, counts for
    `staleness_ns` after the last time that the chain was there.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.answer_ns = 5 * MS_NS
        self.poll_ns = 250 * MS_NS
        self.staleness_ns = 120 * S_NS
        self._simulation = simulation
        self._ends_ns: dict[tuple[StreamId, NodeId, Permission], int] = {}
        self._away = False
        self._untold: list[AccessChanged] = []

    def grant(
        self, stream: StreamId, who: NodeId, kinds: Permission, until_ns: int = FOREVER_NS
    ) -> None:
        """Give permissions until a time."""
        for kind in kinds:
            self._ends_ns[stream, who, kind] = until_ns
        self._change(AccessChanged(stream, who))

    def revoke(self, stream: StreamId, who: NodeId, kinds: Permission) -> None:
        """Take permissions away."""
        self.grant(stream, who, kinds, until_ns=0)

    def go_away(self) -> None:
        """The chain is out of reach from now on."""
        self._away = True

    def come_back(self) -> None:
        """The chain is there again; what changed meanwhile is told."""
        self._away = False
        self._simulation.scheduler.after(self.poll_ns, self._tell)

    def check(self, stream: StreamId, who: NodeId, tell: Tell) -> None:
        now_ns = self._simulation.scheduler.now_ns
        if self._away:
            tell(Verdict(0, now_ns, UNREACHABLE))
            return
        permissions, until_ns = 0, now_ns + self.staleness_ns
        for kind in Permission:
            end_ns = self._ends_ns.get((stream, who, kind), 0)
            if now_ns < end_ns:
                permissions |= kind
                until_ns = min(until_ns, end_ns)
        tell(Verdict(permissions, until_ns))

    def _change(self, change: AccessChanged) -> None:
        self._untold.append(change)
        self._simulation.scheduler.after(self.poll_ns, self._tell)

    def _tell(self, _: None) -> None:
        if self._away:
            return
        changes, self._untold = self._untold, []
        for node in self._simulation.nodes.values():
            for change in changes:
                if node.host is not None:
                    node.host.access_changed(change)
