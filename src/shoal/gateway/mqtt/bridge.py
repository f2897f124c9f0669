"""Streams and MQTT topics that are one: what is published on one side comes out on the other.

What came from the other side does not go back there:
- a message that this bridge took from the broker is known by its id when the stream brings it;
- in MQTT 5 the broker does not send us our own messages (No Local), and each one says which stream
  it is of, so that another bridge of that stream does not take it in;
- MQTT 3.1.1 has neither: a message that the broker has acknowledged comes back from it within
  moments, and is known by its digest then. One message is taken for it, once, and only for so long:
  whatever else is equal to it is a message of somebody else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import time
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from shoal.base.errors import ConfigError, NotPermitted, RegistryRefused, ShoalError, UsageError
from shoal.base.ids import StreamId, parse_stream_id
from shoal.base.log_line_limit import log_of_others
from shoal.config.network_file import NetworkFile
from shoal.config.sections import MqttSection
from shoal.gateway.live_feeds import LATEST, PublishOptions, StreamDoor, doors_of, show_message_id
from shoal.gateway.mqtt.session import Address, Credentials, Publish, Session, matches
from shoal.identity import read_secret
from shoal.identity.group_key import SEALED_OVERHEAD_BYTES
from shoal.identity.message_body import CONTENT_BYTES_MAX
from shoal.node import Node

MARK = "shoal-stream"
TAKEN_BYTES_MAX = CONTENT_BYTES_MAX - SEALED_OVERHEAD_BYTES
"""Of content, as it is published: the stream may be one that is encrypted."""
REMEMBERED_MAX = 10_000
ECHO_S = 5.0
"""How long after its acknowledgement a message may come back: a broker sends it in the same moment,
and it may have to wait behind others that we take. If it comes later, it is one more message; if it
never comes, an equal one of somebody else is taken for it, in this time and once."""
RETRY_S = 5.0

log = logging.getLogger("shoal.gateway")
log_others = log_of_others("shoal.gateway")


class Mapped(msgspec.Struct, frozen=True):
    """A topic, or a pattern of topics, and its stream."""

    topic: str
    stream: StreamId
    direction: Literal["in", "out", "both"]

    @property
    def is_pattern(self) -> bool:
        return "+" in self.topic or "#" in self.topic


class BridgeConfig(msgspec.Struct, frozen=True):
    """What an operator decides."""

    address: Address
    mappings: Sequence[Mapped]


class CannotPass(UsageError):
    """A message that the other side can never take, however often it is tried."""


class Bridge:
    """One broker and the streams of this node."""

    def __init__(self, door: StreamDoor, config: BridgeConfig) -> None:
        self.taken = 0
        """Messages from the broker that were published to streams."""
        self.sent = 0
        """Messages of streams that were handed to the broker, or wait for it."""
        self.refused = 0
        """Messages that the other side cannot take: too large, too deep, or not permitted."""
        self.echoes = 0
        """Messages of the broker that were our own, come back; MQTT 3.1.1 only."""
        self._door = door
        self._version = config.address.version
        self._inward = [one for one in config.mappings if one.direction != "out"]
        self._outward = [one for one in config.mappings if one.direction != "in"]
        filters = list(dict.fromkeys(one.topic for one in self._inward))
        self.session = Session(config.address, filters, self._take, self._acknowledged)
        self._came_in = _Remembered()
        self._went_out = _Remembered(ECHO_S)
        # A stream brings a message before the one who published it knows its id.
        self._publishing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: str | None = None

    @property
    def problem(self) -> str | None:
        """What keeps messages from being passed on now, for people; None if all is well."""
        return self._broken or self.session.problem

    @property
    def connected(self) -> bool:
        """Whether the broker is there."""
        return self.session.connected

    @property
    def dropped(self) -> int:
        """Messages that did not get to the other side, and will not."""
        return self.refused + self.session.dropped

    def start(self) -> None:
        """Begin; problems are in the log, and in `problem`."""
        self._tasks = [
            asyncio.create_task(self.session.run()),
            *[asyncio.create_task(self._follow(one)) for one in self._outward],
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop; what is not acknowledged yet is lost."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    # From the broker

    async def _take(self, message: Publish) -> None:
        """Publish a message of the broker, to each stream that wants it. What is raised here breaks
        the connection: the broker sends the message again."""
        if self._is_echo(message):
            self.echoes += 1
            return
        for one in self._inward:
            if not matches(one.topic, message.topic) or (MARK, one.stream) in message.marks:
                continue
            try:
                content = content_for(one, message)
                async with self._publishing:
                    options = PublishOptions(key=message.topic)
                    id = await self._door.publish(one.stream, content, options)
                    self._came_in.note(show_message_id(id))
                self.taken += 1
            except (CannotPass, NotPermitted, RegistryRefused) as error:
                self.refused += 1  # it would be the same the next time
                log_others.warning(
                    "%s takes no message of %r: %s", one.stream, message.topic, error
                )

    # To the broker

    async def _follow(self, one: Mapped) -> None:
        while True:
            try:
                async with self._door.subscribe(one.stream, LATEST) as messages:
                    async for told in messages:
                        async with self._publishing:
                            own = self._came_in.recall(told.id)
                        if not own:
                            self._send(one, told.content)
                    return  # the node is closed
            except ShoalError as error:
                log.warning("%s does not go to MQTT: %s", one.stream, error)
            await asyncio.sleep(RETRY_S)

    def _send(self, one: Mapped, content: Any) -> None:
        try:
            payload = payload_of(content)
        except CannotPass as error:
            self.refused += 1
            log_others.warning("a message of %s does not go to MQTT: %s", one.stream, error)
            return
        self.session.send(Publish(one.topic, payload, marks=((MARK, one.stream),)))
        self.sent += 1

    # What comes back

    def _is_echo(self, message: Publish) -> bool:
        if self._version != "3.1.1":
            return False
        if self._went_out.recall(_digest(message.topic, message.payload)):
            return True
        return self._returns(message.topic) and self.session.comes_back(
            message.topic, message.payload
        )

    def _acknowledged(self, message: Publish) -> None:
        if self._version == "3.1.1" and self._returns(message.topic):
            self._went_out.note(_digest(message.topic, message.payload))

    def _returns(self, topic: str) -> bool:
        """Whether a broker sends us what we send it to a topic."""
        return any(matches(one.topic, topic) for one in self._inward)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for these tasks: one that breaks must not do so in silence."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._broken = f"{type(error).__name__}: {error}: restart this node"
            log.error("a part of the MQTT bridge has ended", exc_info=error)


class _Remembered:
    """The last so many names that were noted, and not recalled since; each for a time, if there is
    a limit."""

    def __init__(self, seconds: float = inf) -> None:
        self._seconds = seconds
        self._ends_s: dict[str, deque[float]] = {}
        self._count = 0

    def note(self, name: str) -> None:
        """Once more."""
        ends_s = self._ends_s.setdefault(name, deque())
        ends_s.append(time.monotonic() + self._seconds)
        self._count += 1
        if self._count > REMEMBERED_MAX:
            self._forget(next(iter(self._ends_s)))

    def recall(self, name: str) -> bool:
        """Whether it was noted; once for each time."""
        now_s = time.monotonic()
        while name in self._ends_s:
            if self._forget(name) > now_s:
                return True
        return False

    def _forget(self, name: str) -> float:
        """The first note of a name; until when it was to be remembered."""
        ends_s = self._ends_s[name]
        end_s = ends_s.popleft()
        self._count -= 1
        if not ends_s:
            del self._ends_s[name]
        return end_s


def content_of(payload: bytes) -> Any:
    """What a payload means: MQTT does not say. JSON if it is JSON, else text if it is text."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


