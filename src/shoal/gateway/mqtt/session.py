"""One connection to a broker, and the session that outlives it.

Messages to the broker wait here until it has acknowledged them, bounded; after a break those that
it has not are sent again. Messages from the broker are acknowledged when they were taken: what was
not, it sends again. So each way a message comes at least once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from shoal.base.containers import BoundedQueue
from shoal.base.errors import MalformedMessage, OversizedMessage, RemoteError, ShoalError
from shoal.base.log_line_limit import log_of_others
from shoal.base.units import MIB

# MQTT 3.1.1 and 5, as much of them as a bridge speaks: the bytes of each packet.
#
# OASIS, "MQTT Version 3.1.1" and "MQTT Version 5.0"; sections are those of 5.0. QoS is 1 at most:
# who asks for no more gets no more.


Version = Literal["3.1.1", "5"]

PACKET_BYTES_MAX = 1 * MIB
_HEAD_BYTES = 2 + 65_535 + 2  # of a message in version 3.1.1: the longest topic, and an id
RECEIVE_MAX = 32
"""What a broker may send before it has to wait for us (3.1.2.11.3)."""
SESSION_S = 24 * 3600
"""How long a broker keeps what we have not got yet; version 5 only."""

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 1, 2, 3, 4, 8, 9
PINGREQ, PINGRESP, DISCONNECT = 12, 13, 14
_LEVEL = {"3.1.1": 4, "5": 5}

USER_PROPERTY = 0x26
_SESSION_EXPIRY, _RECEIVE_MAXIMUM, _PACKET_MAXIMUM = 0x11, 0x21, 0x27
_KINDS = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), "byte"),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), "two"),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), "four"),
    **dict.fromkeys((0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F), "text"),
    **dict.fromkeys((0x09, 0x16), "bytes"),
    0x0B: "varying",
    USER_PROPERTY: "pair",
}
"""2.2.2.2: how each property is written."""


class ConnAck(msgspec.Struct, frozen=True):
    """The broker took us, or not."""

    session_present: bool
    code: int
    receive_max: int = 65_535
    packet_bytes_max: int = 268_435_455


class Publish(msgspec.Struct, frozen=True):
    """A message."""

    topic: str
    payload: bytes
    id: int | None = None
    """Of QoS 1: it is to be acknowledged."""
    again: bool = False
    marks: tuple[tuple[str, str], ...] = ()
    """User properties; version 5 only."""


class TooLarge(msgspec.Struct, frozen=True):
    """A message that was passed over. Version 3.1.1 only: in 5 a broker knows what we take, but
    here it would send the message again after every break, and nothing behind it."""

    topic: str
    id: int | None
    size_bytes: int


class PubAck(msgspec.Struct, frozen=True):
    """A message of ours is the broker's now; a code of 128 or more: it does not want it."""

    id: int
    code: int = 0


class SubAck(msgspec.Struct, frozen=True):
    """For each filter, what became of it."""

    id: int
    codes: tuple[int, ...]


class PingResp(msgspec.Struct, frozen=True):
    """The broker is there."""


class Disconnected(msgspec.Struct, frozen=True):
    """The broker says goodbye; version 5 only."""

    code: int


Packet = ConnAck | Publish | TooLarge | PubAck | SubAck | PingResp | Disconnected


# Writing


class Credentials(msgspec.Struct, frozen=True):
    """Who connects."""

    client_id: str
    user: str | None = None
    password: str | None = None


def connect(version: Version, who: Credentials, keep_alive_s: int) -> bytes:
    """3.1: a session that outlives the connection."""
    flags = (0x80 if who.user is not None else 0) | (0x40 if who.password is not None else 0)
    properties = b""
    if version == "5":
        properties = _properties(
            bytes([_SESSION_EXPIRY])
            + SESSION_S.to_bytes(4, "big")
            + bytes([_RECEIVE_MAXIMUM])
            + RECEIVE_MAX.to_bytes(2, "big")
            + bytes([_PACKET_MAXIMUM])
            + PACKET_BYTES_MAX.to_bytes(4, "big")
        )
    body = _text("MQTT") + bytes([_LEVEL[version], flags]) + keep_alive_s.to_bytes(2, "big")
    body += properties + _text(who.client_id)
    for secret in (who.user, who.password):
        if secret is not None:
            body += _text(secret)
    return _packet(CONNECT, 0, body)


