"""What clients can have a gateway do that outlives them: pages that ask, keys that are gone, bodies
that do not end, and lines in the log."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import tracemalloc
from contextlib import AsyncExitStack, suppress
from typing import Any
from unittest import mock

import aiohttp
import msgspec
import pytest
from aiohttp import web

from shoal.base.units import KIB, MIB
from shoal.config.sections import (
    DhtSection,
    GatewaySection,
    PeerEntry,
    SearchSection,
    TrackerSection,
)
from shoal.gateway import api_keys as gateway_keys
from shoal.gateway import requests as gateway_bodies
from shoal.gateway import server as gateway_server
from shoal.gateway.api_keys import KeyFile
from shoal.gateway.config import BODIES_SHARE_BYTES_MAX
from shoal.gateway.requests import BodyBudget
from shoal.gateway.server import gateway_of
from shoal.node import NetworkFile, Node
from shoal.node.search.documents import NodeDocuments
from tests.gateway.client import Client, open_gateway
from tests.gateway.test_connections import connected
from tests.gateway.test_guard import STREAM, Page, bearer, file, new_key, url_of
from tests.node.network import PATIENCE_S, Town, in_town, network_of, run
from tests.transport.recorder import until

__all__ = ["file"]

CROSS = {"Sec-Fetch-Site": "cross-site"}
SAME_SITE = {"Sec-Fetch-Site": "same-site"}
IMAGE = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FRAME = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
HALF = "POST /streams/%s/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
TRUST_S = 0.05  # how long a revoked key is believed here


# Pages


def test_no_route_answers_a_page_of_another_site() -> None:
    """Images, frames and links have no Origin; a browser says what they are all the same."""

    async def main() -> None:
        async with Node.open(NetworkFile(dht=DhtSection())) as node:
            gateway = gateway_of(node, GatewaySection(), extras=[Page()])
            await gateway.open("127.0.0.1:0")
            try:
                async with aiohttp.ClientSession() as session:
                    client = Client(gateway, session)
                    for route in gateway.table.routes:
                        for site in (CROSS, SAME_SITE):
                            for kind in (IMAGE, FRAME, LINK):
                                headers = {**site, **kind}
                                url = gateway.address + url_of(route)
                                async with session.request(
                                    route.method, url, headers=headers
                                ) as answer:
                                    assert answer.status == 403, (route.path, headers)
                    for path in ("/page-data", "/nothing"):
                        await client.get(path, 403, headers={**CROSS, **LINK})
                    # A link may lead to a page without data, and nothing may be made of it.
                    await client.get("/page/index.html", headers={**CROSS, **LINK})
                    for kind in (IMAGE, FRAME):
                        await client.get("/page/index.html", 403, headers={**CROSS, **kind})
                    own = {"Sec-Fetch-Site": "same-origin", **IMAGE}
                    _, response = await client.ask("GET", "/health", headers=own)
                    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                    await client.get("/health", headers={"Sec-Fetch-Site": "none", **LINK})
            finally:
                await gateway.close()

    run(main())


def test_a_listed_page_may_ask_and_its_images_may_not() -> None:
    async def main() -> None:
        async with (
            Node.open(NetworkFile()) as node,
            open_gateway(node, origins=("https://app.example",)) as client,
        ):
            listed = {"Origin": "https://app.example", **CROSS}
            await client.get("/node", headers=listed)
            await client.get("/node", 403, headers={**CROSS, **IMAGE})

    run(main())


def test_a_gateway_on_all_addresses_is_asked_on_loopback_by_names_of_loopback() -> None:
    """A page whose own name leads to 127.0.0.1 finds a gateway there that listens everywhere."""

    async def main() -> None:
        async with (
            Node.open(NetworkFile()) as node,
            open_gateway(node, listen="0.0.0.0:0", open_to_all=True) as client,
        ):
            url = client.gateway.address.replace("0.0.0.0", "127.0.0.1") + "/node"
            for host, status in (("evil.example", 421), ("localhost", 200)):
                headers = {"Host": host, "Origin": f"http://{host}"}
                async with client.session.get(url, headers=headers) as answer:
                    assert answer.status == status

    run(main())


def test_a_get_tells_nobody_of_what_it_looks_at() -> None:
    """Every GET there is, of a stream and a topic that others made."""
    told: list[str] = []

    async def put(self: Any, content: Any, life: Any, name: str, *more: Any) -> None:
        told.append(name)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            quiet = NetworkFile(
                tracker=TrackerSection(), dht=DhtSection(), search=SearchSection(announce=False)
            )
            maker = await stack.enter_async_context(Node.open(quiet))
            entry = PeerEntry("0x" + maker.id.hex(), maker.addresses)
            network = msgspec.structs.replace(
                network_of(maker),
                dht=DhtSection(bootstrap=(entry,)),
                search=SearchSection(bootstrap=(entry,)),
            )
            node = await stack.enter_async_context(Node.open(network))
            stack.enter_context(mock.patch.object(NodeDocuments, "put", put))
            stream, topic = await maker.create_stream("/merger"), await maker.create_topic("news")
            client = await stack.enter_async_context(open_gateway(node))
            for route in client.gateway.table.routes:
                path = url_of(route).replace(STREAM, stream.id)
                path = path.replace(url_of_cid(path), topic.cid)
                if route.method != "GET" or path.startswith("/search"):
                    continue
                if path.startswith("/ws/"):
                    async with client.socket(path.rstrip("?")):
                        continue
                async with client.session.get(client.gateway.address + path) as answer:
                    if "/live" not in path:
                        await answer.read()
                    elif path.startswith("/topics") or path.startswith("/streams"):
                        assert answer.status == 200
            assert told == []
            assert (await client.get(f"/topics/{topic.cid}"))["name"] == "news"
            await node.create_stream("/mine", public=True)
            await until(lambda: told == [f"0x{node.id.hex()}/mine"])

    run(main())


def url_of_cid(path: str) -> str:
    """The CID in a path, or a text that is in none."""
    return next((part for part in path.split("/") if part.startswith("zdpu")), "\0")


# Keys


@pytest.fixture
def brief_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_keys, "LOOK_AGAIN_S", TRUST_S)
    monkeypatch.setattr(gateway_server, "LOOK_AGAIN_S", TRUST_S, raising=False)


class Endless:
    """Something that is served beside the table, and does not end: as the explorer's feed."""

    public: tuple[str, ...] = ()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"begun\n")
            await asyncio.sleep(PATIENCE_S)
            return response

        router.add_get("/observe/feed", handler)


