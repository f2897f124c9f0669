"""A node with an outbox, its storage node and a far subscriber, in a thread of their own: Spark
knows its formats in the thread of the test only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Event

from tests.node.network import contents, nothing_more, take
from tests.node.outbox import STREAM, open_gateway, open_publisher, town_of, until_published


@contextmanager
def far_subscriber(folder: Path, expected: list[str]) -> Iterator[dict[str, str]]:
    """The options of a sink. At the end of the block, the subscriber must get what is expected, in
    any order, and nothing else."""
    addresses: Queue[str] = Queue()
    written = Event()

    async def network() -> None:
        town = town_of(folder, "one")
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
            arrived = contents(await take(messages, len(expected)))
            assert sorted(arrived) == sorted(expected)
            await until_published(publisher)
            await nothing_more(messages)

    with ThreadPoolExecutor(1) as threads:
        nodes = threads.submit(asyncio.run, network())
        try:
            address = addresses.get(timeout=60)
            yield {"outbox": address, "stream": STREAM, "token": f"file:{folder / 'token'}"}
        finally:
            written.set()
        nodes.result()