def publish(version: Version, message: Publish) -> bytes:
    """3.3."""
    flags = (0x08 if message.again else 0) | (0x02 if message.id is not None else 0)
    body = _text(message.topic)
    if message.id is not None:
        body += message.id.to_bytes(2, "big")
    if version == "5":
        marks = [
            bytes([USER_PROPERTY]) + _text(name) + _text(value) for name, value in message.marks
        ]
        body += _properties(b"".join(marks))
    return _packet(PUBLISH, flags, body + message.payload)


def puback(id: int) -> bytes:
    """3.4: in both versions, that all is well."""
    return _packet(PUBACK, 0, id.to_bytes(2, "big"))


def subscribe(version: Version, id: int, filters: Sequence[str]) -> bytes:
    """3.8: with QoS 1. In version 5 without what we sent ourselves, and without what is retained if
    we subscribed before."""
    options = 0x01 if version == "3.1.1" else 0x01 | 0x04 | 0x10
    body = id.to_bytes(2, "big") + (_properties(b"") if version == "5" else b"")
    for name in filters:
        body += _text(name) + bytes([options])
    return _packet(SUBSCRIBE, 0x02, body)


def ping() -> bytes:
    """3.12."""
    return _packet(PINGREQ, 0, b"")


def disconnect() -> bytes:
    """3.14."""
    return _packet(DISCONNECT, 0, b"")


def _packet(kind: int, flags: int, body: bytes) -> bytes:
    return bytes([kind << 4 | flags]) + _varying(len(body)) + body


def _varying(number: int) -> bytes:
    """1.5.5."""
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def _properties(raw: bytes) -> bytes:
    return _varying(len(raw)) + raw


# Reading


class Reader:
    """Takes bytes as they come, gives whole packets."""

    def __init__(self, version: Version) -> None:
        self._version: Version = version
        self._bytes = bytearray()
        self._cut = 0  # bytes of the first packet that are let go already

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Packets that are complete now; RemoteError if this is no MQTT."""
        self._bytes += data
        while (sizes := self._sizes()) is not None:
            header, length = sizes
            if length > PACKET_BYTES_MAX:
                self._keep_head(header, length)
            end = header + length - self._cut
            if len(self._bytes) < end:
                return
            raw = bytes(self._bytes[:end])
            del self._bytes[:end]
            self._cut = 0
            packet = _decode(self._version, raw[0], raw[header:])
            if length > PACKET_BYTES_MAX and isinstance(packet, Publish):
                packet = TooLarge(packet.topic, packet.id, length)
            yield packet

    def _keep_head(self, header: int, length: int) -> None:
        """Let go of what has come of a message that is too large, but for its head."""
        if self._version == "5" or self._bytes[0] >> 4 != PUBLISH:
            raise OversizedMessage(f"a packet of {length} bytes")
        head, end = header + _HEAD_BYTES, header + length - self._cut
        gone = max(0, min(len(self._bytes), end) - head)
        del self._bytes[head : head + gone]
        self._cut += gone

    def _sizes(self) -> tuple[int, int] | None:
        """Bytes of the first packet's header and of its body, if all of the header is there."""
        length = 0
        for at in range(1, 5):
            if at >= len(self._bytes):
                return None
            length |= (self._bytes[at] & 0x7F) << (7 * (at - 1))
            if not self._bytes[at] & 0x80:
                return at + 1, length
        raise MalformedMessage("the length of a packet does not end")


