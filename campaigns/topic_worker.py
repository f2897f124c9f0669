"""A worker process of the campaigns of topics over sockets: some nodes, and readers with journals.

    python -m campaigns.topic_worker

Its first line of stdin is its Work, then comes what it is to do (topic_words.py). It ends with its
stdin: whoever started it is done, or gone. Whatever the network cannot give now is asked for again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import uvloop

from campaigns.storage_node_kill import NamedEntropy
from campaigns.topic_journal import Journal
from campaigns.topic_words import (
    Accepted,
    Create,
    Created,
    Figures,
    Inject,
    Look,
    NodeFigures,
    NodeWork,
    Opened,
    Read,
    Reading,
    Refused,
    ToWorker,
    Traffic,
    Work,
)
from shoal.base.errors import ShoalError
from shoal.base.ids import show_node_id
from shoal.kernel.codec import TOPICS
from shoal.kernel.records import Record, Rejected
from shoal.lab.topics.ledger import NUMBER_BYTES, event_of, payload_of
from shoal.node import ANYONE, NetworkFile, Node, Topic
from shoal.node.network_file import DhtSection, NodeSection, TopicsSection
from shoal.transport.port import Frame, Link

RETRY_S = 1.0
FILES_PER_NODE = 600  # links to everybody, old ones that are being closed, a door, a disk

A = TypeVar("A")


class Member:
    """One node, its topics by number, its journal, and what was counted."""

    def __init__(self, work: NodeWork, node: Node) -> None:
        self.work = work
        self.node = node
        self.topics: dict[int, Topic] = {}
        self.journal = Journal(Path(work.folder, "journal"))
        self._received: dict[str, Traffic] = {}
        self._rejected: Counter[str] = Counter()
        node.host.observers.append(self._observe)
        # The driver counts no bytes, and this one door is passed by everything that comes.
        self._pass_on = node.host.frames_received
        node.host.frames_received = self._count  # type: ignore[method-assign]

    def figures(self) -> NodeFigures:
        """What was counted, and the trees as they are."""
        states = self.node.topics.machine.topics
        trees = {number: states.get(topic.id) for number, topic in self.topics.items()}
        children = {n: len(state.tree.children) for n, state in trees.items() if state is not None}
        return NodeFigures(self.work.number, self._received, children, dict(self._rejected))

    def _count(self, link: Link, frames: Sequence[Frame]) -> None:
        traffic = self._received.setdefault(show_node_id(link.peer.node), Traffic())
        for protocol, payload in frames:
            traffic.bytes += len(payload)
            if protocol == TOPICS:
                traffic.rpcs += 1
            else:
                traffic.dht += 1
        self._pass_on(link, frames)

    def _observe(self, now_ns: int, record: Record) -> None:
        if type(record) is Rejected:
            self._rejected[record.reason] += 1


class Worker:
    """The nodes of one process. If one of its tasks fails, so does the process."""

    def __init__(self, stack: AsyncExitStack, group: asyncio.TaskGroup) -> None:
        self._stack = stack
        self._group = group
        self._members: dict[int, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._bare_bytes, self._bare_cpu_s = resident_bytes(), time.process_time()

    async def open(self, work: Work) -> None:
        """Start the nodes."""
        for one in work.nodes:
            network = NetworkFile(
                node=NodeSection(listen=(one.listen,)),
                dht=DhtSection(one.bootstrap),
                topics=TopicsSection("topics") if one.on_disk else None,
                folder=one.folder,
            )
            opening = Node.open(network, entropy=NamedEntropy(one.name))
            node = await self._stack.enter_async_context(opening)
            self._members[one.number] = Member(one, node)
        members = self._members.items()
        say(Opened({number: show_node_id(member.node.id) for number, member in members}))

    def do(self, command: ToWorker) -> None:
        """Begin with it."""
        match command:
            case Create():
                self._start(self._create(self._members[command.node], command))
            case Read():
                self._start(self._read(self._members[command.node], command))
            case Inject():
                self._start(self._publish(self._members[command.node], command))
            case Look():
                say(self._figures())

    def stop(self) -> None:
        """Let every task end."""
        for task in self._tasks:
            task.cancel()

    # Steps

    def _start(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        task = self._group.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, member: Member, command: Create) -> None:
        publishers = None if command.ordered else ANYONE
        name = f"topic-{command.topic}"
        topic = await persist(lambda: member.node.create_topic(name, publishers=publishers))
        await persist(lambda: topic.stored(command.replicas))
        say(Created(command.topic, topic.cid))

    async def _read(self, member: Member, command: Read) -> None:
        journal = member.journal
        topic = await persist(lambda: member.node.topic(command.cid))
        # Whoever comes back with nothing in its journal was perhaps killed before the first event.
        start = journal.last.get(command.topic, "latest" if journal.life == 1 else "earliest")
        while True:
            try:
                async with topic.subscribe(start=start) as events:
                    member.topics[command.topic] = topic
                    say(Reading(command.node, command.topic))
                    async for event in events:
                        number = event_of(event.payload)
                        journal.write(command.topic, number, event, time.time_ns())
                return
            except ShoalError:
                await asyncio.sleep(RETRY_S)
                start = journal.last.get(command.topic, start)

    async def _publish(self, member: Member, command: Inject) -> None:
        filling = os.urandom(max(0, command.size_bytes - NUMBER_BYTES))
        try:
            topic = member.topics[command.topic]
            await topic.publish(payload_of(command.event, filling))
        except ShoalError as error:
            say(Refused(command.event, str(error)))
        else:
            say(Accepted(command.event, time.time_ns()))

    def _figures(self) -> Figures:
        return Figures(
            tuple(member.figures() for member in self._members.values()),
            time.process_time() - self._bare_cpu_s,
            resident_bytes() - self._bare_bytes,
            self._bare_bytes,
        )


async def persist(ask: Callable[[], Awaitable[A]]) -> A:
    """Ask until there is an answer; whoever wants it has a deadline."""
    while True:
        try:
            return await ask()
        except ShoalError:
            await asyncio.sleep(RETRY_S)


def resident_bytes() -> int:
    """Memory of this process; where /proc is not, the most that it ever was."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def say(message: msgspec.Struct) -> None:
    """One line to stdout."""
    data = msgspec.json.encode(message) + b"\n"
    with suppress(BrokenPipeError):  # nobody listens: stdin will say so, too
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


def _allow_files(nodes: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = nodes * FILES_PER_NODE
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def _main() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    work = msgspec.json.decode(await reader.readline(), type=Work)
    _allow_files(len(work.nodes))
    decoder = msgspec.json.Decoder(ToWorker)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        worker = Worker(stack, group)
        await worker.open(work)
        while line := await reader.readline():
            worker.do(decoder.decode(line))
        worker.stop()


if __name__ == "__main__":
    uvloop.run(_main())
