"""One connection to a broker, and the session that outlives it.

Messages to the broker wait here until it has acknowledged them, bounded; after a break those that
it has not are sent again. Messages from the broker are acknowledged when they were taken: what was
not, it sends again. So each way a message comes at least once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from shoal.base.bounded_queue import BoundedQueue
from shoal.base.errors import RemoteError, ShoalError
from shoal.base.log_limit import log_of_others
from shoal.base.units import MIB
from shoal.gateway.mqtt import packets
from shoal.gateway.mqtt.packets import (
    ConnAck,
    Credentials,
    Disconnected,
    Packet,
    PubAck,
    Publish,
    Reader,
    SubAck,
    TooLarge,
    Version,
)

KEEP_ALIVE_S = 30
CONNECT_S = 10.0
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 64 * MIB
"""Messages for a broker that is away; beyond either bound the oldest go. Most have a few hundred
bytes, but one may have half a megabyte."""
UNDER_WAY_MAX = 64
REFUSED = 128  # codes from here on
READ_BYTES = 64 * 1024

Take = Callable[[Publish], Awaitable[None]]
Acknowledged = Callable[[Publish], None]

log_others = log_of_others("shoal.gateway")


class BrokerProblem(ShoalError):
    """A broker cannot be reached, or does not want us."""


class Address(msgspec.Struct, frozen=True):
    """Where a broker is, and who we are there."""

    host: str
    port: int
    who: Credentials
    version: Version = "5"
    tls: ssl.SSLContext | None = None


class Session:
    """Runs until it is cancelled; reconnects by itself."""

    def __init__(
        self,
        address: Address,
        filters: Sequence[str],
        take: Take,
        acknowledged: Acknowledged = lambda message: None,
    ) -> None:
        """Messages of the broker are taken; of ours it is told when the broker has acknowledged
        them, unless they came back before."""
        self.connected = False
        self.problem: str | None = "not connected yet"
        self.dropped = 0
        """Messages that waited too long for a broker that was away, or that it did not want; and
        those of its own that are too large to be read."""
        self._address = address
        self._filters = filters
        self._take = take
        self._waiting: BoundedQueue[Publish] = BoundedQueue(WAITING_MAX, WAITING_BYTES_MAX)
        self._acknowledged = acknowledged
        self._under_way: dict[int, Publish] = {}
        self._came_back: set[int] = set()
        """Those of them that the broker has sent to us already."""
        self._next_id = 0
        self._under_way_max = UNDER_WAY_MAX
        self._bytes_max = packets.PACKET_BYTES_MAX
        self._writer: asyncio.StreamWriter | None = None

    def send(self, message: Publish) -> None:
        """A message for the broker; never waits."""
        for gone in self._waiting.put(message, len(message.payload)):
            self._drop(gone, "too many wait for the broker")
        self._push()

    def comes_back(self, topic: str, payload: bytes) -> bool:
        """Whether a message of the broker is one of ours that it has not acknowledged yet. Each
        comes back once."""
        for id, message in self._under_way.items():
            same = message.topic == topic and message.payload == payload
            if same and id not in self._came_back:
                self._came_back.add(id)
                return True
        return False

    async def run(self) -> None:
        """Be connected, for ever."""
        failures = 0
        while True:
            try:
                await self._connect_and_talk()
            except (OSError, TimeoutError, RemoteError, ShoalError) as error:
                failures = 0 if self.connected else failures + 1
                problem = str(error) or type(error).__name__
                if problem != self.problem:
                    log_others.warning("MQTT broker %s: %s", self._address.host, problem)
                self.problem = problem
            finally:
                self.connected = False
                self._writer = None
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])

    # One connection

    async def _connect_and_talk(self) -> None:
        at, reader = self._address, Reader(self._address.version)
        try:
            async with asyncio.timeout(CONNECT_S):
                stream, writer = await asyncio.open_connection(at.host, at.port, ssl=at.tls)
        except UnicodeError as error:  # a label of the name is empty, or too long
            raise BrokerProblem(
                f"{at.host!r} is no name of a host ({error}): mend broker under [mqtt]"
            ) from error
        try:
            writer.write(packets.connect(at.version, at.who, KEEP_ALIVE_S))
            async with asyncio.timeout(CONNECT_S):
                first = await self._first(stream, reader)
            self._begin(first, writer)
            pinging = asyncio.create_task(_ping(writer))
            try:
                await self._listen(stream, reader, writer)
            finally:
                pinging.cancel()
                await asyncio.wait([pinging])
        except asyncio.CancelledError:
            writer.write(packets.disconnect())
            raise
        finally:
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await writer.wait_closed()

    async def _first(self, stream: asyncio.StreamReader, reader: Reader) -> ConnAck:
        while True:
            for packet in reader.feed(await _some(stream)):
                if isinstance(packet, ConnAck):
                    return packet
                raise BrokerProblem(f"it began with {type(packet).__name__}: is it a broker?")

    def _begin(self, accepted: ConnAck, writer: asyncio.StreamWriter) -> None:
        if accepted.code:
            raise BrokerProblem(
                f"it refuses us with code {accepted.code}: check user, password and version under"
                " [mqtt]"
            )
        self._under_way_max = min(UNDER_WAY_MAX, accepted.receive_max)
        self._bytes_max = accepted.packet_bytes_max
        self._writer, self.connected, self.problem = writer, True, None
        if self._filters:
            id = self._new_id()
            writer.write(packets.subscribe(self._address.version, id, self._filters))
        self._came_back.clear()  # what is sent again comes back again
        for id, message in self._under_way.items():
            again = msgspec.structs.replace(message, id=id, again=accepted.session_present)
            writer.write(packets.publish(self._address.version, again))
        self._push()

    async def _listen(
        self, stream: asyncio.StreamReader, reader: Reader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            # A broker answers pings, so one that says nothing for so long is gone.
            async with asyncio.timeout(2 * KEEP_ALIVE_S):
                data = await _some(stream)
            for packet in reader.feed(data):
                await self._heard(packet, writer)
            await writer.drain()

    async def _heard(self, packet: Packet, writer: asyncio.StreamWriter) -> None:
        match packet:
            case Publish():
                await self._take(packet)
                if packet.id is not None:
                    writer.write(packets.puback(packet.id))
            case TooLarge():
                self.dropped += 1
                log_others.warning(
                    "a message of %r is passed over: it has %d bytes, and %d are the most",
                    packet.topic,
                    packet.size_bytes,
                    packets.PACKET_BYTES_MAX,
                )
                if packet.id is not None:
                    writer.write(packets.puback(packet.id))
            case PubAck():
                self._settle(packet)
                self._push()
            case SubAck():
                refused = [
                    name
                    for name, code in zip(self._filters, packet.codes, strict=False)
                    if code >= REFUSED
                ]
                if refused:
                    raise BrokerProblem(f"it does not let us subscribe to {', '.join(refused)}")
            case Disconnected():
                raise BrokerProblem(f"it said goodbye with code {packet.code}")

    def _push(self) -> None:
        """Send what waits, as far as the broker takes it."""
        if self._writer is None:
            return
        while self._waiting and len(self._under_way) < self._under_way_max:
            id = self._new_id()
            message = msgspec.structs.replace(self._waiting.take(), id=id)
            raw = packets.publish(self._address.version, message)
            if len(raw) > self._bytes_max:
                self._drop(message, f"the broker takes packets of {self._bytes_max} bytes")
                continue
            self._under_way[id] = message
            self._writer.write(raw)

    def _settle(self, packet: PubAck) -> None:
        """The broker has a message of ours, or does not want it."""
        message, came_back = self._under_way.pop(packet.id, None), packet.id in self._came_back
        self._came_back.discard(packet.id)
        if message is None:
            return
        if packet.code >= REFUSED:
            self._drop(message, f"the broker refuses it with code {packet.code}")
        elif not came_back:
            self._acknowledged(message)

    def _drop(self, message: Publish, why: str) -> None:
        self.dropped += 1
        log_others.warning("a message for %r is dropped: %s", message.topic, why)

    def _new_id(self) -> int:
        while True:
            self._next_id = self._next_id % 65_535 + 1
            if self._next_id not in self._under_way:
                return self._next_id


async def _some(stream: asyncio.StreamReader) -> bytes:
    data = await stream.read(READ_BYTES)
    if not data:
        raise BrokerProblem("it closed the connection")
    return data


async def _ping(writer: asyncio.StreamWriter) -> None:
    while True:
        await asyncio.sleep(KEEP_ALIVE_S / 2)
        writer.write(packets.ping())
