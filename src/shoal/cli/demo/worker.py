"""A worker process of the demo: a few nodes, each with a subscriber that keeps a journal.

    python -m shoal.cli.demo.worker

Its first line of stdin is its Work; then Start (for the worker with the publisher) and Stop.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from shoal.cli.demo.checker import PUBLISHED
from shoal.cli.demo.journal import Journal
from shoal.cli.demo.protocol import Figures, Ready, Start, Stop, ToWorker, Work
from shoal.kernel.records import ReceivedAgain, ReceivedFirst, Record
from shoal.node import NetworkFile, Node, Stream, Subscription

FIGURES_S = 0.5
BURST_MAX = 64  # messages published in one turn to catch up; the rest waits its turn


class Tally:
    """Sums over the nodes of this process."""

    def __init__(self) -> None:
        self.published = self.received = self.delivered = self.duplicates = 0
        self.ages_tenth_ms: Counter[int] = Counter()

    def observe(self, now_ns: int, record: Record) -> None:
        """An observer of every node's records."""
        if type(record) is ReceivedFirst:
            self.received += 1
            self.ages_tenth_ms[record.age_us // 100] += 1
        elif type(record) is ReceivedAgain:
            self.duplicates += 1


class Worker:
    """The nodes of one process."""

    def __init__(self, work: Work, stack: AsyncExitStack) -> None:
        self._work = work
        self._stack = stack
        self._tally = Tally()
        self._nodes: list[Node] = []
        self._streams: list[Stream] = []
        self._publishing: asyncio.Task[None] | None = None
        self._drop = work.drop

    async def open(self) -> None:
        """Start the nodes and let them join."""
        for name in self._work.names:
            network = NetworkFile(trackers=(self._work.tracker,))
            node = await self._stack.enter_async_context(Node.open(network))
            node.host.observers.append(self._tally.observe)
            stream = await node.open_stream(self._work.stream)
            messages = await self._stack.enter_async_context(stream.subscribe(queue_max=1_000_000))
            journal = Journal(Path(self._work.folder, f"received-{name}.journal"))
            self._stack.enter_context(journal)
            task = asyncio.create_task(self._listen(messages, journal, node))
            self._stack.callback(task.cancel)
            self._nodes.append(node)
            self._streams.append(stream)

    def start_publishing(self, start: Start) -> None:
        """The first node of this worker publishes."""
        journal = Journal(Path(self._work.folder, PUBLISHED))
        self._stack.enter_context(journal)
        self._publishing = asyncio.create_task(self._publish(start, journal))

    async def stop_publishing(self) -> None:
        """Publish no more."""
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)

    def figures(self) -> Figures:
        """Sums so far."""
        tally, id = self._tally, self._streams[0].id
        degrees = [node.degree(id) for node in self._nodes]
        publishing = self._publishing is not None and not self._publishing.done()
        return Figures(
            tally.published,
            tally.received,
            tally.delivered,
            tally.duplicates,
            tuple(degrees),
            dict(tally.ages_tenth_ms),
            publishing,
            time.process_time(),
        )

    async def _publish(self, start: Start, journal: Journal) -> None:
        """At the given rate. Falling behind, it catches up in bounded bursts; held up, it waits."""
        begin = time.perf_counter()
        stream = self._streams[0]
        padding = "x" * max(0, start.size_bytes - 110)
        while start.seconds is None or time.perf_counter() - begin < start.seconds:
            due = int((time.perf_counter() - begin) * start.rate) - self._tally.published
            for _ in range(min(due, BURST_MAX)):
                number = self._tally.published
                content = f'{{"vehicle": {number % 900}, "number": {number}, "note": "{padding}"}}'
                id = await stream.publish(content)
                journal.write(id, content)
                self._tally.published += 1
            await asyncio.sleep(0.002)

    async def _listen(self, messages: Subscription, journal: Journal, node: Node) -> None:
        async for message in messages:
            own = message.hops == 0
            if self._drop and not own:
                self._drop -= 1  # the fault switch: this subscriber loses a message
                continue
            journal.write(message.id, message.content)
            self._tally.delivered += not own


async def _main() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    work = msgspec.json.decode(await reader.readline(), type=Work)
    async with AsyncExitStack() as stack:
        worker = Worker(work, stack)
        await worker.open()
        _say(Ready(len(work.names)))
        decoder = msgspec.json.Decoder(ToWorker)
        reporting = asyncio.create_task(_report(worker))
        stack.callback(reporting.cancel)
        while line := await reader.readline():
            command = decoder.decode(line)
            if isinstance(command, Start):
                worker.start_publishing(command)
            elif isinstance(command, Stop):
                await worker.stop_publishing()
                break
        last = worker.figures()  # while the overlay still stands
    _say(last)


async def _report(worker: Worker) -> None:
    while True:
        _say(worker.figures())
        await asyncio.sleep(FIGURES_S)


def _say(message: msgspec.Struct) -> None:
    print(msgspec.json.encode(message).decode(), flush=True)


def main() -> None:
    """The process."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main())
    else:
        uvloop.run(_main())


if __name__ == "__main__":
    main()