class _Fields:
    """The fields of a packet, one after the other."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def take(self, count: int) -> bytes:
        found = self._raw[self._at : self._at + count]
        if len(found) < count:
            raise MalformedMessage("a packet ends before its fields do")
        self._at += count
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varying(self) -> int:
        number = 0
        for place in range(4):
            byte = self.number(1)
            number |= (byte & 0x7F) << (7 * place)
            if not byte & 0x80:
                return number
        raise MalformedMessage("a number does not end")

    def text(self) -> str:
        try:
            return self.take(self.number(2)).decode()
        except UnicodeDecodeError:
            raise MalformedMessage("a text is no UTF-8") from None

    def rest(self) -> bytes:
        return self._raw[self._at :]

    def properties(self) -> tuple[dict[int, int], list[tuple[str, str]]]:
        """Those that are numbers, and those of users; the others are passed over."""
        numbers: dict[int, int] = {}
        marks: list[tuple[str, str]] = []
        fields = _Fields(self.take(self.varying()))
        while fields.rest():
            id = fields.varying()
            match _KINDS.get(id):
                case "byte":
                    numbers[id] = fields.number(1)
                case "two":
                    numbers[id] = fields.number(2)
                case "four":
                    numbers[id] = fields.number(4)
                case "varying":
                    numbers[id] = fields.varying()
                case "text" | "bytes":
                    fields.take(fields.number(2))
                case "pair":
                    marks.append((fields.text(), fields.text()))
                case _:
                    raise MalformedMessage(f"property {id} is not one of MQTT 5")
        return numbers, marks


def _decode(version: Version, first: int, body: bytes) -> Packet:
    kind, flags = first >> 4, first & 0x0F
    fields, modern = _Fields(body), version == "5"
    if kind == CONNACK:
        present, code = fields.number(1) & 1, fields.number(1)
        numbers = fields.properties()[0] if modern and fields.rest() else {}
        return ConnAck(
            bool(present),
            code,
            max(1, numbers.get(_RECEIVE_MAXIMUM, 65_535)),
            numbers.get(_PACKET_MAXIMUM, 268_435_455),
        )
    if kind == PUBLISH:
        qos = flags >> 1 & 3
        if qos > 1:
            raise MalformedMessage(f"a message with QoS {qos}, which was not asked for")
        topic = fields.text()
        id = fields.number(2) if qos else None
        marks = tuple(fields.properties()[1]) if modern else ()
        return Publish(topic, fields.rest(), id, bool(flags & 8), marks)
    if kind == PUBACK:
        id = fields.number(2)
        return PubAck(id, fields.number(1) if modern and fields.rest() else 0)
    if kind == SUBACK:
        id = fields.number(2)
        if modern:
            fields.properties()
        return SubAck(id, tuple(fields.rest()))
    if kind == PINGRESP:
        return PingResp()
    if kind == DISCONNECT:
        return Disconnected(fields.number(1) if fields.rest() else 0)
    raise MalformedMessage(f"packets of kind {kind} are not for a client")


def matches(pattern: str, topic: str) -> bool:
    """4.7: whether a topic is one that a filter stands for."""
    wanted, levels = pattern.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at >= len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)


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
        self._bytes_max = PACKET_BYTES_MAX
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
            writer.write(connect(at.version, at.who, KEEP_ALIVE_S))
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
            writer.write(disconnect())
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
            writer.write(subscribe(self._address.version, id, self._filters))
        self._came_back.clear()  # what is sent again comes back again
        for id, message in self._under_way.items():
            again = msgspec.structs.replace(message, id=id, again=accepted.session_present)
            writer.write(publish(self._address.version, again))
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
                    writer.write(puback(packet.id))
            case TooLarge():
                self.dropped += 1
                log_others.warning(
                    "a message of %r is passed over: it has %d bytes, and %d are the most",
                    packet.topic,
                    packet.size_bytes,
                    PACKET_BYTES_MAX,
                )
                if packet.id is not None:
                    writer.write(puback(packet.id))
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
            raw = publish(self._address.version, message)
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
        writer.write(ping())
