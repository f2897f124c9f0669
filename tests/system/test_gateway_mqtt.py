"""Streams and a real MQTT broker: mosquitto, which is stopped and started meanwhile."""

from __future__ import annotations

import asyncio
import getpass
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from scripts.mosquitto import find_command
from shoal.config.sections import GatewaySection, MqttMapping, MqttSection
from shoal.gateway.mqtt import session as mqtt_session
from shoal.gateway.mqtt.bridge import Bridge, bridge_of
from shoal.gateway.server import gateway_of
from shoal.node import Node
from tests.node.network import Town, contents, free_port, in_town, network_of, nothing_more, take
from tests.transport.recorder import until

PATIENCE_S = 20.0
STREAM_OWNER = "0x" + "ab" * 20

Version = Literal["3.1.1", "5"]


def command(name: str) -> str:
    found = find_command(name)
    assert found is not None, "there is no mosquitto: `python -m scripts.mosquitto` fetches one"
    return found


class Broker:
    """mosquitto, on two ports: for everybody, and with TLS for who knows the password. It keeps
    sessions when it stops."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.secure_port = free_port(), free_port()
        self._process: asyncio.subprocess.Process | None = None
        make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem"]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        quiet: dict[str, Any] = {"cwd": folder, "check": True, "capture_output": True}
        subprocess.run(["openssl", *make, "-out", "broker.pem", *names], **quiet)
        passwd = [command("mosquitto_passwd"), "-b", "-c", "users", "shoal", "secret"]
        subprocess.run(passwd, **quiet)
        (folder / "broker.conf").write_text(
            f"per_listener_settings true\npersistence true\npersistence_location {folder}/\n"
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\n"
            f"listener {self.secure_port} 127.0.0.1\npassword_file {folder}/users\n"
            f"certfile {folder}/broker.pem\nkeyfile {folder}/key.pem\n"
            f"user {getpass.getuser()}\n"  # or root's broker becomes somebody who may not read this
        )

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *[command("mosquitto"), "-c", str(self.folder / "broker.conf")],
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    await writer.wait_closed()
                    return
                assert self._process.returncode is None, "mosquitto does not start"
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            await process.wait()

    async def publish(self, version: Version, topic: str, payload: str) -> None:
        """With mosquitto_pub."""
        at = ["-p", str(self.port), "-V", "mqttv5" if version == "5" else "mqttv311"]
        process = await asyncio.create_subprocess_exec(
            *[command("mosquitto_pub"), *at, "-q", "1", "-t", topic, "-m", payload]
        )
        assert await process.wait() == 0

    @asynccontextmanager
    async def subscribed(self, version: Version, topic: str) -> AsyncIterator[Sub]:
        """With mosquitto_sub, whose session outlives the broker."""
        at = ["-p", str(self.port), "-V", "mqttv5" if version == "5" else "mqttv311"]
        kept = ["-c", "-i", "listener", *(["-x", "3600"] if version == "5" else [])]
        by_lines = ["stdbuf", "-oL"]  # into a pipe it would write when it has 4 KiB
        process = await asyncio.create_subprocess_exec(
            *[
                *by_lines,
                command("mosquitto_sub"),
                *at,
                *kept,
                "-q",
                "1",
                "-d",
                "-t",
                topic,
                "-F",
                "got %p",
            ],
            stdout=asyncio.subprocess.PIPE,
        )
        sub = Sub(process)
        try:
            await sub.line("Subscribed (mid")
            yield sub
        finally:
            process.terminate()
            await process.wait()


class Sub:
    """What mosquitto_sub prints."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._out = process.stdout

    async def line(self, begin: str, within_s: float = PATIENCE_S) -> str:
        async with asyncio.timeout(within_s):
            async for raw in self._out:
                text = raw.decode().rstrip("\n")
                if text.startswith(begin):
                    return text.removeprefix(begin)
        raise AssertionError("mosquitto_sub ended")

    async def payloads(self, count: int) -> list[str]:
        return [await self.line("got ") for _ in range(count)]

    async def hears_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            await self.line("got ", 0.3)


@asynccontextmanager
async def bridged(town: Town, section: MqttSection, folder: Path) -> AsyncIterator[Bridge]:
    """A node with a bridge; and what its gateway says of it."""
    network = replace(network_of(town.tracker), folder=str(folder), mqtt=section)
    async with Node.open(network) as node:
        bridge = bridge_of(node, section)
        gateway = gateway_of(node, GatewaySection(), bridge)
        bridge.start()
        try:
            await until(lambda: bridge.connected, PATIENCE_S)
            yield bridge
            assert b"shoal_mqtt_connected 1.0" in gateway.metrics.text()
        finally:
            await bridge.close()
            await gateway.close()


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_messages_go_both_ways_and_none_comes_back(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_session, "RETRY_S", (0.1,))
    monkeypatch.setenv("BROKER_PASSWORD", "secret")
    broker = Broker(tmp_path)
    chat, speeds = f"{STREAM_OWNER}/chat", f"{STREAM_OWNER}/speeds"
    section = MqttSection(
        broker=f"mqtts://localhost:{broker.secure_port}",
        mappings=(
            MqttMapping("chat", chat, "both"),
            MqttMapping("city/+/speed", speeds),
        ),
        version=version,
        user="shoal",
        password="env:BROKER_PASSWORD",
        authority="broker.pem",
    )

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.open_stream(chat)
        await broker.start()
        try:
            async with (
                bridged(town, section, tmp_path) as bridge,
                stream.subscribe() as messages,
                (await node.open_stream(speeds)).subscribe() as measured,
                broker.subscribed(version, "chat") as sub,
            ):
                await until(lambda: len(town.members(chat)) == 2, PATIENCE_S)
                await stream.publish({"hello": 1})
                assert await sub.payloads(1) == ['{"hello":1}']
                await broker.publish(version, "chat", "from mqtt")
                assert await sub.payloads(1) == ["from mqtt"]
                # The bridge joins a stream with the first message into it.
                await broker.publish(version, "city/7/speed", "8.25")
                (speed,) = contents(await take(measured, 1))
                assert speed == {"topic": "city/7/speed", "payload": 8.25}
                assert contents(await take(messages, 2)) == [{"hello": 1}, "from mqtt"]

                await broker.stop()
                await until(lambda: not bridge.connected, PATIENCE_S)
                await stream.publish("while it was away")
                await broker.start()
                assert await sub.payloads(1) == ["while it was away"]
                await until(lambda: bridge.connected, PATIENCE_S)
                await broker.publish(version, "chat", "back again")
                assert await sub.payloads(1) == ["back again"]
                assert contents(await take(messages, 2)) == ["while it was away", "back again"]
                await sub.hears_nothing()
                await nothing_more(messages)
                assert (bridge.taken, bridge.sent, bridge.dropped) == (3, 2, 0)
        finally:
            await broker.stop()
        # Names are looked up in the loop's own threads, which stay for the next ones.
        await asyncio.get_running_loop().shutdown_default_executor()

    in_town(scenario)
