"""Being a worker process of a campaign over sockets: some nodes that do what they are told.

The first line of stdin is the worker's Work, then comes what it is to do. It ends with its stdin:
whoever started it is done, or gone.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import uvloop

from campaigns.storage_node_kill import NamedEntropy
from campaigns.worker_words import Figures, NodeWork, Opened, Work
from shoal.base.ids import NodeId, show_node_id
from shoal.kernel.records import Record, Rejected
from shoal.node import NetworkFile, Node
from shoal.transport.port import Frame, Link

FILES_PER_NODE = 600  # links to everybody, old ones that are being closed, a door, a disk

W = TypeVar("W", bound=Work)
N = TypeVar("N")


class Member(ABC):
    """One node, and what it got."""

    def __init__(self, work: NodeWork, node: Node) -> None:
        self.work = work
        self.node = node
        self.rejected: Counter[str] = Counter()
        node.host.observers.append(self._observe)
        # The driver counts no bytes, and this one door is passed by everything that comes.
        self._pass_on = node.host.frames_received
        node.host.frames_received = self._received  # type: ignore[method-assign]

    @abstractmethod
    def count(self, sender: NodeId, frames: Sequence[Frame]) -> None:
        """Something has come in."""

    def _received(self, link: Link, frames: Sequence[Frame]) -> None:
        self.count(link.peer.node, frames)
        self._pass_on(link, frames)

    def _observe(self, now_ns: int, record: Record) -> None:
        if type(record) is Rejected:
            self.rejected[record.reason] += 1


class Worker(ABC, Generic[W]):
    """The nodes of one process. If one of its tasks fails, so does the process."""

    def __init__(self, work: W, group: asyncio.TaskGroup) -> None:
        self.work = work
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()
        self._bare_bytes, self._bare_cpu_s = resident_bytes(), time.process_time()

    @abstractmethod
    def network(self, one: NodeWork) -> NetworkFile:
        """What a node is made from."""

    @abstractmethod
    def add(self, one: NodeWork, node: Node) -> None:
        """A node runs."""

    @abstractmethod
    def do(self, command: Any) -> None:
        """Begin with it."""

    async def open(self, stack: AsyncExitStack) -> None:
        """Start the nodes."""
        ids: dict[int, str] = {}
        for one in self.work.nodes:
            opening = Node.open(self.network(one), entropy=NamedEntropy(one.name))
            node = await stack.enter_async_context(opening)
            self.add(one, node)
            ids[one.number] = show_node_id(node.id)
        say(Opened(ids))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside what else is done."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Let every task end."""
        for task in self._tasks:
            task.cancel()

    def figures(self, nodes: Iterable[N]) -> Figures[N]:
        """What this process has cost so far, and what its nodes counted."""
        return Figures(
            tuple(nodes),
            time.process_time() - self._bare_cpu_s,
            resident_bytes() - self._bare_bytes,
            self._bare_bytes,
        )


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


def be(worker: type[Worker[W]], work: type[W], commands: Any) -> None:
    """Be a worker that understands these commands, until stdin ends."""
    uvloop.run(_main(worker, work, commands))


def _allow_files(nodes: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = nodes * FILES_PER_NODE
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def _main(make: type[Worker[W]], work_type: type[W], commands: Any) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    work = msgspec.json.decode(await reader.readline(), type=work_type)
    _allow_files(len(work.nodes))
    decoder = msgspec.json.Decoder(commands)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        worker = make(work, group)
        await worker.open(stack)
        while line := await reader.readline():
            worker.do(decoder.decode(line))
        worker.stop()
