"""Source and sink where a registry says who may do what, against real nodes and their gateways:
who may not is told so, and goes on where it was once it may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadAllAvailable

from shoal.base.errors import NotFound, NotPermitted
from shoal.base.gateway_messages import (
    EpochRequest,
    Fingerprint,
    Row,
    SealedAttempt,
    SealRequest,
    StageRequest,
)
from shoal.base.ids import StreamId
from shoal.config.sections import GatewaySection, OutboxSection
from shoal.gateway.api_keys import KeyFile
from shoal.gateway.server import gateway_of
from shoal.identity import SeededEntropy
from shoal.identity.message_body import TEXT
from shoal.kernel.access import Permission
from shoal.node import Node
from shoal.node.streams.message import partition_of
from shoal.registry.port import StreamTerms
from shoal_spark.sink import OutboxClient, OutboxRefused
from shoal_spark.sink import parse_options as parse_sink
from shoal_spark.source.options import parse_options
from shoal_spark.source.readers import StreamReader
from shoal_spark.source.rows import BadRecord
from tests.node.network import contents, nothing_more, take
from tests.node.outbox import TOKEN, role_of, until_published
from tests.node.private import grant, key_of
from tests.node.test_keys import Stage, in_town

pytest.importorskip("pyrevm", reason="no EVM is made for this Python")

ENTROPY = SeededEntropy("keys of a gateway")


@asynccontextmanager
async def gateway(node: Node, **settings: Any) -> AsyncIterator[str]:
    """The address of a node's gateway."""
    opened = gateway_of(node, GatewaySection(**settings))
    try:
        yield await opened.open("127.0.0.1:0")
    finally:
        await opened.close()


# The sink


@asynccontextmanager
async def publishing(stage: Stage, name: str) -> AsyncIterator[tuple[Node, str]]:
    """Somebody's node with an outbox, and its gateway."""
    (stage.town.folder / "token").write_text(TOKEN)
    network = replace(
        stage.town.network(name),
        outbox=OutboxSection(token="file:token", folder=f"outbox-{name}"),
        gateway=GatewaySection(),
    )
    async with Node.open(network) as node, gateway(node) as address:
        yield node, address


class Sink:
    """What Spark's driver and tasks say to an outbox, in one run of a query."""

    def __init__(self, address: str, stream: StreamId, run: str, token: Path) -> None:
        given = {"outbox": address, "stream": stream, "token": f"file:{token}"}
        self._options = parse_sink(given)
        self._run = run

    async def stage(self, batch: int, rows: list[Row]) -> int:
        """One task; the epoch."""
        epoch: int = await self._with(lambda client: self._stage(client, batch, rows))
        return epoch

    async def seal(self, batch: int, epoch: int) -> int:
        """The driver's part; how many rows it published."""
        request = SealRequest("q", epoch, batch, [SealedAttempt(0, 0, 1)], Fingerprint())
        answer = await self._with(lambda client: client.seal(request))
        rows: int = answer["rows"]
        return rows

    async def write(self, batch: int, rows: list[Row]) -> int:
        return await self.seal(batch, await self.stage(batch, rows))

    def _stage(self, client: OutboxClient, batch: int, rows: list[Row]) -> int:
        stream = self._options.stream
        epoch = client.take_epoch(EpochRequest("q", self._run, stream))
        client.stage(StageRequest(stream, "q", epoch, batch, 0, 0, 0, rows))
        return epoch

    async def _with(self, work: Callable[[OutboxClient], Any]) -> Any:
        client = OutboxClient(self._options)
        try:
            return await asyncio.to_thread(work, client)
        finally:
            client.close()


def text(*values: str) -> list[Row]:
    return [(TEXT, None, None, value.encode()) for value in values]


