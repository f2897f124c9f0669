"""A subscriber far from Spark, that goes away and comes back: it goes on where it was."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from typing import Any

from campaigns.kills import Failure
from campaigns.spark_town import COUNTED, Town
from shoal.base.ids import MessageId

QUEUE_MAX = 50_000
OVERLAP = timedelta(minutes=5)
"""Rows of several chains come, and one may be behind another. What came before is known by id."""


class FarSubscriber:
    """What arrived over all its lives."""

    def __init__(self, town: Town) -> None:
        self.rows: list[Any] = []
        self._town = town
        self._had: set[MessageId] = set()
        self._last: datetime | None = None
        self._stack = AsyncExitStack()
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin, or go on."""
        node = await self._stack.enter_async_context(self._town.visitor())
        stream = await node.open_stream(COUNTED)
        start = "earliest" if self._last is None else self._last - OVERLAP
        messages = await self._stack.enter_async_context(
            stream.subscribe(start, queue_max=QUEUE_MAX)
        )
        self._listening = asyncio.create_task(self._listen(messages))

    async def close(self) -> None:
        """Go away; nothing is heard meanwhile."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    async def _listen(self, messages: Any) -> None:
        async for message in messages:
            if message.gap_before is not None:
                raise Failure(f"a gap before {message.id}: {message.gap_before}")
            if message.id not in self._had:
                self._had.add(message.id)
                self.rows.append(message.content)
                self._last = message.timestamp
