"""For what may take long without a word from anybody: who waits is told, from the second second
on."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

QUICK_S = 2.0  # whoever waits this long does not wonder yet
PROGRESS_S = 5.0


class NowAndThen:
    """Whether it is time to say how far something is."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + QUICK_S

    @property
    def due(self) -> bool:
        """Asked often, true seldom."""
        if time.monotonic() < self._due_s:
            return False
        self._due_s = time.monotonic() + PROGRESS_S
        return True


@asynccontextmanager
async def waiting(what: str) -> AsyncIterator[None]:
    """Say what is waited for, now and then, until it is there."""
    telling = asyncio.get_running_loop().create_task(_tell(what))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(what: str) -> None:
    waited_s = QUICK_S
    await asyncio.sleep(QUICK_S)
    while True:
        print(f"waiting {what} ({waited_s:.0f} s)", file=sys.stderr, flush=True)
        await asyncio.sleep(PROGRESS_S)
        waited_s += PROGRESS_S
