"""History over HTTP."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from time import time_ns
from typing import Any
from unittest import mock
from urllib.parse import quote

import aiohttp
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from shoal.base.ids import show_node_id
from shoal.config.network_file import NetworkFile
from shoal.config.sections import GatewaySection
from shoal.gateway import Gateway
from shoal.gateway.endpoints import history as gateway_history
from shoal.gateway.live_feeds import doors_of
from shoal.gateway.server import gateway_of as whole_gateway_of
from shoal.node import Node
from shoal.storage.errors import StoreError
from shoal.storage.message_store.store import Store
from tests.node.archive import STREAM, Archive, in_archive
from tests.node.network import run
from tests.node.storage import StorageTown
from tests.transport.recorder import until


class Client:
    """Reads from a gateway."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.address = address
        self.session = session

    async def get(self, path: str, status: int = 200) -> Any:
        async with self.session.get(f"{self.address}/streams/{STREAM}/{path}") as response:
            assert response.status == status, await response.text()
            assert response.content_type == "application/json"
            return await response.json()

    async def lines(self, query: str) -> list[Any]:
        async with self.session.get(f"{self.address}/streams/{STREAM}/messages{query}") as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "application/x-ndjson"
            return [json.loads(line) async for line in response.content]


@asynccontextmanager
async def gateway_of(node: Node) -> AsyncIterator[Client]:
    disk = None if node.storage is None else node.storage.disk
    gateway = Gateway(node.host, node.tracker, doors=doors_of(node), disk=disk)
    try:
        await gateway.open("127.0.0.1:0")
        async with aiohttp.ClientSession() as session:
            yield Client(gateway.address, session)
    finally:
        await gateway.close()


async def filled(town: Archive, count: int) -> None:
    publisher = await town.publisher()
    for number in range(count):
        await publisher.publish({"number": number})
    await town.kept(count)


def numbers(lines: list[Any]) -> list[int]:
    return [line["content"]["number"] for line in lines]


def test_messages_come_as_lines_from_any_node() -> None:
    async def scenario(town: Archive) -> None:
        await filled(town, 600)
        async with gateway_of(await town.open()) as client:
            lines = await client.lines("")
            assert numbers(lines) == list(range(600))
            assert numbers(await client.lines("?last=7&partition=0")) == list(range(593, 600))
            begin, end = lines[100]["timestamp_ms"], lines[300]["timestamp_ms"]
            between = [n for n, line in enumerate(lines) if begin <= line["timestamp_ms"] <= end]
            assert numbers(await client.lines(f"?from={begin}&to={end}")) == between
            iso = quote(datetime.fromtimestamp(begin / 1000).astimezone().isoformat())
            assert numbers(await client.lines(f"?from={iso}&to={end}")) == between
            publisher = lines[0]["publisher"]
            assert len(await client.lines(f"?publisher={publisher}")) == 600
            assert await client.lines(f"?publisher={'0x' + '12' * 20}") == []

    in_archive(scenario)


async def publish_much(town: Archive) -> None:
    """More than all that lies between a reader and a disk takes."""
    publisher = await town.publisher()
    for _ in range(10):
        await asyncio.gather(
            *(publisher.publish({"padding": "x" * 40_000}, durable=True) for _ in range(30))
        )


