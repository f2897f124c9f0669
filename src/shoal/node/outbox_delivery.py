"""Ready messages into the overlay, and on to the disk of a storage node.

Having each of them kept by a question of its own is slow: a storage node takes a thousand questions
a second of one asker. So the messages are flooded, the last of them is asked to be kept, and then
the storage nodes are asked once how many they have of the chain. What is missing after a while is
kept one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity.group_key import GroupKey
from shoal.identity.stream_message import Position
from shoal.node.history import NodeHistory, NotKept
from shoal.node.keys import NodeKeys
from shoal.protocols.streams.commands import ReadySent, SendReady
from shoal.protocols.streams.history.commands import CountDurable
from shoal.protocols.streams.messages import VerifiedMessage
from shoal.protocols.streams.node import StreamNode
from shoal.runtime import RuntimeHost

SENT_AT_ONCE = 64  # messages of one command: a millisecond or two of the event loop
PATIENCE_NS = 2 * S_NS  # stuck neighbours are waited for this long
NEIGHBOUR_S = 0.2  # between looks for a first neighbour
COUNT_S, COUNT_S_MAX = 0.01, 1.0  # between questions, each time twice as long: flooding takes time
KEPT_AT_ONCE = 32


class _Receipt:
    """The token of a SendReady."""

    def __init__(self) -> None:
        self.sent = False


class Delivery:
    """How the outbox of a node reaches others."""

    def __init__(
        self,
        host: RuntimeHost,
        machine: StreamNode,
        history: NodeHistory,
        stay: Callable[[StreamId], Awaitable[None]],
        keys: NodeKeys | None = None,
    ) -> None:
        """`stay` takes the node into a stream, and keeps it there."""
        self._host = host
        self._machine = machine
        self._history = history
        self._stay = stay
        self._keys = keys
        self._node: NodeId = machine.node
        host.listeners.append(_heard)

    async def announce(self, key: GroupKey) -> list[bytes] | None:
        """Give a key to those who may read its stream: what was signed, for `until_kept`. None if
        everybody may: it is not needed."""
        await self._stay(key.stream)
        return None if self._keys is None else await self._keys.announce(key)

    async def send(self, stream: StreamId, messages: Sequence[VerifiedMessage]) -> None:
        """Return when all of them are on their way to our neighbours."""
        self._host.demand_session()
        await self._stay(stream)
        for begin in range(0, len(messages), SENT_AT_ONCE):
            command = SendReady(stream, tuple(messages[begin : begin + SENT_AT_ONCE]))
            while True:
                await self._host.wait_for_room(PATIENCE_NS)
                receipt = _Receipt()
                await self._host.issue(self._machine, command, receipt)
                if receipt.sent:
                    break
                await asyncio.sleep(NEIGHBOUR_S)
            await asyncio.sleep(0)  # others have their turn

    async def until_kept(
        self, stream: StreamId, messages: Sequence[VerifiedMessage], announced: Sequence[bytes]
    ) -> None:
        """Return when a storage node has all of them on disk, and what announced their key, or the
        stream has none. All of one chain, in order; HistoryUnavailable if no storage node answers.
        """
        command = self._count_of(stream, messages)
        try:
            for signed in announced:  # or nobody could read the rows once we are gone
                await self._history.keep(stream, signed, 1)
            # A storage node that keeps whatever is brought to it joins the stream with this one.
            await self._history.keep(stream, messages[-1].signed, 1)
            pause_s, before = COUNT_S, -1
            while True:
                counted = await self._history.count(command)
                if counted.count >= len(messages) and not counted.unaware:
                    return
                if counted.count == before and pause_s >= COUNT_S_MAX:
                    return await self._keep_each(stream, messages)  # nothing more comes by itself
                before = counted.count
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, COUNT_S_MAX)
        except NotKept:
            return

    async def is_unknown(self, stream: StreamId, messages: Sequence[VerifiedMessage]) -> bool:
        """Whether no storage node has any of them; HistoryUnavailable if none answers."""
        try:
            counted = await self._history.count(self._count_of(stream, messages))
            return counted.count == 0
        except NotKept:
            return True

    def _count_of(self, stream: StreamId, messages: Sequence[VerifiedMessage]) -> CountDurable:
        first, last = messages[0].id, messages[-1].id
        return CountDurable(
            stream,
            first.partition,
            self._node,
            first.chain,
            Position(first.timestamp_ms, first.sequence),
            Position(last.timestamp_ms, last.sequence),
            len(messages),
        )

    async def _keep_each(self, stream: StreamId, messages: Sequence[VerifiedMessage]) -> None:
        for begin in range(0, len(messages), KEPT_AT_ONCE):
            some = messages[begin : begin + KEPT_AT_ONCE]
            await asyncio.gather(*(self._history.keep(stream, m.signed, 1) for m in some))


def _heard(event: object) -> None:
    if type(event) is ReadySent and isinstance(event.token, _Receipt):
        event.token.sent = event.sent
