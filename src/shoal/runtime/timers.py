"""Timers of machines, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from shoal.base.units import seconds

Fire = Callable[[int, Hashable], None]


class Timers:
    """By machine and key: setting one again replaces it."""

    def __init__(self, fire: Fire) -> None:
        self._fire = fire
        self._loop = asyncio.get_running_loop()
        self._handles: dict[tuple[int, Hashable], asyncio.TimerHandle] = {}

    def set(self, slot: int, key: Hashable, delay_ns: int) -> None:
        """Fire once, so much later."""
        self.cancel(slot, key)
        handle = self._loop.call_later(seconds(delay_ns), self._due, slot, key)
        self._handles[slot, key] = handle

    def cancel(self, slot: int, key: Hashable) -> None:
        """A cancelled timer never fires."""
        handle = self._handles.pop((slot, key), None)
        if handle is not None:
            handle.cancel()

    def clear(self) -> None:
        """Cancel them all."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def __len__(self) -> int:
        """How many are set."""
        return len(self._handles)

    def _due(self, slot: int, key: Hashable) -> None:
        del self._handles[slot, key]
        self._fire(slot, key)
