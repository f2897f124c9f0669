"""Search over sockets: nodes of one event loop, on loopback."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from shoal.base.errors import NotFound, SearchUnavailable, UsageError
from shoal.base.ids import NodeId, show_node_id
from shoal.identity import SeededEntropy
from shoal.kernel.contact import Contact
from shoal.node import Hit, Node, Sighting, Watch
from shoal.node.host_cache import fetch_web_cache, read_host_cache, show_hosts
from shoal.node.network_file import DhtSection, PeerEntry, TrackerSection
from shoal.protocols.search.messages import Totals
from tests.node.network import free_port, run
from tests.node.search import FAST, SearchTown, in_search_town
from tests.transport.recorder import until

NAMES = ("one", "two", "three", "four", "five", "six")
CERTAIN = 1 - 1e-9  # everybody is asked: a new network does not know yet how large it is


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.search_role.SearchConfig", FAST)


async def found(node: Node, query: str, **settings: Any) -> list[Hit]:
    return [hit async for hit in node.search(query, confidence=CERTAIN, **settings)]


async def until_found(node: Node, query: str, count: int) -> list[Hit]:
    """Documents are on their way for a moment after they were put."""
    async with asyncio.timeout(30):
        while True:
            hits = await found(node, query, limit=count)
            if len(hits) >= count:
                return hits


async def until_measured(*nodes: Node) -> None:
    """All nodes know how many they are."""
    parts = [node.searching.door.machine.parts for node in nodes]

    def known(totals: Totals | None) -> bool:
        return totals is not None and abs(totals.nodes - len(nodes)) < 0.1

    await until(lambda: all(known(part.measurement.known) for part in parts), 60)


# Documents and searches


def test_documents_are_found_by_everybody(tmp_path: Path) -> None:
    async def scenario(*nodes: Node) -> None:
        for number, node in enumerate(nodes):
            title = f"Air quality {number}"
            made = await node.put({"title": title, "pm25": 1.0 * number}, name=f"d{number}")
            assert made.nodes >= 1
            assert made.owner == show_node_id(node.id)
        for node in nodes:
            hits = await until_found(node, "title:air pm25:<4", 4)
            assert {hit.name for hit in hits} == {"d0", "d1", "d2", "d3"}
            assert {hit.owner for hit in hits} == {show_node_id(n.id) for n in nodes[:4]}
        search = nodes[3].search("title:nothing")
        assert [hit async for hit in search] == []
        assert search.over
        assert search.confidence >= 0.99
        assert 1 <= search.asked <= search.cost
        assert search.nodes >= 1

    in_search_town(tmp_path, scenario, *NAMES)


def test_a_limit_ends_a_search_at_once(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node, three: Node) -> None:
        for number in range(6):
            await two.put({"title": "air", "number": number})
        await until_found(three, "air", 6)
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        assert len(await found(three, "air", limit=2, within=30.0)) == 2
        assert loop.time() - begin_s < 2.0
        async with three.search("air", within=30.0) as hits:
            await anext(hits)
        assert len(three.searching.door.machine.parts.searches) == 0, "left, and so stopped"

    in_search_town(tmp_path, scenario, *NAMES[:3])


def test_a_document_is_got_replaced_and_deleted(tmp_path: Path) -> None:
    async def scenario(one: Node, owner: Node, other: Node) -> None:
        await until_measured(one, owner, other)
        address = show_node_id(owner.id)
        first = await owner.put({"v": 1}, name="x", kind="durable")
        second = await owner.put({"v": 2}, name="x", kind="durable", life=3600)
        assert second.version > first.version
        assert first.id == second.id
        await until_found(other, "v:2", 1)
        got = await other.get("x", owner=address)
        assert (got.content, got.version, got.life) == ({"v": 2}, second.version, "durable")
        assert (await owner.get("x")).content == {"v": 2}
        assert await found(other, "v:1") == []
        await owner.delete("x")
        async with asyncio.timeout(30):
            while await found(other, "v:2"):
                pass  # it is under way
        with pytest.raises(NotFound, match=rf"document {address}/x is (deleted|not found)"):
            await other.get("x", owner=address)
        with pytest.raises(UsageError, match="is no life of a fading document"):
            await owner.put({}, kind="fading", life=10**7)

    in_search_town(tmp_path, scenario, *NAMES[:3])


def test_a_client_searches_and_puts_without_a_place(tmp_path: Path) -> None:
    async def main() -> None:
        town = SearchTown(tmp_path, "one")
        async with town.open("one") as one, town.open("two"), town.open("c", client=True) as client:
            await one.put({"title": "air"}, name="of one")
            assert [hit.name for hit in await until_found(client, "air", 1)] == ["of one"]
            await client.put({"title": "water"}, name="of the client", kind="durable")
            assert [hit.name for hit in await until_found(one, "water", 1)] == ["of the client"]
            with pytest.raises(UsageError, match="a client has no part in measurements"):
                await client.measure.sum("readings", 1.0)

    run(main())


# Standing queries


async def seen(events: Watch[Sighting]) -> Any:
    async with asyncio.timeout(20):
        return (await anext(events)).content


def test_a_watch_meets_what_is_put_later(tmp_path: Path) -> None:
    async def scenario(*nodes: Node) -> None:
        async with nodes[1].watch("vehicle.speed:>25") as events:
            watches = [node.searching.door.machine.parts.watches for node in nodes]
            await until(lambda: sum(len(one) > 0 for one in watches) >= 2, 20)
            for number, node in enumerate(nodes):
                await node.put({"vehicle": {"speed": 20 + number}}, kind="instant")
                await node.put({"vehicle": {"speed": 30 + number}}, kind="instant")
            speeds = {(await seen(events))["vehicle"]["speed"] for _ in nodes}
            assert speeds <= {30, 31, 32, 33}
            assert len(speeds) == len(nodes), "each once"

    in_search_town(tmp_path, scenario, *NAMES[:4])


# Measurement


def test_a_sum_a_minimum_and_a_maximum_over_all_nodes(
    tmp_path: Path,
) -> None:
    async def scenario(*nodes: Node) -> None:
        async with asyncio.timeout(120):
            sums = await asyncio.gather(
                *[node.measure.sum("readings", 10.0 + n) for n, node in enumerate(nodes)],
                *[node.measure.minimum("coldest", -5.0 * n) for n, node in enumerate(nodes)],
                *[node.measure.maximum("hottest", 5 * n) for n, node in enumerate(nodes)],
            )
        assert sums[:4] == pytest.approx([46.0] * 4, rel=0.05)
        assert sums[4:8] == [-15.0] * 4
        assert sums[8:] == [15.0] * 4
        assert await nodes[2].measure.size() == pytest.approx(4, rel=0.05)
        with pytest.raises(UsageError, match="give it a name, not shoal"):
            await nodes[0].measure.sum("shoal.data", 1.0)

    in_search_town(tmp_path, scenario, *NAMES[:4])


# User connections


def test_applications_talk_to_each_other(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node, three: Node) -> None:
        async def echo(incoming: Any) -> None:
            async for connection in incoming:
                async for content in connection:
                    await connection.send(content.upper())

        async with one.accept("chat") as incoming:
            server = asyncio.create_task(echo(incoming))
            where = one.addresses
            async with three.connect(show_node_id(one.id), "chat", addresses=where) as talk:
                for content in (b"hello", b"", b"x" * 60_000):
                    await talk.send(content)
                    assert await anext(talk) == content.upper()
            with pytest.raises(SearchUnavailable, match="no such type here"):
                async with three.connect(one.id, "other", addresses=where):
                    raise AssertionError("never reached")
            async with two.connect(one.id, "chat", addresses=where) as talk:
                await talk.send(b"again")
                assert await anext(talk) == b"AGAIN", "the server goes on with the next one"
        await server
        with pytest.raises(SearchUnavailable, match="no such type here"):
            async with three.connect(one.id, "chat", addresses=where):
                raise AssertionError("never reached")

    in_search_town(tmp_path, scenario, *NAMES[:3])


def test_a_node_that_nobody_met_cannot_be_talked_to(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node) -> None:
        with pytest.raises(SearchUnavailable, match="has not met it: give its addresses="):
            async with two.connect(b"\x07" * 20, "chat"):
                raise AssertionError("never reached")
        dead = (f"ws://127.0.0.1:{free_port()}",)
        with pytest.raises(SearchUnavailable, match=r"nobody answers at .*is it there"):
            async with two.connect(b"\x07" * 20, "chat", addresses=dead):
                raise AssertionError("never reached")

    in_search_town(tmp_path, scenario, *NAMES[:2])


# Streams and topics


def test_streams_and_topics_are_found(tmp_path: Path) -> None:
    async def main() -> None:
        town = SearchTown(tmp_path, "one")
        more = {"dht": DhtSection(), "tracker": TrackerSection()}
        network = replace(town.network("one"), **more)
        quiet = replace(town.network("quiet", announce=False), tracker=TrackerSection())
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(Node.open(network, entropy=SeededEntropy("one")))
            other = await stack.enter_async_context(town.open("two"))
            silent = await stack.enter_async_context(Node.open(quiet))
            topic = await one.create_topic("news")
            stream = await one.create_stream("/city/vehicles")
            await silent.create_stream("/secret/vehicles")
            (hit,) = await until_found(other, "kind:topic name:news", 1)
            assert (hit.name, hit.content["cid"], hit.kind) == (topic.cid, topic.cid, "topic")
            assert hit.content["author"] == one.peer_id
            (hit,) = await until_found(other, "kind:stream path:vehicles", 1)
            assert (hit.name, hit.content["id"]) == (stream.id, stream.id)
            assert hit.content["partitions"] == 1
            newer = await topic.new_version()
            hits = await until_found(other, "kind:topic name:news", 2)
            assert {hit.name for hit in hits} == {topic.cid, newer.cid}
            assert await found(other, "path:secret") == []

    run(main())


# The way in


def test_the_host_cache_brings_a_node_back_without_its_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.search.UPKEEP_S", 0.2)

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
    monkeypatch.setattr("shoal.node.search.WEB_CACHE_AFTER_S", 0.5)
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
            monkeypatch.setattr("shoal.node.host_cache.FETCH_TIMEOUT_S", 0.5)
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
    monkeypatch.setattr("shoal.node.search.REACH_TIMEOUT_S", 0.5)

    async def main() -> None:
        town = SearchTown(tmp_path, "one")  # which does not run
        async with Node.open(town.network("two")) as node:
            remedy = r"within 0\.5 s \(0x.*nobody answers.*\): does one of these run"
            with pytest.raises(SearchUnavailable, match=remedy):
                await node.put({})
            with pytest.raises(SearchUnavailable):
                await found(node, "air")

    run(main())


# The end


def test_the_end_of_a_node_ends_what_waits(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node) -> None:
        async with AsyncExitStack() as stack:
            events = await stack.enter_async_context(two.watch("x"))
            incoming = await stack.enter_async_context(two.accept("chat"))
            search = two.search("x", within=60.0)
            waiting = [
                asyncio.create_task(anext(events, None)),
                asyncio.create_task(anext(incoming, None)),
                asyncio.create_task(anext(search, None)),
            ]
            await asyncio.sleep(0.1)
            await two.close()
            async with asyncio.timeout(5):
                assert await asyncio.gather(*waiting) == [None, None, None]
        with pytest.raises(UsageError, match="this node is closed"):
            await two.put({})

    in_search_town(tmp_path, scenario, *NAMES[:2])
