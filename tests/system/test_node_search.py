"""Search over sockets: nodes of one event loop, on loopback."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.base.errors import NotFound, SearchUnavailable, UsageError
from shoal.base.ids import show_node_id
from shoal.config.sections import DhtSection, TrackerSection
from shoal.identity import SeededEntropy
from shoal.node import Node, Sighting, Watch
from shoal.protocols.search.messages import Totals
from tests.node.network import free_port, run
from tests.node.search import SearchTown, found, in_search_town, until_found
from tests.transport.recorder import until

pytestmark = pytest.mark.usefixtures("fast_search")

NAMES = ("one", "two", "three", "four", "five", "six")


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


def test_public_streams_and_topics_are_found(tmp_path: Path) -> None:
    async def main() -> None:
        town = SearchTown(tmp_path, "one")
        more = {"dht": DhtSection(), "tracker": TrackerSection()}
        network = replace(town.network("one"), **more)
        quiet = replace(town.network("quiet", announce=False), tracker=TrackerSection())
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(Node.open(network, entropy=SeededEntropy("one")))
            other = await stack.enter_async_context(town.open("two"))
            silent = await stack.enter_async_context(Node.open(quiet))
            topic = await one.create_topic("news", public=True)
            stream = await one.create_stream("/city/vehicles", public=True)
            await one.create_stream("/secret/city")
            await silent.create_stream("/secret/vehicles", public=True)
            (hit,) = await until_found(other, "kind:topic name:news", 1)
            assert (hit.name, hit.content["cid"], hit.kind) == (topic.cid, topic.cid, "topic")
            assert hit.content["author"] == one.peer_id
            (hit,) = await until_found(other, "kind:stream path:vehicles", 1)
            assert (hit.name, hit.content["id"]) == (stream.id, stream.id)
            assert hit.content["partitions"] == 1
            newer = await topic.new_version()
            await newer.announce()  # it is a topic of its own
            hits = await until_found(other, "kind:topic name:news", 2)
            assert {hit.name for hit in hits} == {topic.cid, newer.cid}
            assert await found(other, "path:secret") == []

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
