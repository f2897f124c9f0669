"""Spaces of applications over sockets: nodes of one event loop, on loopback, with and without."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.base.errors import NotFound, UsageError
from shoal.base.ids import show_node_id
from shoal.base.units import MS_NS
from shoal.node import DataHit, Node, Space
from shoal.protocols.search.config import SearchConfig
from tests.node.network import run
from tests.node.search import SearchTown, in_search_town
from tests.support.spaces import Near
from tests.transport.recorder import until

NAMES = ("one", "two", "three", "four", "five", "six")
FAST = partial(SearchConfig, beat_ns=500 * MS_NS, answer_ns=500 * MS_NS)
PAGE = (Path(__file__).parents[2] / "docs" / "search.md").read_text()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of one machine need not wait as long for each other as those of the world."""
    monkeypatch.setattr("shoal.node.search.client.SearchConfig", FAST)


async def until_found(space: Space, query: bytes, count: int) -> list[DataHit]:
    """Data is on its way for a moment after it was put."""
    async with asyncio.timeout(30):
        while True:
            hits = [hit async for hit in space.search(query)]
            if len(hits) >= count:
                return hits


async def get_for_30_s(space: Space, name: str, owner: str) -> None:
    """As long as it is there: that it was deleted is on its way for a moment."""
    async with asyncio.timeout(30):
        while True:
            await space.get(name, owner=owner)


def test_data_is_found_by_its_matcher_through_nodes_that_do_not_have_it(tmp_path: Path) -> None:
    async def scenario(*nodes: Node) -> None:
        with_it, without = nodes[::2], nodes[1::2]
        spaces = [await node.space("line", Near()) for node in with_it]
        for number, (node, space) in enumerate(zip(with_it, spaces, strict=True)):
            made = await space.put(b"%d" % (4 * number), name="mine")
            assert made.owner == show_node_id(node.id)
        for space in spaces:
            hits = await until_found(space, b"1", 3)
            assert [hit.content for hit in hits] == [b"0", b"4", b"8"]
            assert [hit.score for hit in hits] == [9.0, 7.0, 3.0]
        search = spaces[0].search(b"500")
        assert [hit async for hit in search] == []
        assert search.confidence >= 0.98
        for node in without:
            assert len(node.searching.door.machine.parts.holdings) == 0
        assert [hit async for hit in nodes[0].search("*")] == [], "no document is in a space"

    in_search_town(tmp_path, scenario, *NAMES)


def test_the_share_of_nodes_that_have_a_space_is_measured(tmp_path: Path) -> None:
    async def scenario(*nodes: Node) -> None:
        for node in nodes[:3]:
            await node.space("line", Near())
        spreads = [node.searching.door.machine.parts.bubbles.spreads["line"] for node in nodes[:3]]
        await until(lambda: all(abs((one.share or 0) - 0.75) < 0.05 for one in spreads), 60)

    in_search_town(tmp_path, scenario, *NAMES[:4])


def test_data_is_got_replaced_watched_and_deleted(tmp_path: Path) -> None:
    async def scenario(*nodes: Node) -> None:
        owner, other, _ = [await node.space("line", Near()) for node in nodes]
        address = show_node_id(nodes[0].id)
        async with other.watch(b"50") as events:
            watches = [node.searching.door.machine.parts.watches for node in nodes]
            await until(lambda: all(len(one) > 0 for one in watches), 20)
            await owner.put(b"5", name="x", kind="durable")
            await owner.put(b"51", name="x", kind="durable")
            await owner.put(b"52", kind="instant")
            async with asyncio.timeout(20):
                seen = {(await anext(events)).content for _ in range(2)}
            assert seen == {b"51", b"52"}
        (hit,) = await until_found(other, b"51", 1)
        assert (hit.name, hit.owner, hit.life) == ("x", address, "durable")
        got = await other.get("x", owner=address)
        assert (got.content, got.version) == (b"51", hit.version)
        await owner.delete("x")
        with pytest.raises(NotFound, match=rf"{address}/x is (deleted|not found)"):
            await get_for_30_s(other, "x", address)

    in_search_town(tmp_path, scenario, *NAMES[:3])


def test_a_matcher_that_raises_at_others_breaks_nothing(tmp_path: Path) -> None:
    """Somebody puts what the matchers of others cannot read."""

    class Blob:
        def match(self, data: bytes, query: bytes) -> float | None:
            return 1.0

    async def scenario(*nodes: Node) -> None:
        liar = await nodes[0].space("line", Blob())
        honest = [await node.space("line", Near()) for node in nodes[1:]]
        await liar.put(b"no number")
        await honest[0].put(b"5", name="good")
        hits = await until_found(honest[1], b"5", 1)
        await until(lambda: any(space.failures for space in honest), 20)
        assert [hit.name for hit in hits] == ["good"]
        assert any("invalid literal" in space.problem for space in honest)
        for node in nodes:
            assert node.searching.door.machine.parts.circle.degree > 0
        assert len(await until_found(honest[1], b"5", 1)) == 1, "and it goes on"

    in_search_town(tmp_path, scenario, *NAMES[:3])


def test_what_cannot_be_done_with_a_space_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        town = SearchTown(tmp_path, "one")
        async with town.open("one") as one, town.open("c", client=True) as client:
            space = await one.space("line", Near())
            with pytest.raises(UsageError, match="'line' is open on this node"):
                await one.space("line", Near())
            with pytest.raises(UsageError, match="space 'A b': write 1 to 32 small letters"):
                await one.space("A b", Near())
            with pytest.raises(UsageError, match="space 'line': a client has no part"):
                await client.space("line", Near())
            content: Any = "5"
            with pytest.raises(UsageError, match="data of type str: give bytes"):
                await space.put(content)
            with pytest.raises(UsageError, match="of type str"):
                space.search(content)
            with pytest.raises(UsageError, match="has no bytes: that would be its deletion"):
                await space.put(b"")

    run(main())


def test_the_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands in docs/search.md, between two nodes."""
    (example,) = re.findall(r"```python\n(import [^`]*node\.space\([^`]*)```", PAGE)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/search.md", "exec"), names)

    async def scenario(giver: Node, asker: Node) -> None:
        await names["give"](giver)
        parts = giver.searching.door.machine.parts
        await until(lambda: len(parts.holdings) == 1, 20)  # its signature is checked meanwhile
        await names["ask"](asker)

    in_search_town(tmp_path, scenario, *NAMES[:2])
    assert re.fullmatch(r"0x[0-9a-f]{40} kallio 0\.95\d*\n", capsys.readouterr().out)
