"""A worker process of the demo: a few nodes, each with a subscriber that keeps a journal.

    python -m shoal_city.demo.worker

Its first line of stdin is its Work; then Start and Hush (for the worker with the publisher) and
Stop. If stdin ends without a Stop, whoever started it is gone, and so it ends as well.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from shoal.kernel.records import ReceivedAgain, ReceivedFirst, Record
from shoal.node import Node, Stream, Subscription
from shoal_city.demo.checker import (
    ALERTS,
    ALERTS_KEPT,
    ALERTS_RECEIVED,
    PUBLISHED,
    READINGS,
    Journal,
)
from shoal_city.demo.message_source import fleet_messages, numbered
from shoal_city.demo.messages import Figures, Hush, Ready, Start, Stop, ToWorker, Work
from shoal_lab.testbed.child_process import read_stdin, run, say

FIGURES_S = 0.5
BURST_MAX = 64  # messages published in one turn to catch up; the rest waits its turn
AGE_TENTH_MS_MAX = 600_000  # a minute


class Tally:
    """Sums over the nodes of this process."""

    def __init__(self) -> None:
        self.published = self.received = self.delivered = self.duplicates = self.alerts = 0
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
        self._alerts: Stream | None = None

    async def open(self) -> None:
        """Start the nodes and let them join."""
        for name in self._work.names:
            node = await self._stack.enter_async_context(Node.open(self._work.network))
            node.host.observers.append(self._tally.observe)
            stream = await node.open_stream(self._work.stream)
            messages = await self._stack.enter_async_context(stream.subscribe(queue_max=1_000_000))
            journal = self._journal(f"received-{name}.journal")
            listening = self._group.create_task(self._listen(messages, journal))
            self._listening.append(listening)
            self._nodes.append(node)
            self._streams.append(stream)
        if self._work.alerts is not None:
            self._alerts = await self._nodes[-1].open_stream(self._work.alerts)
            messages = await self._stack.enter_async_context(self._alerts.subscribe())
            self._listening.append(self._group.create_task(self._listen_for_alerts(messages)))

    def start_publishing(self, start: Start) -> None:
        """The first node of this worker publishes."""
        self._publishing = self._group.create_task(self._publish(start))

    def stop_publishing(self) -> None:
        """Publish no more."""
        if self._publishing is not None:
            self._publishing.cancel()

    async def compare_alerts(self) -> None:
        """Write down which alerts there are, by those who keep them."""
        if self._alerts is not None:
            kept = self._journal(ALERTS_KEPT)
            async for message in self._alerts.read():
                kept.write(message.id, message.content)

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
            tally.alerts,
        )

    async def _publish(self, start: Start) -> None:
        """At the given rate. Falling behind, it catches up in bounded bursts; held up, it waits."""
        journal, readings = self._journal(PUBLISHED), self._journal(READINGS)
        size = start.size_bytes
        contents = fleet_messages(start.rate, size) if start.fleet else numbered(size)
        begin = time.perf_counter()
        stream = self._streams[0]
        while start.seconds is None or time.perf_counter() - begin < start.seconds:
            due = int((time.perf_counter() - begin) * start.rate) - self._tally.published
            for _ in range(min(due, BURST_MAX)):
                said = next(contents)
                id = await stream.publish(said.content)
                journal.write(id, said.content)
                if said.reading:
                    readings.note(f"{id.timestamp_ms} {said.reading}")
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

    async def _listen_for_alerts(self, messages: Subscription) -> None:
        received, said = self._journal(ALERTS_RECEIVED), self._journal(ALERTS)
        async for message in messages:
            received.write(message.id, message.content)
            said.note(f"{time.time_ns() // 1_000_000} {message.content}")
            self._tally.alerts += 1

    def _journal(self, name: str) -> Journal:
        return self._stack.enter_context(Journal(Path(self._work.folder, name)))


def _rounded(tenth_ms: int) -> int:
    """Three digits are enough, and keep the table of ages small, however late messages are."""
    step = 1 if tenth_ms < 1_000 else 10 if tenth_ms < 10_000 else 100
    return min(tenth_ms - tenth_ms % step, AGE_TENTH_MS_MAX)


async def _main() -> None:
    reader = await read_stdin()
    work = msgspec.json.decode(await reader.readline(), type=Work)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        worker = Worker(work, stack, group)
        await worker.open()
        say(Ready())
        decoder = msgspec.json.Decoder(ToWorker)
        reporting = group.create_task(_report(worker))
        while line := await reader.readline():
            command = decoder.decode(line)
            if isinstance(command, Start):
                worker.start_publishing(command)
            elif isinstance(command, Hush):
                worker.stop_publishing()
            elif isinstance(command, Stop):
                await worker.compare_alerts()
                break
        reporting.cancel()
        worker.stop()
        say(worker.figures())


async def _report(worker: Worker) -> None:
    while True:
        say(worker.figures())
        await asyncio.sleep(FIGURES_S)


if __name__ == "__main__":
    run(_main())
