"""The explorer over HTTP: the page, its policy, and answers that say what to do instead."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from shoal.explorer import ExplorerRoutes, SeenNode, feed
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.explorer.test_feed import ALICE, BOB, FakeHost
from tests.support.synthetic_run import SyntheticRun

Scenario = Callable[["Client", ExplorerRoutes], Awaitable[None]]


class Client:
    """Asks an explorer."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.address = address
        self.session = session

    async def get(self, path: str, status: int = 200) -> Any:
        """The JSON of an answer."""
        async with self.session.get(self.address + path) as response:
            assert response.status == status, await response.text()
            return await response.json()


def with_explorer(routes: Callable[[], ExplorerRoutes], scenario: Scenario) -> None:
    """Serve it, and ask."""

    async def main() -> None:
        explorer, app = routes(), web.Application()
        explorer.add_routes(app.router)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with aiohttp.ClientSession() as session, asyncio.timeout(20):
                address = f"http://127.0.0.1:{runner.addresses[0][1]}"
                await scenario(Client(address, session), explorer)
        finally:
            explorer.close()
            await runner.cleanup()

    asyncio.run(main())


def test_the_page_and_all_it_names_are_served_under_a_strict_policy() -> None:
    async def scenario(client: Client, explorer: ExplorerRoutes) -> None:
        async with client.session.get(client.address + "/explorer") as response:
            assert response.url.path == "/explorer/"
            page = await response.text()
            policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=", page)  # nothing inline
        named = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert len(named) == 3  # script, style and icon
        for path in named:
            assert path.startswith("/explorer/assets/")
            assert path.startswith(explorer.public)
            async with client.session.get(client.address + path) as response:
                assert response.status == 200
                assert "immutable" in response.headers["Cache-Control"]
                assert response.headers["X-Content-Type-Options"] == "nosniff"

    with_explorer(ExplorerRoutes, scenario)


@pytest.mark.parametrize("name", ["nothing.js", "..%2froutes.py", "%2e%2e/%2e%2e/routes.py"])
def test_other_files_are_not_served(name: str) -> None:
    async def scenario(client: Client, explorer: ExplorerRoutes) -> None:
        async with client.session.get(f"{client.address}/explorer/assets/{name}") as response:
            assert response.status == 404

    with_explorer(ExplorerRoutes, scenario)


def test_an_empty_explorer_answers_everything() -> None:
    async def scenario(client: Client, explorer: ExplorerRoutes) -> None:
        assert await client.get("/observe/streams") == []
        assert await client.get("/observe/topics") == []
        assert await client.get("/observe/circle") == []
        assert (await client.get("/observe/runs"))["runs"] == []
        assert not (await client.get("/observe/network"))["tracker"]
        for path, status, said in (
            ("overlay?id=0x1/x", 404, "/observe/streams"),
            ("overlay", 400, "id="),
            ("topic?cid=x", 400, "x"),
            ("search?query=air", 404, "[search]"),
            ("search?query=air&confidence=much", 400, "0.99"),
            ("run?run=none", 404, "lab run"),
            ("path?run=none&message=-1", 400, "message"),
        ):
            assert said in (await client.get(f"/observe/{path}", status))["error"]

    with_explorer(ExplorerRoutes, scenario)


def test_the_streams_of_a_tracker_are_listed() -> None:
    def routes() -> ExplorerRoutes:
        host = FakeHost(ALICE)
        host.machines = (Tracker(lambda stream: RandomPolicy(4, Random(1))),)
        return ExplorerRoutes([SeenNode(host, "eu-north-1"), SeenNode(FakeHost(BOB))])

    async def scenario(client: Client, explorer: ExplorerRoutes) -> None:
        network = await client.get("/observe/network")
        assert network["tracker"]
        assert network["nodes"][0]["place"] == [59.3, 18.1]
        assert network["nodes"][1]["place"] is None
        assert await client.get("/observe/streams") == []
        explorer.remove(ALICE)
        assert not (await client.get("/observe/network"))["tracker"]

    with_explorer(routes, scenario)


def test_runs_are_read_over_http(tmp_path: Path) -> None:
    run = SyntheticRun(32)
    run.write(tmp_path)

    async def scenario(client: Client, explorer: ExplorerRoutes) -> None:
        (line,) = (await client.get("/observe/runs"))["runs"]
        assert line["run"] == run.run
        assert line["has_overlay"]
        page = await client.get(f"/observe/run?run={run.run}")
        assert len(page["overlay"]["nodes"]) == 32
        path = await client.get(f"/observe/path?run={run.run}&message=1")
        assert path["publisher"] == run.publishers[1]

    with_explorer(lambda: ExplorerRoutes(results=tmp_path), scenario)


def test_so_many_pages_may_be_open_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "BEAT_S", 0.005)
    monkeypatch.setattr(feed, "READERS_MAX", 3)

    async def scenario(client: Client, explorer: ExplorerRoutes) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            opened = [await session.get(client.address + "/observe/feed") for _ in range(3)]
            assert {response.status for response in opened} == {200}
            assert "close one" in (await client.get("/observe/feed", 400))["error"]
            for response in opened:
                response.close()
        for _ in range(100):  # the ends of connections are on their way
            async with client.session.get(client.address + "/observe/feed") as response:
                if response.status == 200:
                    response.close()
                    return
            await asyncio.sleep(0.05)
        raise AssertionError("nobody was let in again")

    with_explorer(lambda: ExplorerRoutes([SeenNode(FakeHost(ALICE))]), scenario)
