"""The bridge and a broker that sends again whatever is not acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import pytest

from shoal.base.errors import StreamUnavailable
from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.base.log_line_limit import settle_logs
from shoal.gateway.live_feeds import PublishOptions, StreamDoor, doors_of
from shoal.gateway.mqtt import bridge as mqtt_bridge
from shoal.gateway.mqtt import session as mqtt_session
from shoal.gateway.mqtt import session as packets
from shoal.gateway.mqtt.bridge import Bridge, BridgeConfig, Mapped
from shoal.gateway.mqtt.session import Address, Credentials, Publish, Session, Version
from tests.node.network import Town, contents, free_port, in_town, run, take
from tests.transport.recorder import until

STREAM = StreamId("0x" + "ab" * 20 + "/speeds")
CONNACK = {"3.1.1": bytes.fromhex("20020000"), "5": bytes.fromhex("2003000000")}


class Broker:
    """Sends its messages in order to whoever connects, from the first that was not acknowledged."""

    def __init__(self, version: Version) -> None:
        self.messages: list[Publish] = []
        self.acknowledged: list[int] = []
        self.visits = 0
        self._version: Version = version

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield Address("127.0.0.1", port, Credentials("bridge"), self._version)
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, body = await _packet(reader)
                if kind == packets.CONNECT:
                    writer.write(CONNACK[self._version])
                elif kind == packets.SUBSCRIBE:
                    for message in self.messages:
                        if message.id not in self.acknowledged:
                            writer.write(packets.publish(self._version, message))
                elif kind == packets.PUBACK:
                    self.acknowledged.append(int.from_bytes(body[:2], "big"))
        writer.close()


async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    kind, length, place = (await reader.readexactly(1))[0] >> 4, 0, 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << place
        place += 7
        if not byte & 0x80:
            return kind, await reader.readexactly(length)


class Door:
    """A node that publishes nothing."""

    def __init__(self, *answers: Exception | None) -> None:
        self.asked = 0
        self._answers = list(answers)

    async def publish(self, stream: StreamId, content: Any, options: PublishOptions) -> MessageId:
        self.asked += 1
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer
        return MessageId(stream, 0, self.asked, 0, NodeId(bytes(20)), "c")

    async def retry(self, message: MessageId) -> None:
        raise AssertionError("a bridge publishes nothing durable")

    @asynccontextmanager
    async def subscribe(self, *asked: Any, **options: Any) -> AsyncIterator[Any]:
        raise ZeroDivisionError("nobody has thought of this")
        yield

    def read(self, *asked: Any) -> Any:
        raise AssertionError("nobody reads history")


@asynccontextmanager
async def bridged(
    door: StreamDoor,
    address: Address,
    topic: str = "city/+/speed",
    direction: Literal["in", "out"] = "in",
) -> AsyncIterator[Bridge]:
    bridge = Bridge(door, BridgeConfig(address, [Mapped(topic, STREAM, direction)]))
    bridge.start()
    try:
        yield bridge
    finally:
        await bridge.close()


def numbered(payloads: Sequence[bytes]) -> list[Publish]:
    return [Publish("city/7/speed", payload, id) for id, payload in enumerate(payloads, 1)]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x01" * 90_000,
        b"[" + b",".join([b"1e9"] * 60_000) + b"]",
        b"\xff" * 500_000,
        b"x" * 530_000,
    ],
    ids=["control characters", "short numbers", "base64", "large"],
)
def test_a_message_that_no_stream_takes_does_not_hold_up_what_comes_behind_it(
    payload: bytes,
) -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        door = doors_of(node).streams
        assert door is not None
        broker = Broker("5")
        broker.messages = numbered([b"1", payload, b"2"])
        stream = await node.open_stream(STREAM)
        async with (
            stream.subscribe() as messages,
            broker.open() as address,
            bridged(door, address) as bridge,
        ):
            got = contents(await take(messages, 2))
            await until(lambda: broker.acknowledged == [1, 2, 3])
            assert (bridge.taken, bridge.refused, bridge.dropped) == (2, 1, 1)
            assert (bridge.problem, broker.visits) == (None, 1)
        assert got == [{"topic": "city/7/speed", "payload": number} for number in (1, 2)]

    in_town(scenario)


def test_lists_of_any_depth_hold_up_nothing() -> None:
    """Of some depth they can be read, but not be written with something around them."""
    lists = [b"[" * depth + b"]" * depth for depth in range(860, 1000)]

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        door = doors_of(node).streams
        assert door is not None
        broker = Broker("5")
        broker.messages = numbered([*lists, b"2"])
        async with broker.open() as address, bridged(door, address) as bridge:
            await until(lambda: broker.acknowledged == list(range(1, len(lists) + 2)))
            assert (bridge.taken + bridge.refused, broker.visits) == (len(lists) + 1, 1)

    in_town(scenario)


def test_a_message_that_is_just_small_enough_gets_through() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        door = doors_of(node).streams
        assert door is not None
        broker = Broker("5")
        broker.messages = numbered([b"[" + b"7," * 100_000 + b"7]", b"x" * 500_000])
        stream = await node.open_stream(STREAM)
        async with (
            stream.subscribe() as messages,
            broker.open() as address,
            bridged(door, address),
        ):
            numbers, text = contents(await take(messages, 2))
        assert numbers["payload"] == [7] * 100_001
        assert text["payload"] == "x" * 500_000

    in_town(scenario)


def test_in_the_old_version_a_packet_of_any_size_is_passed_over() -> None:
    async def main() -> None:
        broker = Broker("3.1.1")
        broker.messages = numbered([bytes(2 * packets.PACKET_BYTES_MAX), b"2"])
        async with broker.open() as address, bridged(Door(), address) as bridge:
            await until(lambda: broker.acknowledged == [1, 2])
            assert (bridge.taken, bridge.dropped, broker.visits) == (1, 1, 1)

    run(main())


def test_a_message_is_tried_again_while_the_tracker_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mqtt_session, "RETRY_S", (0.01,))

    async def main() -> None:
        broker, away = Broker("5"), StreamUnavailable("no answer from tracker")
        broker.messages = numbered([b"1", b"2"])
        async with broker.open() as address, bridged(Door(away, away), address) as bridge:
            await until(lambda: broker.acknowledged == [1, 2])
            assert (bridge.taken, bridge.refused, broker.visits) == (2, 0, 3)

    run(main())


def test_a_message_that_no_broker_takes_is_counted_and_the_rest_goes_on() -> None:
    async def main() -> None:
        bridge = Bridge(Door(), BridgeConfig(Address("x", 1, Credentials("me")), []))
        one = Mapped("a", STREAM, "out")
        deep: list[Any] = []
        for _ in range(2_000):
            deep = [deep]
        bridge._send(one, deep)
        bridge._send(one, {"b": 1})
        assert (bridge.refused, bridge.sent) == (1, 1)

    run(main())


def test_what_waits_for_a_broker_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_session, "WAITING_BYTES_MAX", 100)

    async def nobody(message: Publish) -> None:
        raise AssertionError("nothing comes")

    session = Session(Address("x", 1, Credentials("me")), [], nobody)
    for payload in (b"a" * 60, b"b" * 40, b"c" * 50, b"d" * 200):
        session.send(Publish("t", payload))
    assert session.dropped == 3
    assert session._waiting.take().payload == b"d" * 200


def test_a_broker_whose_name_cannot_be_one_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        address = Address("a..b", 1883, Credentials("me"))
        async with bridged(Door(), address) as bridge:
            await until(lambda: "is no name of a host" in (bridge.problem or ""))
            assert not bridge._tasks[0].done()
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main())


def test_a_part_that_breaks_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = Broker("5")
        async with broker.open() as address, bridged(Door(), address, "a", "out") as bridge:
            await until(lambda: bridge.connected and bridge.problem is not None)
            assert bridge.problem == (
                "ZeroDivisionError: nobody has thought of this: restart this node"
            )

    with caplog.at_level(logging.ERROR, "shoal.gateway"):
        run(main())
    assert "a part of the MQTT bridge has ended" in caplog.text


class EchoingBroker:
    """Acknowledges what comes, and sends it to all who have subscribed: to us as well, as brokers
    of MQTT 3.1.1 do."""

    def __init__(self, order: str) -> None:
        self.got = 0
        self.acknowledged = 0
        self._order = order
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port)

    def send(self, payload: bytes, count: int) -> None:
        """So many messages of a device."""
        assert self._writer is not None
        for _ in range(count):
            self._writer.write(packets.publish("3.1.1", Publish("t", payload, 1)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, body = await _packet(reader)
                if kind == packets.CONNECT:
                    writer.write(CONNACK["3.1.1"])
                elif kind == packets.PUBACK:
                    self.acknowledged += 1
                elif kind == packets.PUBLISH:
                    self.got += 1
                    acknowledgement = packets.puback(int.from_bytes(body[3:5], "big"))
                    echo = packets.publish("3.1.1", Publish("t", body[5:], 2))
                    writer.write(
                        {
                            "before": echo + acknowledgement,
                            "after": acknowledgement + echo,
                            "never": acknowledgement,
                        }[self._order]
                    )
        writer.close()


class QuietDoor(Door):
    """A stream in which nobody else publishes."""

    @asynccontextmanager
    async def subscribe(self, *asked: Any, **options: Any) -> AsyncIterator[Any]:
        async def nothing() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        yield nothing()


@asynccontextmanager
async def both_ways(port: int) -> AsyncIterator[tuple[Bridge, QuietDoor, Mapped]]:
    door, mapping = QuietDoor(), Mapped("t", STREAM, "both")
    address = Address("127.0.0.1", port, Credentials("bridge"), "3.1.1")
    bridge = Bridge(door, BridgeConfig(address, [mapping]))
    bridge.start()
    try:
        yield bridge, door, mapping
    finally:
        await bridge.close()


def test_what_a_broker_never_got_hides_no_message_of_a_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mqtt_session, "RETRY_S", (0.05,))
    sent, dropped, own = 15_000, 5_000, 6_000

    async def main() -> None:
        port = free_port()
        broker = EchoingBroker("after")
        async with both_ways(port) as (bridge, door, mapping):
            for _ in range(sent):  # while the broker is away
                bridge._send(mapping, "on")
            assert bridge.dropped == dropped
            server = await broker.open(port)
            await until(lambda: broker.got == broker.acknowledged == sent - dropped)
            assert door.asked == 0, "what came back does not go into the stream again"
            broker.send(b"on", own)
            await until(lambda: broker.acknowledged == sent - dropped + own)
            assert door.asked == bridge.taken == own
            assert bridge.echoes == sent - dropped
            server.close()

    run(main())
    told = [line for line in caplog.messages if "is dropped: too many wait" in line]
    assert 1 <= len(told) < 20
    settle_logs(float("inf"))
    assert f"and {dropped - 10} more in the last minute" in caplog.text


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_message_that_comes_back_is_taken_for_its_own_once(order: str) -> None:
    async def main() -> None:
        port = free_port()
        broker = EchoingBroker(order)
        server = await broker.open(port)
        async with both_ways(port) as (bridge, door, mapping):
            await until(lambda: bridge.connected)
            for number in range(200):
                bridge._send(mapping, number % 3)
                if number % 2:
                    broker.send(b"1", 1)
                await asyncio.sleep(0)
            await until(lambda: broker.acknowledged == 300)
            assert (bridge.echoes, door.asked) == (200, 100)
            broker.send(b"1", 1)
            await until(lambda: door.asked == 101)
        server.close()

    run(main())


def test_a_message_that_does_not_come_back_is_forgotten_after_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mqtt_bridge, "ECHO_S", 0.3, raising=False)

    async def main() -> None:
        port = free_port()
        broker = EchoingBroker("never")
        server = await broker.open(port)
        async with both_ways(port) as (bridge, door, mapping):
            await until(lambda: bridge.connected)
            for _ in range(10):
                bridge._send(mapping, "on")
            await until(lambda: broker.got == 10)
            broker.send(b"on", 1)
            await until(lambda: broker.acknowledged == 1)
            assert (bridge.echoes, door.asked) == (1, 0), "it looks like one that came back"
            await asyncio.sleep(0.4)
            broker.send(b"on", 9)
            await until(lambda: broker.acknowledged == 10)
            assert (bridge.echoes, door.asked) == (1, 9)
        server.close()

    run(main())