def test_a_slow_client_is_waited_for_and_one_that_goes_ends_the_read() -> None:
    async def scenario(town: Archive) -> None:
        await publish_much(town)
        node = await town.open()
        async with gateway_of(node) as client:
            host, port = client.address.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.write(
                f"GET /streams/{STREAM}/messages HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            assert b"200" in await reader.readline()
            await until(lambda: node.history._reads, 10)
            before = None
            for _ in range(50):  # until nothing moves any more
                await asyncio.sleep(0.1)
                (read,) = node.history._reads
                now = read._rows[0].message.id if read._rows else None
                if now is not None and now == before:
                    break
                before = now
            else:
                raise AssertionError("it never stopped for a client that does not read")
            writer.close()
            await until(lambda: not node.history._reads, 10)
            assert node.history._client._jobs == {}

    in_archive(scenario)


def test_a_client_that_takes_nothing_is_parted_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its read would hold its place for ever, and there are not so many."""
    monkeypatch.setattr(gateway_history, "STALLED_S", 0.5)

    async def scenario(town: Archive) -> None:
        await publish_much(town)
        node = await town.open()
        async with gateway_of(node) as client:
            host, port = client.address.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.write(
                f"GET /streams/{STREAM}/messages HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            assert b"200" in await reader.readline()
            await until(lambda: node.history._reads, 10)
            await until(lambda: not node.history._reads, 10)
            assert node.history._client._jobs == {}
            writer.close()

    in_archive(scenario)


def test_a_store_that_cannot_be_read_is_503() -> None:
    async def scenario(town: Archive) -> None:
        async with gateway_of(town.storage[0]) as client:
            with mock.patch.object(Store, "log_read", side_effect=StoreError("it is damaged")):
                assert "it is damaged" in (await client.get("log", 503))["error"]

    in_archive(scenario)


def test_the_logs_of_a_storage_node_come_in_pages() -> None:
    async def scenario(town: Archive) -> None:
        await filled(town, 250)
        assert town.storage[0].storage is not None
        log = str(town.storage[0].storage.store.log)
        async with gateway_of(town.storage[0]) as client:
            after, rows = 0, []
            while True:
                page = await client.get(f"log?log={log}&after={after}&limit=100")
                assert (page["log"], page["first"], page["last"]) == (log, 1, 250)
                rows += page["rows"]
                if page["through"] == page["last"]:
                    break
                after = page["through"]
            assert [row["seq"] for row in rows] == list(range(1, 251))
            contents = [json.loads(b64decode(row["content"]))["number"] for row in rows]
            assert contents == list(range(250))
            assert set(rows[0]) == {
                "seq", "ingest_ns", "timestamp_ms", "sequence", "publisher", "chain",
                "content_type", "content",
            }  # fmt: skip
            assert len((await client.get("log"))["rows"]) == 100, "its own, unless told otherwise"
            assert numbers(await client.lines("?last=3")) == [247, 248, 249], "and messages too"

    in_archive(scenario)


@pytest.mark.parametrize(
    ("path", "status", "complaint"),
    [
        ("messages?last=0", 400, "last=0: give a whole number, 1 to 100000"),
        ("messages?last=x", 400, "last=x"),
        ("messages?last=5&from=7", 400, "give one or the other"),
        ("messages?from=yesterday", 400, "from 'yesterday': write milliseconds since 1970"),
        ("messages?from=2026-01-31T12:00:00", 400, "2026-01-31T12:00:00Z"),
        ("messages?from=9&to=5", 400, "from 1970-01-01T00:00:00.009Z is after to 1970-"),
        ("messages?partition=1", 400, "partition 1"),
        ("messages?partition=-1", 400, "partition=-1: give a whole number, 0 to 99"),
        ("messages?publisher=bob", 400, "'bob' is not a node id"),
        ("messages?limit=5", 400, "limit=: no such value: give last, from, to"),
        ("log?after=x", 400, "after=x"),
        ("log?limit=1001", 400, "limit=1001: give a whole number, 1 to 1000"),
        ("log?log=7", 400, "log=7: give a log's id, as log/heads names them"),
        ("log?log=" + "00" * 16, 404, "no row of log"),
        ("log?seq=5", 400, "seq=: no such value"),
        ("log/heads?partition=0", 400, "partition=: no such value"),
        ("log?after=" + "9" * 5000, 400, "after=9"),
        ("messages?last=" + "1" * 5000, 400, "last=1"),
    ],
)
def test_bad_values_are_named_with_a_remedy(path: str, status: int, complaint: str) -> None:
    async def scenario(town: Archive) -> None:
        async with gateway_of(town.storage[0]) as client:
            answer = await client.get(path, status)
            assert complaint in answer["error"]

    in_archive(scenario)


def test_what_retention_took_is_gone() -> None:
    async def scenario(town: Archive) -> None:
        await filled(town, 20)
        assert town.storage[0].storage is not None
        store = town.storage[0].storage.store
        async with gateway_of(town.storage[0]) as client:
            retainer = store._retainer
            retainer._config = replace(retainer._config, age_ns=1)
            while store.retain(time_ns()).more:
                pass
            answer = await client.get("log?after=0", 410)
            assert "has expired" in answer["error"]

    in_archive(scenario)


def test_a_node_without_storage_or_tracker_says_whom_to_ask() -> None:
    async def main() -> None:
        async with Node.open(NetworkFile()) as node, gateway_of(node) as client:
            answer = await client.get("messages", 404)
            assert "knows no tracker" in answer["error"]
            answer = await client.get("log", 404)
            assert "ask a storage node" in answer["error"]

    run(main())


def test_storage_that_is_away_is_503() -> None:
    async def scenario(town: Archive) -> None:
        node = await town.open()
        await town.storage[0].close()
        async with gateway_of(node) as client:
            answer = await client.get("messages", 503)
            assert "are they running" in answer["error"]

    in_archive(scenario)


def test_metrics_tell_what_a_storage_node_keeps() -> None:
    async def scenario(town: Archive) -> None:
        await filled(town, 5)
        keeper = town.storage[0]
        assert keeper.storage is not None
        async with gateway_of(keeper) as client, gateway_of(await town.open()) as other:
            got = await metrics(client)
            assert got["shoal_storage_messages"] == 5
            assert got["shoal_storage_size_bytes"] == keeper.storage.store.info().size_bytes > 0
            assert got["shoal_storage_problem"] == 0
            keeper.storage.disk.problem = "no room"
            assert (await metrics(client))["shoal_storage_problem"] == 1
            keeper.storage.disk.problem = None
            with mock.patch.object(Store, "info", side_effect=StoreError("it cannot be read")):
                got = await metrics(client)
            assert (got["shoal_storage_problem"], got["shoal_links"] > 0) == (1, True)
            assert "shoal_storage_messages" not in got
            assert not any(name.startswith("shoal_storage") for name in await metrics(other))

    in_archive(scenario)


async def metrics(client: Client) -> dict[str, float]:
    async with client.session.get(f"{client.address}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {sample.name: sample.value for family in families for sample in family.samples}


def test_history_that_may_lack_some_does_not_end_like_all_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with town.open("tracker"), town.open("one"), town.open() as node:
            stream = await node.open_stream(STREAM)
            async with gateway_of(node) as client:
                async with town.open("two") as two:
                    for number in range(3):
                        await stream.publish({"number": number}, durable=2)
                    assert numbers(await client.lines("")) == [0, 1, 2]
                    id = show_node_id(two.id)
                url = f"{client.address}/streams/{STREAM}/messages"
                lines: list[Any] = []
                async with client.session.get(url) as answer:
                    assert answer.status == 200
                    while not lines or "error" not in lines[-1]:
                        lines.append(json.loads(await answer.content.readline()))
                    with pytest.raises(aiohttp.ClientPayloadError):
                        await answer.content.readline()
                assert numbers(lines[:-1]) == [0, 1, 2], "what was found"
                assert id in lines[-1]["error"]
                nothing = await client.get("messages?publisher=0x" + "12" * 20, 503)
                assert id in nothing["error"], "nothing found is no empty history"

    run(main())


def test_the_heads_of_logs_say_which_storage_nodes_may_have_more(tmp_path: Path) -> None:
    async def main() -> None:
        town = StorageTown(tmp_path, "one", "two", stream=STREAM)
        async with AsyncExitStack() as stack, town.open("tracker"):
            one = await stack.enter_async_context(town.open("one"))
            node = await stack.enter_async_context(town.open())
            stream = await node.open_stream(STREAM)
            gateway = whole_gateway_of(one, GatewaySection(listen="127.0.0.1:0"))
            address = await gateway.open("127.0.0.1:0")
            stack.push_async_callback(gateway.close)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            client = Client(address, session)
            async with town.open("two") as two:
                await stream.publish({"number": 0}, durable=2)
                async with asyncio.timeout(30):  # it dials again after a while
                    while (await client.get("log/heads?whole=true"))["unheard"]:
                        await asyncio.sleep(0.2)
                id = show_node_id(two.id)
            (unheard,) = (await client.get("log/heads?whole=true"))["unheard"]
            assert unheard["node"] == id
            assert unheard["whole_until_ms"] == unheard["until_ms"] - 60_000 > 0
            assert (await client.get("log/heads"))["unheard"] == [], "they were not compared"
            assert "whole=maybe" in (await client.get("log/heads?whole=maybe", 400))["error"]
            async with session.get(f"{address}/metrics") as answer:
                assert f'shoal_storage_streams_uncompared{{node="{id}"}} 0.0' in await answer.text()

    run(main())
