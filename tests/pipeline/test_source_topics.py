"""`format("shoal")` over durable topics and over search, from nodes that are in both networks."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from shoal.base.errors import UsageError
from shoal.base.gateway_messages import LogRow
from shoal.base.ids import StreamId, show_node_id
from shoal.config.sections import DhtSection, GatewaySection, StorageSection
from shoal.gateway.server import gateway_of
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import Node, Topic
from shoal_spark.restarting_query import PatientQuery
from shoal_spark.source.options import parse_options
from shoal_spark.source.rows import event_fields
from shoal_spark.source.search import parse_search
from tests.node.search import FAST, SearchTown
from tests.transport.recorder import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SERVERS = "http://127.0.0.1:7780"


class Town:
    """A node that publishes, and a storage node with a gateway, in a thread of their own: Spark
    knows its formats in this one only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._stack = AsyncExitStack()
        self.gateway = ""
        self.topic: Topic
        self.author: Node

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(120)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            self.do(self._open())
            yield
        finally:
            self.do(self._stack.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def publish(self, *payloads: bytes) -> None:
        """New events, until the storage node has them in its log."""
        before = self._kept()
        for payload in payloads:
            await self.topic.publish(payload)
        await until(lambda: self._kept() == before + len(payloads), 60)

    def _kept(self) -> int:
        logs = self.storage.topic_logs
        assert logs is not None
        return logs.store.heads(StreamId(self.topic.cid), 0)[logs.store.log].last

    async def _open(self) -> None:
        town = SearchTown(self._folder, "author")
        dht = DhtSection((town.entry,))
        network = replace(town.network("author"), dht=dht)
        enter = self._stack.enter_async_context
        self.author = await enter(Node.open(network, entropy=SeededEntropy("author")))
        self.topic = await self.author.create_topic("city/delays")
        network = replace(
            town.network("storage"),
            dht=dht,
            storage=StorageSection(folder="store", topics=(self.topic.cid,)),
            gateway=GatewaySection(),
        )
        self.storage = await enter(Node.open(network, entropy=SeededEntropy("storage")))
        await self.storage.measure.size()
        assert network.gateway is not None
        gateway = gateway_of(self.storage, network.gateway)
        self._stack.push_async_callback(gateway.close)
        self.gateway = await gateway.open("127.0.0.1:0")


def test_topics_and_search_are_read_like_streams(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    from pyspark_shoal import DefaultSource

    spark.dataSource.register(DefaultSource)
    monkeypatch.setattr("shoal.node.search.client.SearchConfig", FAST)
    town = Town(tmp_path)
    with town.running():
        town.do(town.publish(b'{"delay":1}', b"\xff\x00"))
        where = {"servers": town.gateway, "topic": town.topic.cid}
        first, second = spark.read.format("shoal").options(**where).load().orderBy("seq").collect()
        assert (first.stream, first.partition, first.seq) == (town.topic.cid, 0, 1)
        assert (first.value, bytes(first.content)) == ('{"delay":1}', b'{"delay":1}')
        assert (second.value, bytes(second.content), second.error) == (None, b"\xff\x00", None)
        assert first.publisher == show_node_id(town.author.id)
        assert (first.chain, second.chain) == (None, first.key), "each names the one before it"

        def new() -> list[str]:
            got: list[str] = []

            def gather(frame: Any, number: int) -> None:
                got.extend(row.value for row in frame.select("value").collect())

            source = spark.readStream.format("shoal").options(**where, startingOffsets="earliest")
            checkpoint = str(tmp_path / "checkpoint")
            writer = source.load().writeStream.option("checkpointLocation", checkpoint)
            PatientQuery(writer.foreachBatch(gather).trigger(availableNow=True)).wait()
            return got

        assert new() == ['{"delay":1}', None]
        town.do(town.publish(b"two", b"three"))
        assert new() == ["two", "three"], "history, and then what is new"

        town.do(town.author.put({"title": "late trams in Kallio"}, name="kallio"))
        asked = spark.read.format("shoal").options(
            servers=town.gateway, search="trams", confidence="0.99", withinSeconds="10"
        )
        rows = until_rows(lambda: asked.load().collect())
        (row,) = rows
        assert (row.name, json.loads(row.content)) == ("kallio", {"title": "late trams in Kallio"})
        assert row.owner == show_node_id(town.author.id)
        assert 0 < row.confidence <= 1
        with pytest.raises(PySparkException, match="confidence"):
            asked.option("confidence", "2").load().collect()


def until_rows(read: Callable[[], list[Any]]) -> list[Any]:
    """A document is on its way for a moment after it was put."""
    for _ in range(20):
        if rows := read():
            return rows
    raise AssertionError("nothing is found")


def test_what_no_topic_or_search_can_be_is_said() -> None:
    key = PrivateKey.generate(SeededEntropy("x")).address
    stream = f"{show_node_id(key)}/x"
    for options, complaint in (
        ({"stream": stream, "topic": "zdpu"}, "both 'stream' and 'topic'"),
        ({"topic": "zdpu"}, "not the CID of a topic"),
        ({}, "or 'topic', a CID"),
        ({"stream": stream, "token": "secret"}, "token"),
    ):
        with pytest.raises(UsageError, match=complaint):
            parse_options({"servers": SERVERS, **options}, streaming=False)
    for options, complaint in (
        ({"search": ""}, "option 'search' is missing"),
        ({"search": "x", "startingOffsets": "earliest"}, "a search has none"),
    ):
        with pytest.raises(UsageError, match=complaint):
            parse_search({"servers": SERVERS, **options})


def test_what_is_no_event_of_the_topic_is_a_bad_record() -> None:
    topic = StreamId("zdpuAyTBnYSugBZhqJuLsNpzjmAjSmxDqBbtAqXMtsvxiN2v3")
    row = LogRow(1, 1, b"no block")
    fields = event_fields(topic, 0, row.signed)
    assert (fields.content, fields.publisher) == (b"no block", None)
    assert fields.error is not None
    assert fields.error.startswith("no event")
