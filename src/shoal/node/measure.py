"""Sums, minima and maxima over the whole network: every node adds what it has.

All nodes measure at once, in rounds that begin one after the other and take a minute or a few. What
a node contributes is part of every round that begins from then on, until it is withdrawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.base.errors import NotFound, SearchUnavailable, UsageError
from shoal.base.units import seconds
from shoal.node.search import NodeSearch
from shoal.protocols.search.columns import MAXIMUM, MINIMUM, SUM
from shoal.protocols.search.commands import Contribute
from shoal.protocols.search.rounds import NO_ROUND

ROUNDS_TIMEOUT_S = 30 * 60.0  # a round that does not come to rest ends after ten minutes
LOOKS_A_BEAT = 10  # rounds take several beats: none passes unseen
OURS = "shoal."  # names of the network's own columns begin with it


class Measure:
    """What is measured. Made by Node.measure."""

    def __init__(self, door: NodeSearch) -> None:
        self._door = door

    async def size(self) -> float:
        """How many nodes the network has, as it was measured last."""
        await self._door.when_joined()
        known = self._door.machine.parts.measurement.known
        assert known is not None  # whoever has joined knows
        return known.nodes

    async def sum(self, name: str, value: float | None = None) -> float:
        """Contribute this node's value, if there is one, and wait for the sum over all nodes of a
        round that it is part of."""
        return await self._measured(SUM + name, value)

    async def minimum(self, name: str, value: float | None = None) -> float:
        """As `sum`, for the smallest of all values."""
        return await self._measured(MINIMUM + name, value)

    async def maximum(self, name: str, value: float | None = None) -> float:
        """As `sum`, for the largest of all values."""
        return await self._measured(MAXIMUM + name, value)

    async def withdraw(self, name: str) -> None:
        """Contribute nothing of this name any more."""
        for kind in (SUM, MINIMUM, MAXIMUM):
            await self._door.say(Contribute(kind + name, None))

    async def _measured(self, column: str, value: float | None) -> float:
        name = column.partition(":")[2]
        if not name or name.startswith(OURS):
            raise UsageError(f"a measurement called {name!r}: give it a name, not {OURS}...")
        if self._door.machine.client:
            raise UsageError(
                f"{name}: a client has no part in measurements: leave out `client = true` in"
                " [search] of its network file"
            )
        await self._door.when_joined()
        if value is not None:
            await self._door.say(Contribute(column, float(value)))
        try:
            async with asyncio.timeout(ROUNDS_TIMEOUT_S):
                results = await self._whole_round()
        except TimeoutError:
            raise SearchUnavailable(
                f"{name}: no round ended within {ROUNDS_TIMEOUT_S:g} s: is this node cut off?"
            ) from None
        if column not in results:
            raise NotFound(
                f"{name}: nobody contributes to it: give a value, or have others give one"
            )
        return results[column]

    async def _whole_round(self) -> dict[str, float]:
        """The results of a round that began after now."""
        measurement = self._door.machine.parts.measurement
        begun = measurement.round
        if begun == NO_ROUND:  # the round in which a newcomer arrives goes on without it
            await self._until(lambda: measurement.round != NO_ROUND)
            begun = measurement.round
        await self._until(lambda: measurement.round != begun)
        before = measurement.extras
        await self._until(lambda: measurement.extras is not before)
        return measurement.extras

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._door.check_open()
            await asyncio.sleep(seconds(self._door.machine.config.beat_ns) / LOOKS_A_BEAT)
