"""`format("shoal")` as users write with it: a DataFrame to a node, and to a far subscriber."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Event
from typing import TYPE_CHECKING

import pytest

from tests.node.network import contents, nothing_more, take
from tests.node.outbox import STREAM, open_gateway, open_publisher, town_of, until_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_batch_write_is_published_once_and_what_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    from pyspark_shoal import DefaultSource

    spark.dataSource.register(DefaultSource)
    addresses: Queue[str] = Queue()
    written = Event()

    async def network() -> None:
        """The nodes, in a thread of their own: Spark knows its formats in this one only."""
        town = town_of(tmp_path, "one")
        async with (
            town.open("tracker"),
            town.open("one"),
            open_publisher(town) as publisher,
            open_gateway(publisher) as address,
            town.open() as far,
            (await far.open_stream(STREAM)).subscribe(queue_max=10_000) as messages,
        ):
            addresses.put(address)
            while not written.is_set():
                await asyncio.sleep(0.05)
            arrived = contents(await take(messages, 1_200))
            assert sorted(arrived, key=int) == [str(number) for number in range(1_200)]
            await until_published(publisher)
            await nothing_more(messages)

    def write(token: str, *columns: str) -> None:
        frame = spark.range(1_200, numPartitions=2).selectExpr(*columns)
        options = {"outbox": address, "stream": STREAM, "token": token}
        frame.write.format("shoal").mode("append").options(**options).save()

    with ThreadPoolExecutor(1) as threads:
        nodes = threads.submit(asyncio.run, network())
        try:
            address = addresses.get(timeout=60)
            token = f"file:{tmp_path / 'token'}"
            (tmp_path / "wrong").write_text("another token altogether")
            for source, column, complaint in (
                (token, "id as value", "has to be a string or binary"),
                ("a raw token", "string(id) as value", "never the token itself"),
                (f"file:{tmp_path / 'wrong'}", "string(id) as value", "not the outbox's token"),
                (token, "if(id = 7, null, string(id)) as value", "a row has no value"),
            ):
                with pytest.raises(PySparkException, match=complaint):
                    write(source, column)
            write(token, "string(id) as value", "string(id % 7) as key")
        finally:
            written.set()
        nodes.result()
