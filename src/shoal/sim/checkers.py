"""Checkers: safety at every step, liveness after faults have healed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from shoal.base.errors import InvariantViolated
from shoal.base.ids import MessageId, NodeId, short_node_id
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import CommandIssued, Input
from shoal.kernel.records import Delivered, Published
from shoal.protocols.streams.commands import LeaveStream

if TYPE_CHECKING:
    from shoal.sim.host import SimNode
    from shoal.sim.simulation import Simulation


class Checker(Protocol):
    """Raises InvariantViolated when it sees what must not be."""

    def step(self, node: SimNode, event: Input, effects: Sequence[Effect]) -> None:
        """A machine of this node took one input."""
        ...

    def quiet(self, simulation: Simulation) -> None:
        """Faults have healed and messages have drained."""
        ...


class MachineInvariants:
    """Every machine's own invariants, after each of its node's steps."""

    def step(self, node: SimNode, event: Input, effects: Sequence[Effect]) -> None:
        for machine in node.machines:
            machine.check_invariants()

    def quiet(self, simulation: Simulation) -> None:
        for node in simulation.nodes.values():
            for machine in node.machines if node.host is not None else ():
                machine.check_invariants()


class DeliveredOnce:
    """No subscriber gets a message twice between joining and leaving a stream, nor one that
    nobody published."""

    def __init__(self) -> None:
        self.published: dict[MessageId, NodeId] = {}
        self._delivered: dict[tuple[NodeId, int], set[MessageId]] = {}

    def step(self, node: SimNode, event: Input, effects: Sequence[Effect]) -> None:
        if isinstance(event, CommandIssued) and isinstance(event.command, LeaveStream):
            left = event.command.stream
            given = self._delivered.get((node.id, node.incarnation), set())
            given -= {message for message in given if message.stream == left}
        for effect in effects:
            if type(effect) is Published:
                self.published[effect.message] = node.id
            elif type(effect) is Delivered:
                self._deliver(node, effect.message)

    def quiet(self, simulation: Simulation) -> None:
        """Nothing to add: this is a safety property."""

    def delivered(self, node: SimNode) -> set[MessageId]:
        """What a node's running incarnation was given."""
        return self._delivered.get((node.id, node.incarnation), set())

    def _deliver(self, node: SimNode, message: MessageId) -> None:
        given = self._delivered.setdefault((node.id, node.incarnation), set())
        if message in given:
            raise InvariantViolated(f"{short_node_id(node.id)} was given {message} twice")
        if message not in self.published:
            raise InvariantViolated(f"{short_node_id(node.id)} was given {message}: unpublished")
        given.add(message)
