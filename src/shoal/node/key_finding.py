"""Looking for a key that a message needs: at storage nodes, where its publisher announced it, and
among those who may have it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.ids import KEYS_PARTITION, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.identity.stream_message import Position
from shoal.node.history import NodeHistory, merged
from shoal.node.tasks import Tasks
from shoal.protocols.streams.history.commands import MessageRange, ReadHistory
from shoal.protocols.streams.keys.commands import FindKey
from shoal.protocols.streams.keys.config import KEY_AGE_NS
from shoal.protocols.streams.keys.machine import KeyExchange
from shoal.protocols.streams.keys.waiting import key_of
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.runtime import RuntimeHost

UNDER_WAY_S = 0.2  # an announcement takes another path than the message behind it
PATIENCE_S = 5.0  # a reader of history waits so long for a key
WITHOUT_S = 30.0  # a key that was not found is not looked for again before
FINDS_MAX = 64
PUBLISHER_FINDS_MAX = 8  # one that names keys which there are not keeps nobody else's from us
NOT_FOUND_MAX = 4096
ROWS_MIN, ROWS_MAX = 128, 4096  # announcements that are read for one key: the next are wanted soon
NEAR_NS = 60 * S_NS  # keys that are used once are announced just before
SLACK_NS = 3600 * S_NS  # between announcing a key and sealing with it, clocks aside

Took = Callable[[VerifiedMessage], None]


class FoundOrNot:
    """The token of a FindKey."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def heard(self, event: Any) -> None:
        """The machine said something; what, the ring shows."""
        self.over.set()


class KeyFinder:
    """Each key is looked for once at a time, and given up for a while if nobody has it."""

    def __init__(
        self, host: RuntimeHost, exchange: KeyExchange, history: NodeHistory, took: Took
    ) -> None:
        """`took` is given the announcements that storage nodes have."""
        self._host = host
        self._exchange = exchange
        self._history = history
        self._took = took
        self._tasks = Tasks()
        self._finds: dict[bytes, asyncio.Event] = {}  # set when it is over
        self._of: dict[NodeId, int] = {}  # how many, of each publisher
        self._reading: dict[tuple[StreamId, NodeId], asyncio.Lock] = {}
        self._not_found: dict[bytes | NodeId, float] = {}  # until when, of keys and publishers

    def want(self, message: VerifiedMessage, delay_s: float = UNDER_WAY_S) -> None:
        """Look for the key of a message, unless that is under way or was in vain."""
        key = key_of(message)
        if key is None or key in self._finds or self.is_given_up(key):
            return
        publisher = message.id.publisher
        of_publisher = self._of.get(publisher, 0)
        full = len(self._finds) >= FINDS_MAX or of_publisher >= PUBLISHER_FINDS_MAX
        if self._exchange.ring.get(key) is None and not full:
            self._of[publisher] = of_publisher + 1
            self._finds[key] = asyncio.Event()
            self._tasks.start(self._find(key, message, delay_s))

    async def obtain(self, message: VerifiedMessage) -> None:
        """Return when the key of a message is here, or is not to be had. A publisher that makes
        readers wait in vain does so once in a while only, whatever keys it names."""
        key = key_of(message)
        if key is None or self._exchange.ring.get(key) is not None:
            return
        publisher = message.id.publisher
        self.want(message, 0.0)
        find = self._finds.get(key)
        if find is None or self.is_given_up(publisher):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await find.wait()
        if self._exchange.ring.get(key) is None:
            self._give_up(publisher)
            self._give_up(key)

    def is_given_up(self, what: bytes) -> bool:
        """Whether a key, or a publisher's keys, were looked for in vain a while ago."""
        return asyncio.get_running_loop().time() < self._not_found.get(what, 0.0)

    async def close(self) -> None:
        """Look for nothing any more."""
        await self._tasks.close()

    # Steps

    async def _find(self, key: bytes, message: VerifiedMessage, delay_s: float) -> None:
        ring = self._exchange.ring
        try:
            await asyncio.sleep(delay_s)
            if ring.get(key) is None:
                await self._ask_all(key, message)
            if ring.get(key) is None:
                self._give_up(key)
        finally:
            self._finds.pop(key).set()
            self._of[message.id.publisher] -= 1
            if not self._of[message.id.publisher]:
                del self._of[message.id.publisher]

    async def _ask_all(self, key: bytes, message: VerifiedMessage) -> None:
        """Return when one way has led to it, or all have ended."""
        ways = self._ask_storage(key, message), self._ask_others(key, message)
        tasks = {asyncio.ensure_future(way) for way in ways}
        try:
            while tasks and self._exchange.ring.get(key) is None:
                _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_others(self, key: bytes, message: VerifiedMessage) -> None:
        token = FoundOrNot()
        command = FindKey(message.id.stream, message.id.publisher, key)
        await self._host.issue(self._exchange, command, token)
        await token.over.wait()

    async def _ask_storage(self, key: bytes, message: VerifiedMessage) -> None:
        """Read what the publisher announced since its last key must have been made, and a reader
        that came later may have been given."""
        stream, publisher = message.id.stream, message.id.publisher
        at_ms = message.id.timestamp_ms
        near, far = at_ms - NEAR_NS // MS_NS, at_ms - (KEY_AGE_NS + SLACK_NS) // MS_NS
        lock = self._reading.setdefault((stream, publisher), asyncio.Lock())
        try:
            async with lock:  # one read finds the keys of many messages
                for what in (
                    MessageRange(Position(max(0, near), 0)),
                    MessageRange(Position(max(0, far), 0), Position(max(0, near), 0)),
                ):
                    with suppress(ShoalError):  # nobody keeps the stream, or answers: others may
                        await self._read(
                            key, ReadHistory(stream, KEYS_PARTITION, what, publisher, insist=True)
                        )
        finally:
            if not lock.locked():
                self._reading.pop((stream, publisher), None)

    async def _read(self, key: bytes, command: ReadHistory) -> None:
        rows, ring = 0, self._exchange.ring
        if ring.get(key) is not None:
            return
        async with self._history.open([command]) as reads:
            async for _, row in merged(reads):
                self._took(row.message)
                rows += 1
                found = ring.get(key) is not None
                if rows >= (ROWS_MIN if found else ROWS_MAX):
                    return

    def _give_up(self, what: bytes) -> None:
        self._not_found.pop(what, None)
        self._not_found[what] = asyncio.get_running_loop().time() + WITHOUT_S
        if len(self._not_found) > NOT_FOUND_MAX:
            del self._not_found[next(iter(self._not_found))]