def payload_of(content: Any) -> bytes:
    """The same the other way: bytes and text as they are, the rest as JSON; CannotPass if not."""
    if isinstance(content, bytes):
        return content
    try:
        return content.encode() if isinstance(content, str) else msgspec.json.encode(content)
    except (ValueError, RecursionError) as error:
        raise CannotPass(
            f"it cannot be written as JSON ({error}): send something simpler"
        ) from None


def content_for(one: Mapped, message: Publish) -> Any:
    """What a stream gets of a message; CannotPass if it can take nothing of it. JSON is written
    here: it may be longer than the payload, and whoever publishes it goes no deeper into it."""
    content = content_of(message.payload)
    if one.is_pattern:
        content = {"topic": message.topic, "payload": content}
    written = payload_of(content)
    if len(written) > TAKEN_BYTES_MAX:
        raise CannotPass(
            f"{len(message.payload)} bytes of payload are {len(written)} as content, and"
            f" {TAKEN_BYTES_MAX} are the most: send less at a time"
        )
    return content if isinstance(content, str | bytes) else msgspec.Raw(written)


def _digest(topic: str, payload: bytes) -> str:
    return hashlib.sha256(topic.encode() + b"\0" + payload).hexdigest()


def bridge_of(node: Node, section: MqttSection) -> Bridge:
    """The bridge of a node to its MQTT broker, not yet begun."""
    door, broker = doors_of(node).streams, urlsplit(section.broker)
    if door is None:
        raise ConfigError("mqtt: streams need a tracker: add [[trackers]] to the network file")
    assert broker.hostname is not None  # the section has checked it
    assert broker.port is not None
    password = None
    if section.password is not None:
        password = read_secret("password", section.password, node.network.path("."), os.environ)
    address = Address(
        broker.hostname,
        broker.port,
        # The same with every start, if the node has a key: the broker keeps what came meanwhile.
        Credentials(f"shoal-{node.id.hex()}", section.user, password),
        section.version,
        _broker_tls(node.network, section) if broker.scheme == "mqtts" else None,
    )
    mappings = [
        Mapped(one.topic, parse_stream_id(one.stream), one.direction) for one in section.mappings
    ]
    bridge = Bridge(door, BridgeConfig(address, mappings))
    node.host.readiness.add("mqtt", lambda: bridge.problem)
    return bridge


def _broker_tls(network: NetworkFile, section: MqttSection) -> ssl.SSLContext:
    authority = None if section.authority is None else network.path(section.authority)
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"mqtt.authority: {authority}: {error}: give a PEM file") from error