def test_a_node_that_may_not_publish_takes_nothing_and_goes_on_once_it_may(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/alerts", "bob")
        bob = await stage.open("bob")
        async with (
            publishing(stage, "carol") as (carol, address),
            (await bob.open_stream(stream)).subscribe() as messages,
        ):

            def run(name: str) -> Sink:
                return Sink(address, stream, name, tmp_path / "token")

            complaint = "may not publish: its owner allows it with `shoal stream grant"
            with pytest.raises(OutboxRefused, match=complaint) as refused:
                await run("r1").write(0, text("a", "b"))
            assert refused.value.status == 403
            state = await role_of(carol).state()
            assert (state.queries, state.size_bytes, state.problem) == ([], 0, None)

            await allow(stage, carol, stream)
            assert await run("r2").write(0, text("a", "b")) == 2
            assert contents(await take(messages, 2)) == ["a", "b"]

            # It is revoked between the tasks of a batch and its seal: none of it is published.
            third = run("r3")
            epoch = await third.stage(1, text("c", "d"))
            await stage.registry.revoke(stream, [carol.id], Permission.PUBLISH)
            await heard(stage, carol)
            with pytest.raises(OutboxRefused, match=complaint):
                await third.seal(1, epoch)
            with pytest.raises(OutboxRefused, match=complaint):
                await run("r4").write(1, text("c", "d"))
            await until_published(carol)
            await nothing_more(messages)

            await allow(stage, carol, stream)
            fifth = run("r5")
            assert await fifth.write(0, text("a", "b")) == 0, "a replay"
            assert await fifth.write(1, text("c", "d")) == 2
            assert contents(await take(messages, 2)) == ["c", "d"]
            await until_published(carol)
            await nothing_more(messages)

    in_town(tmp_path, scenario)


async def allow(stage: Stage, node: Node, stream: StreamId) -> None:
    await grant(stage.registry, stream, "carol", kinds=Permission.PUBLISH)
    await heard(stage, node)


async def heard(stage: Stage, node: Node) -> None:
    """Everybody knows the registry's last change, this node too."""
    await stage.until_known()
    assert node.registry is not None
    async with asyncio.timeout(10):
        while node.registry.registry.seen.number < stage.registry.seen.number:
            await asyncio.sleep(0.01)


def test_a_stream_that_does_not_exist_is_no_place_to_write(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stream = StreamId(f"0x{key_of('alice').address.hex()}/none")
        async with publishing(stage, "alice") as (_, address):
            sink = Sink(address, stream, "r1", tmp_path / "token")
            with pytest.raises(OutboxRefused, match="/none") as refused:
                await sink.write(0, text("a"))
            assert refused.value.status == 404

    in_town(tmp_path, scenario)


def test_rows_go_to_the_partitions_that_the_registry_says(tmp_path: Path) -> None:
    """Also at a node that has just been started, and never opened the stream."""

    async def scenario(stage: Stage) -> None:
        keeper = (key_of("storage").address,)
        terms = StreamTerms(partitions=5, storage_nodes=keeper)
        stream = await stage.registry.create("/wide", terms)
        await stage.until_known()
        keyed: list[Row] = [(TEXT, None, f"k{n}", b"%d" % n) for n in range(10)]
        token = tmp_path / "token"
        async with publishing(stage, "alice") as (_, address):
            first = Sink(address, stream, "r1", token)
            epoch = await first.stage(0, keyed)
        # The task that staged goes on, and the node has forgotten everything but its disk.
        async with publishing(stage, "alice") as (alice, address):
            sink = Sink(address, stream, "r1", token)
            assert await sink.seal(0, epoch) == 10
            await sink.write(1, keyed)
            await until_published(alice)
        for number in range(10):
            rows = stage.stored(stream, partition_of(f"k{number}", 5))
            assert len(rows) == 2 * sum(
                partition_of(f"k{other}", 5) == partition_of(f"k{number}", 5) for other in range(10)
            )

    in_town(tmp_path, scenario)


# The source


class Query:
    """What Spark does with the source over runs: the offset is all that stays."""

    def __init__(self) -> None:
        self.at: dict[str, Any] | None = None
        self.got: list[Any] = []

    async def run(self, **given: str) -> None:
        await asyncio.to_thread(self._run, given)

    def _run(self, given: dict[str, str]) -> None:
        """All that is new; a batch that fails leaves nothing behind."""
        always = {"startingOffsets": "earliest", "mode": "FAILFAST"}
        reader = StreamReader(parse_options({**always, **given}, streaming=True))
        try:
            start = self.at or reader.initialOffset()
            end = reader.latestOffset(start, ReadAllAvailable())
            got: list[Any] = []
            for task in reader.partitions(start, end):
                for batch in StreamReader(reader._options).read(task):
                    got += [json.loads(value) for value in batch.column("value").to_pylist()]
            self.at, self.got = end, self.got + got
        finally:
            reader.stop()


def test_who_may_not_read_a_private_stream_is_told_and_reads_on_once_he_may(
    tmp_path: Path,
) -> None:
    """The storage node keeps what it cannot read, and gives it to everybody: the key is missing."""

    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/private", "carol")
        alice = await stage.open("alice")
        ours = await alice.open_stream(stream)
        await ours.publish({"number": 0}, durable=True)
        assert stage.storage is not None
        stage.town.network("bob")  # his keystore
        keystore = f"file:{tmp_path / 'bob.key'}"
        async with gateway(stage.storage) as address:
            query, given = Query(), {"servers": address, "stream": stream, "keystore": keystore}
            for _ in range(2):
                with pytest.raises(BadRecord, match="its content is encrypted"):
                    await query.run(**given)
            bob = await stage.open("bob")
            with pytest.raises(NotPermitted, match="may not subscribe"):
                async with (await bob.open_stream(stream)).subscribe():
                    pass
            await grant(stage.registry, stream, "bob")
            await stage.until_known()
            async with (await bob.open_stream(stream)).subscribe() as messages:
                await ours.publish({"number": 1}, durable=True)
                assert contents(await take(messages, 1)) == [{"number": 1}]
            read = [m.content async for m in (await bob.open_stream(stream)).read()]
            assert read == [{"number": 0}, {"number": 1}]
            await until_he_reads(query, given, [0, 1])
            await ours.publish({"number": 2}, durable=True)
            await until_he_reads(query, given, [0, 1, 2])

    async def until_he_reads(query: Query, given: dict[str, str], numbers: list[int]) -> None:
        """His node writes keys to its file in a moment."""
        async with asyncio.timeout(20):
            while [row["number"] for row in query.got] != numbers:
                try:
                    await query.run(**given)
                except BadRecord:
                    await asyncio.sleep(0.1)

    in_town(tmp_path, scenario)


def test_a_gateway_that_does_not_let_one_in_says_so_at_once(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        stream = await stage.stream("/private", "bob")
        other = await stage.stream("/other", "bob")
        alice, bob = [await stage.open(name) for name in ("alice", "bob")]
        for id in (stream, other):
            await (await alice.open_stream(id)).publish({"number": 0}, durable=True)
            assert [m.content async for m in (await bob.open_stream(id)).read()] == [{"number": 0}]
        keys = KeyFile(tmp_path / "keys")
        key = tmp_path / "gateway-key"
        key.write_text(keys.add("spark", ["read"], [other], ENTROPY))
        assert stage.storage is not None
        async with gateway(stage.storage, keys="keys") as address:
            given = {
                "servers": address,
                "stream": stream,
                "keystore": f"file:{tmp_path / 'bob.key'}",
                "patienceSeconds": "600",
            }
            query = Query()
            async with asyncio.timeout(20):  # nobody is waited for
                with pytest.raises(NotPermitted, match="this is no key of this gateway"):
                    await query.run(**given)
                with pytest.raises(NotPermitted, match=f"may not read with {stream}"):
                    await query.run(**given, token=f"file:{key}")
            key.write_text(keys.add("spark", ["read"], [stream, f"{stream}/none"], ENTROPY))
            async with asyncio.timeout(20):
                while not query.got:
                    with suppress(NotPermitted):  # the gateway looks for new keys now and then
                        await query.run(**given, token=f"file:{key}")
            assert query.got == [{"number": 0}]
            missing = {**given, "stream": f"{stream}/none"}
            with pytest.raises(NotFound, match="no server keeps stream"):
                await Query().run(**missing, token=f"file:{key}")

    in_town(tmp_path, scenario)
