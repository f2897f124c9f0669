"""A worker process of the demo: a few nodes, each with a subscriber that keeps a journal.

    python -m shoal.cli.demo.worker

Its first line of stdin is its Work; then Start and Hush (for the worker with the publisher) and
Stop. If stdin ends without a Stop, whoever started it is gone, and so it ends as well.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from shoal.cli.demo.checker import PUBLISHED
from shoal.cli.demo.journal import Journal
from shoal.cli.demo.protocol import Figures, Hush, Ready, Start, Stop, ToWorker, Work
from shoal.kernel.records import ReceivedAgain, ReceivedFirst, Record
from shoal.node import NetworkFile, Node, Stream, Subscription

FIGURES_S = 0.5
BURST_MAX = 64  # messages published in one turn to catch up; the rest waits its turn
AGE_TENTH_MS_MAX = 600_000  # a minute


class Tally:
    """Sums over the nodes of this process."""

    def __init__(self) -> None:
        self.published = self.received = self.delivered = self.duplicates = 0
        self.ages_tenth_ms: Counter[int] = Counter()

    def observe(self, now_ns: int, record: Record) -> None:
        """An observer of every node's records."""
        if type(record) is ReceivedFirst:
            self.received += 1
            self.ages_tenth_ms[_rounded(record.age_us // 100)] += 1
        elif type(record) is ReceivedAgain:
            self.duplicates += 1


class Worker:
    """The nodes of one process. If one of its tasks fails, so does the process."""

    def __init__(self, work: Work, stack: AsyncExitStack, group: asyncio.TaskGroup) -> None:
        self._work = work
        self._stack = stack
        self._group = group
        self._tally = Tally()
        self._nodes: list[Node] = []
        self._streams: list[Stream] = []
        self._listening: list[asyncio.Task[None]] = []
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
            listening = self._group.create_task(self._listen(messages, journal))
            self._listening.append(listening)
            self._nodes.append(node)
            self._streams.append(stream)

    def start_publishing(self, start: Start) -> None:
        """The first node of this worker publishes."""
        journal = Journal(Path(self._work.folder, PUBLISHED))
        self._stack.enter_context(journal)
        self._publishing = self._group.create_task(self._publish(start, journal))

    def stop_publishing(self) -> None:
        """Publish no more."""
        if self._publishing is not None:
            self._publishing.cancel()

    def stop(self) -> None:
        """Let every task end."""
        self.stop_publishing()
        for listening in self._listening:
            listening.cancel()

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
        while start.seconds is None or time.perf_counter() - begin < start.seconds:
            due = int((time.perf_counter() - begin) * start.rate) - self._tally.published
            for _ in range(min(due, BURST_MAX)):
                number = self._tally.published
                content = _content(number, start.size_bytes)
                id = await stream.publish(content)
                journal.write(id, content)
                self._tally.published += 1
            await asyncio.sleep(0.002)

    async def _listen(self, messages: Subscription, journal: Journal) -> None:
        async for message in messages:
            own = message.hops == 0
            if self._drop and not own:
                self._drop -= 1  # the fault switch: this subscriber loses a message
                continue
            journal.write(message.id, message.content)
            self._tally.delivered += not own


def _content(number: int, size: int) -> str:
    """A message of so many bytes, no two alike."""
    head = f'{{"vehicle": {number % 900}, "number": {number}, "note": "'
    return f'{head}{"x" * (size - len(head) - 2)}"}}'


def _rounded(tenth_ms: int) -> int:
    """Three digits are enough, and keep the table of ages small, however late messages are."""
    step = 1 if tenth_ms < 1_000 else 10 if tenth_ms < 10_000 else 100
    return min(tenth_ms - tenth_ms % step, AGE_TENTH_MS_MAX)


async def _main() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    work = msgspec.json.decode(await reader.readline(), type=Work)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        worker = Worker(work, stack, group)
        await worker.open()
        _say(Ready(len(work.names)))
        decoder = msgspec.json.Decoder(ToWorker)
        reporting = group.create_task(_report(worker))
        while line := await reader.readline():
            command = decoder.decode(line)
            if isinstance(command, Start):
                worker.start_publishing(command)
            elif isinstance(command, Hush):
                worker.stop_publishing()
            elif isinstance(command, Stop):
                break
        reporting.cancel()
        worker.stop()
        _say(worker.figures())


async def _report(worker: Worker) -> None:
    while True:
        _say(worker.figures())
        await asyncio.sleep(FIGURES_S)


def _say(message: msgspec.Struct) -> None:
    data = msgspec.json.encode(message) + b"\n"
    with suppress(BrokenPipeError):  # nobody listens: stdin will say so, too
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


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
