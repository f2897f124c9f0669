"""Memory links on which what one end writes can be kept on its way."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from shoal.transport import memory
from shoal.transport.endpoint import Endpoint
from shoal.transport.memory import MemoryCarrier
from tests.runtime.world import Inhabitant

HELLO = 1  # messages: a link of which no more came through is up at the writer, not at the reader
HANDSHAKE = 2

TURNS = 50  # of the event loop: all that can happen in memory has happened then


class SlowWire(MemoryCarrier):
    """Lets so many messages of its end through, and keeps the rest until it may go on."""

    plans: ClassVar[dict[Endpoint, list[int | None]]] = {}
    made: ClassVar[list[SlowWire]] = []

    def __init__(self, owner: Endpoint) -> None:
        super().__init__(owner)
        plan = self.plans.get(owner)
        self._through = plan.pop(0) if plan else None
        self._late: list[bytes | None] = []
        self.made.append(self)

    def _put(self, message: bytes) -> None:
        if self._through == 0:
            self._late.append(message)
            return
        if self._through is not None:
            self._through -= 1
        super()._put(message)

    def finish(self) -> None:
        if self._through == 0:
            self._late.append(None)
        else:
            super().finish()

    def go_on(self) -> None:
        """What was kept arrives."""
        self._through = None
        for message in self._late:
            if message is None:
                self.finish()
            else:
                self._put(message)


class Crossing:
    """Two connections between two nodes, made one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "MemoryCarrier", SlowWire)
        monkeypatch.setattr(SlowWire, "plans", {})
        monkeypatch.setattr(SlowWire, "made", [])

    def plan(self, writer: Inhabitant, *through: int | None) -> None:
        """How many messages of this one get through, on its connections as they are made."""
        SlowWire.plans[writer.transport] = list(through)

    def wires(self, writer: Inhabitant) -> list[SlowWire]:
        """Its ends of the connections that were made, oldest first."""
        return [wire for wire in SlowWire.made if wire._owner is writer.transport]


async def all_that_can() -> None:
    """Happen."""
    for _ in range(TURNS):
        await asyncio.sleep(0)
