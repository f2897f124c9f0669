"""The explorer behind a gateway with keys: the page is everybody's, what it shows is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from shoal.explorer import ExplorerRoutes
from shoal.gateway import Gateway, GatewayConfig
from shoal.gateway.api_keys import KeyFile
from shoal.identity import SeededEntropy
from shoal.node import NetworkFile, Node

DATA = ("network", "streams", "feed", "runs", "search?query=x", "overlay?id=x", "topics", "circle")


def test_only_the_page_itself_needs_no_key(tmp_path: Path) -> None:
    async def main() -> None:
        file = KeyFile(tmp_path / "keys")
        reads = file.add("reads", ("read",), ("*",), SeededEntropy("reads"))
        publishes = file.add("publishes", ("publish",), ("*",), SeededEntropy("publishes"))
        explorer = ExplorerRoutes()
        async with Node.open(NetworkFile()) as node, aiohttp.ClientSession() as session:
            config = GatewayConfig(keys=tmp_path / "keys")
            gateway = Gateway(node.host, config=config, extras=[explorer])
            address = await gateway.open("127.0.0.1:0")

            async def status(path: str, key: str | None = None) -> int:
                headers = {} if key is None else {"Authorization": f"Bearer {key}"}
                async with session.get(address + path, headers=headers) as response:
                    return response.status

            try:
                assert await status("/explorer/") == await status("/explorer") == 200
                for path in DATA:
                    assert await status(f"/observe/{path}") == 401
                    assert await status(f"/observe/{path}", publishes) == 403
                assert await status("/observe/network", reads) == 200
                assert await status("/observe/streams", reads) == 200
            finally:
                explorer.close()
                await gateway.close()

    asyncio.run(main())
