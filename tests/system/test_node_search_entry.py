"""The way into a search network, over sockets: host caches, web caches, and nobody who answers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from shoal.base.errors import SearchUnavailable
from shoal.base.ids import Contact, NodeId
from shoal.config.sections import PeerEntry
from shoal.node import Node
from shoal.node.search.client import fetch_web_cache, read_host_cache, show_hosts
from tests.node.network import free_port, run
from tests.node.search import SearchTown, found, until_found
from tests.transport.recorder import until

pytestmark = pytest.mark.usefixtures("fast_search")


def test_the_host_cache_brings_a_node_back_without_its_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.search.client.UPKEEP_S", 0.2)

    async def main() -> None:
        town = SearchTown(tmp_path, "one")
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(AsyncExitStack())
            one = await first.enter_async_context(town.open("one"))
            two = await stack.enter_async_context(town.open("two"))
            async with town.open("three", host_cache="hosts") as three:
                met = {one.id, two.id}
                circle = three.searching.door.machine.parts.circle
                await until(lambda: met <= {edge.peer for edge in circle.edges}, 20)
                await until((tmp_path / "hosts").exists, 20)  # written meanwhile, too
            assert {contact.node for contact in read_host_cache(tmp_path / "hosts")} >= met
            await first.aclose()  # the only one that files name
            await two.put({"title": "still here"})
            async with town.open("three", host_cache="hosts") as three:
                assert len(await until_found(three, "still", 1)) == 1

    run(main())


def test_a_web_cache_is_asked_if_nobody_else_is_known_or_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.search.client.WEB_CACHE_AFTER_S", 0.5)
    served: list[str] = []

    async def main() -> None:
        town = SearchTown(tmp_path, "one")
        lines = show_hosts([town.entry.contact()])

        async def answer(request: web.Request) -> web.Response:
            served.append(request.path)
            return web.Response(text=lines)

        app = web.Application()
        app.router.add_get("/hosts", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        port = free_port()
        url = f"http://127.0.0.1:{port}/hosts"
        try:
            async with (
                town.open("one") as one,
                town.open("two", bootstrap=(), web_cache=url) as two,
            ):
                await one.put({"title": "air"})
                assert await found(two, "air") == [], "the cache is away: two is on its own"
                await web.TCPSite(runner, "127.0.0.1", port).start()
                assert len(await until_found(two, "air", 1)) == 1, "and moves over"
            served.clear()
            async with town.open("one") as one:
                await one.put({"title": "air"})
                async with town.open("two", bootstrap=(), web_cache=url) as two:
                    assert len(await until_found(two, "air", 1)) == 1
                assert served == ["/hosts"]
                async with town.open("three", web_cache=url):
                    assert served == ["/hosts"], "somebody else has answered"
                dead = PeerEntry("0x" + "11" * 20, (f"ws://127.0.0.1:{free_port()}",))
                async with town.open("four", bootstrap=(dead,), web_cache=url) as four:
                    assert len(await until_found(four, "air", 1)) == 1
                assert len(served) >= 2
        finally:
            await runner.cleanup()

    run(main())


def test_of_a_web_cache_little_is_believed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    public = Contact(NodeId(b"\x01" * 20), ("ws://8.8.8.8:7700",))
    private = Contact(NodeId(b"\x02" * 20), ("ws://192.168.1.1:7700",))

    async def main() -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            match request.path:
                case "/both":
                    return web.Response(text=show_hosts([private, public]))
                case "/long":
                    return web.Response(text=show_hosts([public]) + "x" * 10_000_000)
                case "/slow":
                    await asyncio.sleep(2.5)
            return web.Response(status=404)

        app = web.Application()
        app.router.add_get("/{any}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        fetch = partial(fetch_web_cache, local=False)
        url = f"http://127.0.0.1:{port}"
        try:
            assert await fetch(f"{url}/both") == [public], "nobody has us dial our own network"
            assert await fetch_web_cache(f"{url}/both", local=True) == [private, public]
            assert await fetch(f"{url}/long") == [public]
            assert await fetch(f"{url}/none") == []
            monkeypatch.setattr("shoal.node.search.client.FETCH_TIMEOUT_S", 0.5)
            assert await fetch(f"{url}/slow") == []
        finally:
            await runner.cleanup()

    run(main())
    assert "/none does not answer: 404" in caplog.text
    assert "/slow does not answer: TimeoutError" in caplog.text


def test_a_web_cache_that_is_wrong_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port()}/hosts"

    async def main() -> None:
        town = SearchTown(tmp_path, "one")
        async with town.open("one", bootstrap=(), web_cache=url) as one:
            await one.put({"title": "air"})
            assert len(await until_found(one, "air", 1)) == 1

    run(main())
    assert f"the web cache {url} does not answer" in caplog.text


def test_a_network_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.search.client.REACH_TIMEOUT_S", 0.5)

    async def main() -> None:
        town = SearchTown(tmp_path, "one")  # which does not run
        async with Node.open(town.network("two")) as node:
            remedy = r"within 0\.5 s \(0x.*nobody answers.*\): does one of these run"
            with pytest.raises(SearchUnavailable, match=remedy):
                await node.put({})
            with pytest.raises(SearchUnavailable):
                await found(node, "air")

    run(main())
