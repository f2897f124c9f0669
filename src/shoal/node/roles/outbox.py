"""The outbox of a node: what Spark queries hand in, it signs and publishes, and lets nothing go
before a storage node has it.

Where there is a registry, the node has to be permitted to publish before anything is staged or
sealed: a query that may not is told so, and nothing of its batch is published.

Everything durable is in `storage/outbox.py`; one thread works on it. A query's parts go out one
after the other: signed in that thread, sent by the stream machine, and then asked after at the
storage nodes of the stream. While one part is asked after, the next is signed. A stream that nobody
keeps is done with when it is sent, as whatever else is published there.

After a crash the parts that were not done with are signed and sent again. They come out the same,
so whoever has them drops them by their ids.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec

from shoal.base.errors import ConfigError, ShoalError, UsageError
from shoal.base.gateway_messages import Fingerprint
from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.base.units import MS_NS, S_NS
from shoal.config.network_file import NetworkFile
from shoal.config.sections import OutboxSection
from shoal.identity import Entropy, PrivateKey, read_secret
from shoal.identity.group_key import GroupKey, Sealer
from shoal.identity.message_body import Position
from shoal.node.background import Tasks
from shoal.node.clock_guard import ClockGuard
from shoal.node.keys.group_keys import NodeKeys
from shoal.node.streams.history import NodeHistory, NotKept
from shoal.node.streams.message import Partitions
from shoal.protocols.streams.commands import CountDurable, ReadySent, SendReady
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.signed_message import Seal, VerifiedMessage, sign_message
from shoal.runtime import RuntimeHost
from shoal.storage.config import OutboxConfig
from shoal.storage.errors import OutboxFull
from shoal.storage.outbox import Outbox
from shoal.storage.outbox_file import Attempt, ChunkPlace, Holder, QueryState, SealAnswer, Sending

MEGABYTE = 1_000_000
TOKEN_CHARS_MIN = 16  # a shorter one can be guessed
SWEEP_S = 10.0
RETRY_S = 1.0  # after something went wrong

T = TypeVar("T")
Permit = Callable[[StreamId], Awaitable[None]]
"""Raises why this node may not publish in a stream, and learns its terms."""
StagedRow = tuple[int, int | None, str | None, bytes]
"""Content type, partition, key, content."""

log = logging.getLogger("shoal.outbox")


class OutboxState(msgspec.Struct, frozen=True):
    """What the outbox holds, for people and programs."""

    size_bytes: int
    size_bytes_max: int
    waiting_parts: int
    problem: str | None
    holder: Holder | None
    """The batch that may use all room but a shared part; others wait for it."""
    queries: list[QueryState]


class _Part(msgspec.Struct, frozen=True):
    """Rows of a query that go out together."""

    sending: Sending
    messages: list[VerifiedMessage]
    announced: list[bytes]
    """What gave their key to the readers, signed."""


class OutboxRole:
    """Made before the host, started after it."""

    def __init__(
        self,
        network: NetworkFile,
        section: OutboxSection,
        key: PrivateKey,
        entropy: Entropy,
        partitions: Partitions,
    ) -> None:
        """Opens the outbox; StoreError if that cannot be."""
        self.token = read_secret("token", section.token, network.path("."), os.environ)
        if len(self.token) < TOKEN_CHARS_MIN:
            raise ConfigError(
                f"outbox.token: {len(self.token)} characters can be guessed: use"
                f" {TOKEN_CHARS_MIN} or more"
            )
        config = OutboxConfig(size_bytes_max=int(section.megabytes_max * MEGABYTE))
        self.outbox = Outbox(network.path(section.folder), key.address, entropy, config)
        self.problem: str | None = None
        """Why nothing is published now, for people; None if all is well."""
        self._key = key
        self._partitions = partitions
        self._now_ns: Callable[[], int] = lambda: 0
        self._clock: ClockGuard | None = None
        self._delivery: Delivery | None = None
        self._permit: Permit | None = None
        self._tasks = Tasks()
        self._draining: set[int] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-outbox")

    def check(self) -> str | None:
        """For readiness: why what was sealed is not published now."""
        return None if self.problem is None else f"nothing is published: {self.problem}"

    # Life

    def start(
        self, delivery: Delivery, host: RuntimeHost, clock: ClockGuard, permit: Permit
    ) -> None:
        """The node runs: publish what is left from before."""
        self._delivery, self._now_ns, self._permit = delivery, host.wall_ns, permit
        self._clock = clock
        self._drain_all()
        self._tasks.start(self._sweep())

    async def close(self) -> None:
        """What is not done with is published at the next start."""
        await self._tasks.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self.outbox.close)
        self._thread.shutdown()

    # What queries ask

    async def take_epoch(self, query: str, run: str, stream: StreamId, *, once: bool) -> int:
        """The epoch of a run; it fences all runs before."""
        await self._may_publish(stream)
        return await self._do(self.outbox.take_epoch, query, run, stream, once, self._now_ns())

    async def stage(self, stream: StreamId, at: ChunkPlace, rows: Sequence[StagedRow]) -> bool:
        """Keep rows of a task; False if their batch was sealed before."""
        await self._may_publish(stream)
        groups = self._grouped(stream, rows)
        try:
            return await self._do(self.outbox.stage, at, groups, self._now_ns())
        except OutboxFull as error:
            if not error.publishing or self.problem is None:
                raise
            raise OutboxFull(f"{error}; {self.problem}", publishing=True) from error

    async def seal(
        self,
        query: str,
        epoch: int,
        batch: int,
        attempts: Sequence[Attempt],
        fingerprint: Fingerprint = Fingerprint(),  # noqa: B008 - it is frozen
    ) -> SealAnswer:
        """Decide what a batch is, and begin to publish it."""
        known = await self._do(self.outbox.query_state, query)
        await self._may_publish(StreamId(known.stream))
        await self._check_clock()
        answer = await self._do(
            self.outbox.seal, query, epoch, batch, attempts, self._now_ns(), fingerprint
        )
        self._drain_all()
        return answer

    async def discard(self, query: str, epoch: int, batch: int) -> None:
        """What was staged of a batch is not needed."""
        await self._do(self.outbox.discard, query, epoch, batch)

    async def discard_attempt(
        self, query: str, epoch: int, batch: int, partition: int, attempt: int
    ) -> None:
        """What an attempt of a task staged is not needed."""
        await self._do(self.outbox.discard_attempt, query, epoch, batch, partition, attempt)

    async def state(self, query: str | None = None) -> OutboxState:
        """All queries, or one of them."""

        def look() -> OutboxState:
            box = self.outbox
            queries = box.state() if query is None else [box.query_state(query)]
            most = box.config.size_bytes_max
            waiting, holder = box.waiting_parts(), box.holder()
            return OutboxState(box.size_bytes, most, waiting, self.problem, holder, queries)

        return await self._do(look)

    # Publishing

    def _drain_all(self) -> None:
        for number in self.outbox.waiting():
            if number not in self._draining:
                self._draining.add(number)
                self._tasks.start(self._drain(number))

    async def _drain(self, number: int) -> None:
        """Publish all that a query has sealed."""
        try:
            await self._insist(lambda: self._publish_parts(number))
        finally:
            self._draining.discard(number)
        self._drain_all()  # something may have been sealed in the last moment

    async def _publish_parts(self, number: int) -> None:
        delivery = self._delivery
        assert delivery is not None  # it was started
        part = await self._signed(delivery, number, -1)
        while part is not None:
            stream, place = part.sending.stream, part.sending.place
            await delivery.send(stream, part.messages)
            # The next one is signed while storage nodes write this one down.
            following = asyncio.ensure_future(self._signed(delivery, number, place))
            try:
                kept = partial(delivery.until_kept, stream, part.messages, part.announced)
                await self._insist(kept)
            finally:
                part = await following
            await self._do(self.outbox.done, number, place)

    async def _insist(self, work: Callable[[], Awaitable[None]]) -> None:
        """Try until it works: what was sealed is to be published, however long it takes."""
        while True:
            try:
                await work()
                self.problem = None
                return
            except ShoalError as error:
                if str(error) != self.problem:
                    log.error("what was sealed cannot be published now: %s", error)
                self.problem = str(error)
                await asyncio.sleep(RETRY_S)

    async def _signed(self, delivery: Delivery, number: int, after: int) -> _Part | None:
        """The next part of a query as messages: whenever it is asked for, the same bytes."""
        await self._check_clock()
        sending = await self._do(self.outbox.begin, number, after, self._now_ns())
        if sending is None:
            return None
        part = await self._sign(delivery, sending)
        ahead_ns = sending.first.timestamp_ms * MS_NS - self._now_ns()
        if ahead_ns > NodeConfig().future_ns and await delivery.is_unknown(
            sending.stream, part.messages
        ):
            # It was begun while the clock was wrong, so everybody has refused it.
            place = sending.place
            moved = await self._do(self.outbox.move, number, place, self._now_ns())
            part = await self._sign(delivery, moved)
        return part

    async def _sign(self, delivery: Delivery, sending: Sending) -> _Part:
        key = GroupKey.derived(self._key, first_id(self._key.address, sending))
        announced = await delivery.announce(key)
        seal = None if announced is None else Sealer(key).seal
        messages = await self._do(sign_rows, self._key, sending, seal)
        return _Part(sending, messages, announced or [])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._clock is None or not self._clock.is_settled:
                continue  # by a wrong time, what is needed would be swept up
            try:
                while await self._do(self.outbox.sweep, self._now_ns()):
                    await asyncio.sleep(0)
            except ShoalError as error:
                log.error("leftovers cannot be swept up: %s", error)

    # Steps

    async def _check_clock(self) -> None:
        """ClockWrong while rows would get a wrong time: they would have to keep it."""
        if self._clock is not None:
            await self._clock.check()

    async def _may_publish(self, stream: StreamId) -> None:
        assert self._permit is not None  # it was started
        await self._permit(stream)

    def _grouped(
        self, stream: StreamId, rows: Sequence[StagedRow]
    ) -> Mapping[int, list[tuple[int, bytes]]]:
        """Rows by partition; those that name neither key nor partition take turns together."""
        groups: dict[int, list[tuple[int, bytes]]] = {}
        turn: int | None = None
        for content_type, partition, key, content in rows:
            if partition is None and key is None:
                if turn is None:
                    turn = self._partitions.choose(stream, None, None)
                chosen = turn
            else:
                chosen = self._partitions.choose(stream, key, partition)
            groups.setdefault(chosen, []).append((content_type, content))
        return groups

    async def _do(self, work: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
        except RuntimeError as error:  # the thread is gone
            raise UsageError("this node is closed: open another one") from error


def first_id(node: NodeId, sending: Sending) -> MessageId:
    """Where a part begins: fixed on disk before any of it is sent, and of no other part."""
    first = sending.first
    return MessageId(
        sending.stream, sending.partition, first.timestamp_ms, first.sequence, node, sending.chain
    )


def sign_rows(key: PrivateKey, sending: Sending, seal: Seal | None = None) -> list[VerifiedMessage]:
    """The messages of a part."""
    node: NodeId = key.address
    messages, previous = [], sending.previous
    timestamp_ms = sending.first.timestamp_ms
    for offset, (content_type, content) in enumerate(sending.rows):
        sequence = sending.first.sequence + offset
        id = MessageId(
            sending.stream, sending.partition, timestamp_ms, sequence, node, sending.chain
        )
        if seal is not None:
            content_type, content = seal(id, content_type, content)
        messages.append(sign_message(key.sign, id, previous, content_type, content))
        previous = Position(timestamp_ms, sequence)
    return messages


# Ready messages into the overlay, and on to the disk of a storage node.
#
# Having each of them kept by a question of its own is slow: a storage node takes a thousand
# questions a second of one asker. So the messages are flooded, the last of them is asked to be
# kept, and then the storage nodes are asked once how many they have of the chain. What is missing
# after a while is kept one by one.


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
