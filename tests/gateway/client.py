"""A node behind a gateway, and whoever speaks to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from shoal.config.sections import GatewaySection
from shoal.gateway import Gateway
from shoal.gateway.server import gateway_of
from shoal.node import Node
from tests.node.network import PATIENCE_S


class Client:
    """Speaks to a gateway."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.session = session

    async def ask(
        self, method: str, path: str, status: int = 200, **more: Any
    ) -> tuple[Any, aiohttp.ClientResponse]:
        """The JSON of an answer, and the answer."""
        url = self.gateway.address + path
        async with self.session.request(method, url, **more) as response:
            text = await response.text()
            assert response.status == status, text
            return json.loads(text) if text else None, response

    async def get(self, path: str, status: int = 200, **more: Any) -> Any:
        return (await self.ask("GET", path, status, **more))[0]

    async def post(self, path: str, body: Any, media: str, status: int = 201, **more: Any) -> Any:
        headers = {"Content-Type": media, **more.pop("headers", {})}
        return (await self.ask("POST", path, status, data=body, headers=headers, **more))[0]

    @asynccontextmanager
    async def events(self, path: str, **headers: str) -> AsyncIterator[Events]:
        """Server-sent events, from when the stream is open."""
        url = self.gateway.address + path
        async with self.session.get(url, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            assert await response.content.readline() == b": welcome\n"
            yield Events(response)

    @asynccontextmanager
    async def socket(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with self.session.ws_connect(self.gateway.address + path) as socket:
            yield socket


class Events:
    """Reads server-sent events as the HTML standard says."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content

    async def next(self) -> tuple[str, str, Any]:
        """Name, id and data of the next one."""
        name, id, data = "message", "", ""
        async with asyncio.timeout(PATIENCE_S):
            async for raw in self._content:
                line = raw.decode().rstrip("\n")
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    id = value
                elif field == "data":
                    data = value
                elif not line and data:
                    return name, id, json.loads(data)
        raise AssertionError("no event came")

    async def contents(self, count: int) -> list[Any]:
        return [(await self.next())[2]["content"] for _ in range(count)]


@asynccontextmanager
async def open_gateway(node: Node, **section: Any) -> AsyncIterator[Client]:
    """The whole gateway of a node, as `shoal serve` opens it."""
    gateway = gateway_of(node, GatewaySection(**section))
    try:
        await gateway.open(gateway_listen(section))
        async with aiohttp.ClientSession() as session:
            yield Client(gateway, session)
    finally:
        await gateway.close()


def gateway_listen(section: dict[str, Any]) -> str:
    listen: str = section.get("listen", "127.0.0.1:0")
    return listen
