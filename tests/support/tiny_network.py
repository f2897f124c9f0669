"""A few nodes with one scripted machine each, under the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS
from shoal.kernel.effects import Effect, OpenLink, Send
from shoal.kernel.inputs import MessageReceived
from shoal.kernel.records import Record
from shoal.sim import ConstantDelay, SimNode, Simulation
from shoal.sim.delays import DelayModel
from shoal.sim.simulation import START_NS
from shoal.sim.trace import Row, TraceHash
from tests.support.machines import Note, NoteCodec, React, Scripted, peer_id

R = TypeVar("R", bound=Record)

DELAY_MS = 10
PURPOSE = "test"


class TinyNetwork:
    """Nodes 0, 1, ... that do what they are told."""

    def __init__(
        self,
        nodes: int = 2,
        *,
        seed: int = 1,
        delays: DelayModel | None = None,
        react: React | None = None,
        machine: type[Scripted] = Scripted,
        **options: Any,
    ) -> None:
        options.setdefault("codecs", [NoteCodec()])
        delays = delays or ConstantDelay(DELAY_MS * MS_NS)
        self.simulation = Simulation(seed, delays, **options)
        self.rows: list[Row] = []
        self.hash = TraceHash()
        self.simulation.trace.to(self.rows.extend)
        self.simulation.trace.to(self.hash)
        self.react = react
        self.kind = machine
        self.machines: dict[tuple[NodeId, int], Scripted] = {}
        self.nodes = [self.simulation.add_node(peer_id(n), self._make) for n in range(nodes)]
        for node in self.nodes:
            node.start()

    def _make(self, node: SimNode) -> list[Scripted]:
        machine = self.machines[node.id, node.incarnation] = self.kind(react=self.react)
        return [machine]

    def machine(self, number: int) -> Scripted:
        """The machine of a node that runs."""
        return cast(Scripted, self.nodes[number].machines[0])

    def do(self, number: int, *effects: Effect) -> None:
        """A node carries out effects."""
        self.nodes[number].command(0, effects)

    def at(self, when_s: float, number: int, *effects: Effect) -> None:
        """A node carries out effects at a simulated time."""
        self.simulation.at_s(when_s, lambda: self.do(number, *effects))

    def run(self, duration_s: float) -> None:
        """Let time pass."""
        self.simulation.run_for(duration_s)

    def claim(self, a: int, b: int) -> OpenLink:
        """The effect by which a asks for its link to b."""
        return OpenLink(Contact(peer_id(b)), PURPOSE)

    def link(self, a: int = 0, b: int = 1) -> None:
        """Connect two nodes, claimed by both, and forget how it came."""
        self.do(a, self.claim(a, b))
        self.do(b, self.claim(b, a))
        self.run(1)
        self.machine(a).forget()
        self.machine(b).forget()

    def send(self, a: int, b: int, numbers: Sequence[int], padding: int = 0) -> None:
        """Node a sends Notes to b, all at once."""
        self.do(a, *[Send(Note(number, bytes(padding)), (peer_id(b),)) for number in numbers])

    def arrivals_ms(self, number: int) -> list[float]:
        """When messages reached a node, by its own clock, since the simulation began."""
        machine = self.machine(number)
        return [
            (time_ns - START_NS) / MS_NS
            for event, time_ns in zip(machine.inputs, machine.times_ns, strict=True)
            if isinstance(event, MessageReceived)
        ]

    def records(self, kind: type[R]) -> list[R]:
        """Every record of a kind so far."""
        self.simulation.trace.flush()
        return [row[2] for row in self.rows if isinstance(row[2], kind)]

    def now_ms(self) -> float:
        """Simulated time since the beginning."""
        return self.simulation.time_s * 1000
