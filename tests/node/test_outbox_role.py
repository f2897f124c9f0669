"""A node with an outbox among others: what is sealed is published, once, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest

from shoal.base.errors import ConfigError, HistoryUnavailable
from shoal.config.sections import GatewaySection, OutboxSection
from shoal.node import NetworkFile, Node
from shoal.node.roles.outbox import Delivery
from shoal.node.streams.history import NodeHistory
from shoal.storage.errors import StoreError
from tests.node.network import contents, nothing_more, run, take
from tests.node.outbox import (
    STREAM,
    numbered,
    open_publisher,
    outbox_network,
    role_of,
    town_of,
    until_published,
    write_batch,
)
from tests.node.storage import until_stored


def test_what_is_sealed_gets_to_subscribers_and_to_storage(tmp_path: Path) -> None:
    async def main() -> None:
        town = town_of(tmp_path, "one")
        async with (
            town.open("tracker"),
            town.open("one") as keeper,
            open_publisher(town) as publisher,
            town.open() as far,
            (await far.open_stream(STREAM)).subscribe() as messages,
        ):
            assert await write_batch(publisher, 0, numbered(0, 250)) == 250
            assert await write_batch(publisher, 1, numbered(250, 300)) == 50
            assert await write_batch(publisher, 1, [b"other rows of a replay"]) == 0
            arrived = await take(messages, 300)
            assert contents(arrived) == numbered(0, 300)
            assert len({(m.publisher, m.id.chain) for m in arrived}) == 1
            await until_published(publisher)
            await until_stored(keeper, 300)
            await nothing_more(messages)
            assert role_of(publisher).outbox.size_bytes == 0
            # The chain of what the node itself publishes is another one.
            await (await publisher.open_stream(STREAM)).publish("by hand")
            (by_hand,) = await take(messages, 1)
            assert by_hand.id.chain != arrived[0].id.chain

    run(main())


def test_a_stream_that_nobody_keeps_is_published_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        town = town_of(tmp_path)
        async with (
            town.open("tracker"),
            open_publisher(town) as publisher,
            town.open() as far,
            (await far.open_stream(STREAM)).subscribe() as messages,
        ):
            await write_batch(publisher, 0, numbered(0, 30))
            assert contents(await take(messages, 30)) == numbered(0, 30)
            await until_published(publisher)

    run(main())


@pytest.mark.parametrize("point", ["before it is sent", "while storage is asked", "before done"])
def test_a_node_that_dies_publishes_the_rest_when_it_is_back(tmp_path: Path, point: str) -> None:
    """The subscriber stays, and gets each row once, in order, in the bytes of before."""

    async def stuck(*args: object) -> None:
        await asyncio.Event().wait()

    where = {
        "before it is sent": (Delivery, "send"),
        "while storage is asked": (Delivery, "until_kept"),
        "before done": (Delivery, "until_kept"),
    }[point]

    async def main() -> None:
        town = town_of(tmp_path, "one")
        async with (
            town.open("tracker"),
            town.open("one") as keeper,
            town.open() as far,
            (await far.open_stream(STREAM)).subscribe() as messages,
        ):
            async with open_publisher(town) as publisher:
                await write_batch(publisher, 0, numbered(0, 100))
                first = await take(messages, 100)
                await until_published(publisher)
                with mock.patch.object(*where, stuck):
                    await write_batch(publisher, 1, numbered(100, 350))
                    if point != "before it is sent":
                        first += await take(messages, 100)  # the first chunk of three
                    if point == "before done":
                        await until_stored(keeper, 200)
                    await asyncio.sleep(0.2)
            async with open_publisher(town) as publisher:
                assert await write_batch(publisher, 1, [b"a replay"], run="r2") == 0
                await write_batch(publisher, 2, numbered(350, 400), run="r2")
                rest = await take(messages, 400 - len(first))
                await until_published(publisher)
                await nothing_more(messages)
            assert contents([*first, *rest]) == numbered(0, 400)
            assert all(message.gap_before is None for message in [*first, *rest])
            await until_stored(keeper, 400)

    run(main())


def test_while_storage_is_away_nothing_is_let_go_and_the_subscriber_has_it_once(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        town = town_of(tmp_path, "one")
        async with (
            town.open("tracker"),
            open_publisher(town) as publisher,
            town.open() as far,
            (await far.open_stream(STREAM)).subscribe() as messages,
        ):
            away = mock.patch.object(NodeHistory, "keep", side_effect=HistoryUnavailable("away"))
            with away:
                await write_batch(publisher, 0, numbered(0, 50))
                assert contents(await take(messages, 50)) == numbered(0, 50)
                await asyncio.sleep(0.3)
                assert role_of(publisher).outbox.size_bytes > 0
                assert role_of(publisher).problem == "away"
            async with town.open("one") as keeper:
                await until_published(publisher)
                assert role_of(publisher).problem is None
                assert keeper.storage is not None
                assert keeper.storage.store.info().messages == 50
            await nothing_more(messages)

    run(main())


def test_what_storage_missed_is_kept_one_by_one(tmp_path: Path) -> None:
    """The storage node heard nothing of the flood: only Keep brings it there."""

    async def unheard(*args: object) -> None:
        return

    async def main() -> None:
        town = town_of(tmp_path, "one")
        async with (
            town.open("tracker"),
            town.open("one") as keeper,
            open_publisher(town) as publisher,
        ):
            quick = mock.patch("shoal.node.roles.outbox.COUNT_S_MAX", 0.01)
            with mock.patch.object(Delivery, "send", unheard), quick:
                await write_batch(publisher, 0, numbered(0, 150))
                await until_published(publisher)
            assert keeper.storage is not None
            assert keeper.storage.store.info().messages == 150

    run(main())


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    async def open_with(network: NetworkFile) -> None:
        async with Node.open(network):
            pass

    with pytest.raises(ConfigError, match=r"never the token itself"):
        OutboxSection(token="hunter2")
    with pytest.raises(ConfigError, match=r"add \[gateway\]"):
        NetworkFile(outbox=OutboxSection(token="env:X"))
    (tmp_path / "short").write_text("123")
    (tmp_path / "long").write_text("1" * 16)
    town = town_of(tmp_path)
    for token, complaint, knows_tracker in (
        ("file:short", "3 characters can be guessed", True),
        ("file:none", "cannot read", True),
        ("file:long", "knows no tracker", False),
    ):
        network = NetworkFile(
            outbox=OutboxSection(token=token),
            gateway=GatewaySection(),
            trackers=town.network().trackers if knows_tracker else (),
            folder=str(tmp_path),
        )
        with pytest.raises(ConfigError, match=complaint):
            asyncio.run(open_with(network))


def test_another_node_does_not_sign_what_is_in_an_outbox(tmp_path: Path) -> None:
    async def main() -> None:
        town = town_of(tmp_path)
        async with town.open("tracker"):
            async with open_publisher(town):
                pass
            with pytest.raises(StoreError, match="belongs to node"):
                async with Node.open(outbox_network(town)):  # with a new key
                    pass

    run(main())
