"""Topics, search and readiness over HTTP; and what a network file may say of gateways."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest

from shoal.base.containers import BoundedQueue
from shoal.base.errors import ConfigError
from shoal.config.network_file import load_network_file
from shoal.config.sections import (
    DhtSection,
    GatewaySection,
    MqttMapping,
    MqttSection,
    SearchSection,
    TrackerSection,
)
from shoal.gateway import live_feeds as gateway_feeds
from shoal.gateway.mqtt.bridge import bridge_of
from shoal.gateway.server import gateway_of
from shoal.node import NetworkFile, Node
from shoal.storage.message_store.layout import place_of
from tests.gateway.client import open_gateway
from tests.node.archive import STREAM, Archive, in_archive
from tests.node.network import PATIENCE_S, Town, in_town, run
from tests.transport.recorder import until

JSON, BINARY = "application/json", "application/octet-stream"
OWNED = "0x" + "ab" * 20 + "/x"


def test_a_topic_is_made_written_read_and_heard() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile(dht=DhtSection())) as node, open_gateway(node) as client:
            topic = await client.post("/topics", '{"name": "news"}', JSON)
            assert topic["name"] == "news"
            at = f"/topics/{topic['cid']}"
            assert await client.get(at) == topic
            async with client.events(f"{at}/live") as events:
                first = await client.post(f"{at}/events", "one", BINARY)
                assert first["text"] == "one"
                _, id, data = await events.next()
                assert (id, data["text"]) == (first["cid"], "one")
            await client.post(f"{at}/events", b"\xff", BINARY)
            async with client.events(f"{at}/live", **{"Last-Event-ID": id}) as events:
                assert (await events.next())[2]["base64"] == "/w=="
            async with client.session.get(f"{client.gateway.address}{at}/events") as response:
                lines = [json.loads(line) async for line in response.content]
            assert [line.get("text") for line in lines] == [None, "one"]
            async with client.socket(f"/ws{at}?from=earliest") as socket:
                assert json.loads(await socket.receive_str(timeout=PATIENCE_S))["text"] == "one"
            assert "zdpu" in (await client.get("/topics/x", 400))["error"]
            answer = await client.post("/topics", '{"name": ""}', JSON, 400)
            assert "$.name" in answer["error"]
            answer = await client.get("/search?q=x", 404)
            assert "not in the search network" in answer["error"]

    run(main())


def test_documents_are_put_found_and_deleted() -> None:
    async def main() -> None:
        network = NetworkFile(search=SearchSection())
        async with Node.open(network) as node, open_gateway(node) as client:
            put, _ = await client.ask("PUT", "/documents/cars/7", data='{"colour": "red"}')
            assert put["name"] == "cars/7"
            found = await client.get("/search?q=colour:red&confidence=0.5&limit=1")
            assert found["hits"][0]["content"] == {"colour": "red"}
            assert found["confidence"] > 0
            assert found["nodes"] == 1
            deleted, _ = await client.ask("DELETE", "/documents/cars/7")
            assert deleted["version"] > put["version"]
            for path, remedy in (
                ("/search", "say what is looked for"),
                ("/search?q=x&confidence=2", "confidence=2: give a number"),
                ("/search?q=x&confidence=nan", "confidence=nan: give a number"),
                ("/search?q=(", "query"),
            ):
                assert remedy in (await client.get(path, 400))["error"]
            path = "/documents/x?kind=eternal"
            answer, _ = await client.ask("PUT", path, 400, data="{}")
            assert "give one of instant" in answer["error"]
            answer, _ = await client.ask("PUT", "/documents/x", 400, data="[]")
            assert "object" in answer["error"]

    run(main())


def test_a_node_without_its_tracker_is_not_ready() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        async with open_gateway(node) as client:
            await until(lambda: node.readiness.ready)
            answer = await client.get("/ready")
            assert (answer["ready"], answer["problems"]) == (True, [])
            assert [one["role"] for one in answer["roles"]] == ["streams", "clock", "gateway"]
            stream = await node.create_stream("/x")
            await node.join(stream.id)
            assert (await client.get("/ready"))["ready"]
            (carried,) = (await client.get("/node"))["streams"]
            assert (carried["id"], carried["neighbours"]) == (stream.id, 0)
            assert carried["tracker"] == f"0x{town.tracker.id.hex()}"
            await town.tracker.close()
            await until(lambda: not node.host.connections)
            answer = await client.get("/ready", 503)
            (problem,) = answer["problems"]
            assert problem.startswith(f"streams: {stream.id} has no tracker: ")
            assert "[[trackers]]" in problem
            assert (await client.get("/health"))["links"] == 0

    in_town(scenario)


def test_a_node_that_cannot_store_is_not_ready() -> None:
    async def scenario(town: Archive) -> None:
        (keeper,) = town.storage
        assert keeper.storage is not None
        async with open_gateway(keeper) as client:
            await until(lambda: keeper.readiness.ready)
            keeper.storage.disk.problem = "no room"
            answer = await client.get("/ready", 503)
            assert answer["problems"] == ["storage: nothing can be stored: no room"]
            assert b'shoal_role_ready{role="storage"} 0.0' in client.gateway.metrics.text()

    in_archive(scenario)


def test_a_node_with_damaged_rows_is_not_ready_and_counts_them() -> None:
    async def scenario(town: Archive) -> None:
        (keeper,) = town.storage
        assert keeper.storage is not None
        async with open_gateway(keeper) as client:
            keeper.storage.store.damage.note(place_of(0, 0), 5)
            answer = await client.get("/ready", 503)
            assert "1 damaged row in" in answer["problems"][0]
            assert answer["problems"] == [f"storage: {keeper.storage.problem}"]
            async with client.session.get(client.gateway.address + "/metrics") as response:
                text = await response.text()
            assert "shoal_storage_damaged_rows 1.0" in text
            keeper.storage.store.damage.mend(place_of(0, 0), 5)
            assert (await client.get("/ready"))["ready"]
            async with client.session.get(client.gateway.address + "/metrics") as response:
                assert "shoal_storage_mended_total 1.0" in await response.text()

    in_archive(scenario)


def test_a_node_whose_store_was_deleted_is_not_ready_and_its_metrics_answer() -> None:
    async def scenario(town: Archive) -> None:
        (keeper,) = town.storage
        assert keeper.storage is not None
        async with open_gateway(keeper) as client:
            shutil.rmtree(keeper.storage.store.folder)
            answer = await client.get("/ready", 503)
            assert "is not there any more" in answer["problems"][0]
            async with client.session.get(client.gateway.address + "/metrics") as response:
                assert response.status == 200
                assert "shoal_storage_problem 1.0" in await response.text()

    in_archive(scenario)


def test_a_subscriber_that_does_not_read_is_told_what_it_missed() -> None:
    """Over a real socket, whose buffers take a few megabytes before anything waits."""
    count, size = 60, 400_000

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        with mock.patch.object(
            gateway_feeds, "BoundedQueue", lambda _, size: BoundedQueue(5, size)
        ):
            async with open_gateway(node) as client:
                host, port = client.gateway.address.removeprefix("http://").split(":")
                reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
                head = f"GET /streams/{stream.id}/live HTTP/1.0\r\nHost: localhost\r\n\r\n"
                writer.write(head.encode())
                await reader.readuntil(b": welcome\n\n")
                for number in range(count):
                    await stream.publish(f"{number} " + "x" * size)
                await until(lambda: client.gateway.feeds.gone > 0)
                text, last = bytearray(), f'"content":"{count - 1} '.encode()
                async with asyncio.timeout(PATIENCE_S):
                    while last not in text[-2 * size :]:
                        text += await reader.read(1 << 20)
                missed = client.gateway.feeds.gone
                writer.close()
                await writer.wait_closed()
        gaps = re.findall(
            rb'event: gap\ndata: {"gap":{"count":(\d+),"reason":"slow-consumer"}}', text
        )
        assert sum(map(int, gaps)) == missed > 0
        assert text.count(b'"content":"') == count - missed

    in_town(scenario)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('[gateway]\nprivate_key = "x"', "private_key: it is of no use without its certificate"),
        ('[gateway]\norigins = ["app.example"]', "origins: 'app.example' is none"),
        ('[gateway]\norigins = ["https://a/b"]', "write https://HOST"),
        ("[gateway]\nburst = 0", "burst"),
        ("BROKER localhost:1883", "write mqtt://HOST:PORT"),
        ("[mqtt]\nbroker = 'mqtt://x:1'\nmappings = []", "mappings"),
        ("MAPPED a+ in", "is no pattern"),
        ("MAPPED a/#/b in", "is no pattern"),
        ("MAPPED a/+ both", "is many topics, so nothing can be sent to it"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path: Path, text: str, remedy: str) -> None:
    if text.startswith(("MAPPED", "BROKER")):
        broker, topic, direction = "mqtt://x:1", "a", "in"
        if text.startswith("MAPPED"):
            _, topic, direction = text.split()
        else:
            _, broker = text.split()
        text = (
            f"[mqtt]\nbroker = '{broker}'\n[[mqtt.mappings]]\n"
            f"topic = '{topic}'\nstream = '{OWNED}'\ndirection = '{direction}'"
        )
    file = tmp_path / "shoal.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=remedy.replace("[", r"\[")):
        load_network_file(file)


def test_a_password_needs_a_user_and_a_bridge_a_tracker() -> None:
    mapping = (MqttMapping("a", STREAM),)
    with pytest.raises(ConfigError, match="name the user, too"):
        MqttSection("mqtt://x:1", mapping, password="env:X")
    with pytest.raises(ConfigError, match="never the password itself"):
        MqttSection("mqtt://x:1", mapping, user="me", password="secret")

    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            with pytest.raises(ConfigError, match=r"add \[\[trackers\]\]"):
                bridge_of(node, MqttSection("mqtt://x:1", mapping))
        async with Node.open(NetworkFile(tracker=TrackerSection())) as node:
            bridge = bridge_of(node, MqttSection("mqtt://127.0.0.1:9", mapping))
            gateway = gateway_of(node, GatewaySection(), bridge)
            assert "mqtt: not connected yet" in node.readiness.problems
            assert b"shoal_mqtt_connected 0.0" in gateway.metrics.text()
            await gateway.close()

    run(main())