@pytest.mark.usefixtures("brief_trust")
@pytest.mark.parametrize("how", ["revoked", "narrowed"])
def test_what_is_open_ends_with_its_key(file: KeyFile, how: str) -> None:
    kept, key = new_key(file, "read", "admin"), new_key(file, "read")

    def take_away() -> None:
        if how == "revoked":
            file.revoke(key.split("_")[1])
            return
        keys = file.read()
        narrow = msgspec.structs.replace(keys[1], streams=["0x" + "cd" * 20 + "/*"])
        file._write([keys[0], narrow])

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        gateway = gateway_of(node, GatewaySection(keys=str(file.path)), extras=[Endless()])
        await gateway.open("127.0.0.1:0")
        try:
            async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
                client = Client(gateway, session)
                live = f"/streams/{stream.id}/live?api_key="
                events = await stack.enter_async_context(client.events(live + key))
                others = await stack.enter_async_context(client.events(live + kept))
                path = f"/ws/streams/{stream.id}?api_key={key}"
                socket = await stack.enter_async_context(client.socket(path))
                feed = await stack.enter_async_context(
                    session.get(gateway.address + "/observe/feed", headers=bearer(key))
                )
                assert await feed.content.readline() == b"begun\n"
                await stream.publish("before")
                assert await events.contents(1) == ["before"]
                assert json.loads(await socket.receive_str(timeout=PATIENCE_S))["content"]
                take_away()
                async with asyncio.timeout(2):
                    closed = await socket.receive()
                    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, 1008)
                    for content in (feed.content, events._content):
                        with pytest.raises(aiohttp.ClientPayloadError):
                            await content.read()
                await stream.publish("after")
                assert await others.contents(2) == ["before", "after"], "others go on"
                assert gateway.feeds.subscribers == 1
        finally:
            await gateway.close()

    in_town(scenario)


@pytest.mark.usefixtures("brief_trust")
def test_a_body_that_is_sent_slowly_ends_with_its_key(file: KeyFile) -> None:
    new_key(file, "read")
    key = new_key(file, "publish")

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        head = HALF.replace("\r\n\r\n", f"\r\nAuthorization: Bearer {key}\r\n\r\n")
        async with (
            stream.subscribe() as messages,
            open_gateway(node, keys=str(file.path)) as client,
            connected(client, (head % (stream.id, 6)).encode() + b"abc") as (reader, writer),
        ):
            await until(lambda: client.gateway.bodies.held_bytes == 6)
            file.revoke(key.split("_")[1])
            async with asyncio.timeout(2):
                assert await reader.read() == b""
            writer.write(b"def")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(messages)
            assert client.gateway.bodies.held_bytes == 0

    in_town(scenario)


# Bodies


POSTS = 12
POST_BYTES = 4 * MIB


async def send_lines(writer: asyncio.StreamWriter) -> None:
    """A body, but for its last byte."""
    head = HALF.replace("\r\n\r\n", "\r\nContent-Type: application/x-ndjson\r\n\r\n")
    writer.write((head % (STREAM, POST_BYTES + 1)).encode())
    with suppress(ConnectionError):  # it was told that there is no room
        for _ in range(POST_BYTES // (64 * KIB)):
            writer.write(b"1\n" * (32 * KIB))
            await writer.drain()


def test_bodies_are_bounded_together_and_gone_when_their_clients_are() -> None:
    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with open_gateway(node) as client, AsyncExitStack() as stack:
            path = f"/streams/{stream.id}/messages"
            await client.post(path, b"7", "application/json")
            gc.collect()
            gc.disable()  # what is let go of has to be gone without it
            stack.callback(gc.enable)
            tracemalloc.start()
            stack.callback(tracemalloc.stop)
            async with AsyncExitStack() as open_ones:
                posts = [
                    await open_ones.enter_async_context(connected(client)) for _ in range(POSTS)
                ]
                await asyncio.gather(*[send_lines(writer) for _, writer in posts])
                reading = [asyncio.create_task(reader.read(12)) for reader, _ in posts]
                done, waiting = await asyncio.wait(reading, timeout=3)
                assert {task.result() for task in done} == {b"HTTP/1.1 429"}
                kept = len(waiting)
                assert 1 <= kept <= BODIES_SHARE_BYTES_MAX // POST_BYTES
                # A second copy is there while a body grows.
                assert tracemalloc.get_traced_memory()[0] < 2 * BODIES_SHARE_BYTES_MAX
                for task in waiting:
                    task.cancel()
                for _, writer in posts:
                    writer.transport.abort()
            await until(lambda: tracemalloc.get_traced_memory()[0] < POST_BYTES)
            assert client.gateway.bodies.held_bytes == 0
            await client.post(path, b"7", "application/json")

    in_town(scenario)


def test_one_budget_with_shares() -> None:
    budget = BodyBudget(bytes_max=100, share_max=60)
    with budget.charge(["a"]) as one, budget.charge(["b", "c"]) as two:
        one.grow_to(60)
        with pytest.raises(web.HTTPTooManyRequests) as mine:
            one.grow_to(61)
        assert mine.value.headers["Retry-After"] == "1"
        two.grow_to(40)
        with pytest.raises(web.HTTPServiceUnavailable):
            two.grow_to(41)
        with budget.charge(["c"]) as three, pytest.raises(web.HTTPTooManyRequests):
            three.grow_to(21)  # the address of two
        assert budget.held_bytes == 100
    assert budget.held_bytes == 0
    assert budget._shares == {}


def test_a_body_has_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """However steadily it drips."""
    monkeypatch.setattr(gateway_bodies, "BODY_S", 0.3, raising=False)

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        async with (
            open_gateway(node) as client,
            connected(client, (HALF % (STREAM, 1000)).encode()) as (reader, writer),
        ):

            async def drip() -> None:
                while True:
                    writer.write(b"1")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            async with asyncio.timeout(5):
                head = await reader.readuntil(b"\r\n\r\n")
            dripping.cancel()
            assert head.startswith(b"HTTP/1.1 408 ")

    in_town(scenario)


# The log


def test_who_hangs_up_writes_nothing_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(town: Town) -> None:
        (node,) = await town.move_in()
        stream = await node.create_stream("/x")
        async with open_gateway(node) as client:
            for text in (
                (HALF % (STREAM, 1000)).encode() + b"abc",
                CHUNKED + b"5\r\nab",
                CHUNKED + b"zz\r\n",
                b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nno HTTP at all\r\n\r\n",
                b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 10_000,
                f"GET /streams/{stream.id}/live HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
            ):
                for _ in range(5):
                    async with connected(client, text) as (_, writer):
                        await asyncio.sleep(0.02)
                        writer.transport.abort()
            await asyncio.sleep(0.1)
            await client.get("/health")

    in_town(scenario)
    gc.collect()
    assert caplog.messages == []


def test_strangers_at_the_link_port_write_ten_lines_and_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with Node.open(NetworkFile()) as node:
            caplog.clear()
            for number in range(240):
                node.host.handshake_failed(f"ws://192.0.2.7:{number}", "closed")

    run(main())
    assert caplog.messages[:10] == [
        f"handshake with ws://192.0.2.7:{number} failed: closed" for number in range(10)
    ]
    (last,) = caplog.messages[10:]
    assert last.startswith("... and 230 more in the last minute, the last: ")
