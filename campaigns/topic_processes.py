"""A network of topics in worker processes of this machine, for campaigns: start, kill, stop, watch.

    async with Processes(Path(folder), nodes=100, processes=8, name="run") as network:
        await network.create({0: 3}, ordered=True)
        await network.read({0: range(100)})
        network.inject(...)

Node n is in process n modulo their number. The first few nodes are who the others meet first, and
have fixed ports; the others have a new one with each life. No process outlives the context.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Self

import msgspec

from campaigns.kills import ROOT, Failure
from campaigns.storage_node_kill import secret_of
from campaigns.topic_journal import Given, Tail
from campaigns.topic_words import (
    Accepted,
    Create,
    Created,
    Figures,
    FromWorker,
    Inject,
    Look,
    NodeWork,
    Opened,
    Read,
    Reading,
    Refused,
    ToWorker,
    Work,
)
from shoal.base.ids import show_node_id
from shoal.identity import PrivateKey
from shoal.node.network_file import PeerEntry

MODULE = "campaigns.topic_worker"
BOOTSTRAPS = 3
REPLICAS_MAX = 5  # of a topic, before anybody is told of it
PATIENCE_S = 180.0  # interpreters start, nodes find each other and their trees, on a busy machine
LOOK_S = 0.05
END_S = 30.0  # nodes close their links, then the process is killed
LINE_BYTES_MAX = 1 << 24

Tell = Callable[[Accepted | Refused], None]
ToldGiven = Callable[[int, Given | None], None]  # node; None: it begins a life


class WorkerProcess:
    """One worker, as the campaign sees it."""

    def __init__(
        self, process: asyncio.subprocess.Process, nodes: Collection[int], tell: Tell
    ) -> None:
        self.process = process
        self.nodes = nodes
        self.ids: dict[int, str] = {}
        self.created: dict[int, str] = {}
        self.reading: set[tuple[int, int]] = set()
        self.figures: Figures | None = None
        self.stopped = False
        self._tell = tell
        self._listening = asyncio.create_task(self._listen())

    def say(self, message: ToWorker | Work) -> None:
        """One line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")

    @property
    def answers(self) -> bool:
        """Whether it can be asked something."""
        return self.process.returncode is None and not self.stopped

    def check(self) -> None:
        """Failure if it ended by itself, or makes no sense."""
        if self._listening.done() and self._listening.exception() is not None:
            raise Failure(f"nodes {self.nodes}: {self._listening.exception()}")
        if self.process.returncode is not None:
            raise Failure(
                f"the process of nodes {self.nodes} ended by itself, with "
                f"{self.process.returncode}; what it said is above"
            )

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""
        self.process.send_signal(number)
        self.stopped = number is signal.SIGSTOP

    async def kill(self) -> None:
        """SIGKILL; what it said before has been heard on return."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def end(self) -> None:
        """In good order, if it can be had."""
        if self.answers:
            assert self.process.stdin is not None
            self.process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self.process.wait()
        await self.kill()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        decoder = msgspec.json.Decoder(FromWorker)
        while line := await self.process.stdout.readline():
            match decoder.decode(line):
                case Opened(ids):
                    self.ids = ids
                case Created(topic, cid):
                    self.created[topic] = cid
                case Reading(node, topic):
                    self.reading.add((node, topic))
                case Figures() as figures:
                    self.figures = figures
                case Accepted() | Refused() as said:
                    self._tell(said)


class Processes:
    """All workers."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int,
        processes: int,
        name: str,
        on_disk: bool,
        tell: Tell,
    ) -> None:
        self.nodes = nodes
        self.workers: dict[int, WorkerProcess] = {}
        """Those that run or should."""
        self.cids: dict[int, str] = {}
        self._folder = folder
        self._name = name
        self._on_disk = on_disk
        self._tell = tell
        self._members = [range(nodes)[number::processes] for number in range(processes)]
        self._entries = [self._entry(number) for number in range(min(BOOTSTRAPS, nodes))]
        self._lives = [0] * processes
        self._tails = [Tail(self._folder_of(number) / "journal") for number in range(nodes)]

    async def __aenter__(self) -> Self:
        try:
            for number in range(len(self._members)):
                await self.start(number)
                if number == 0:
                    await self.wait(lambda: bool(self.workers[0].ids), "the first process")
            running = self.workers.values()
            await self.wait(lambda: all(worker.ids for worker in running), "all processes")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        workers, self.workers = list(self.workers.values()), {}
        await asyncio.gather(*[worker.end() for worker in workers])

    # Processes

    async def start(self, number: int) -> WorkerProcess:
        """Start a process, for the first time or again."""
        first = self._lives[number] == 0
        self._lives[number] += 1
        members = self._members[number]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C is for us: we end them
        )
        worker = WorkerProcess(process, members, self._tell)
        self.workers[number] = worker
        worker.say(Work(tuple(self._node_work(member, first=first) for member in members)))
        return worker

    async def kill(self, number: int) -> None:
        """SIGKILL."""
        await self.workers.pop(number).kill()

    # Topics

    async def create(self, authors: Mapping[int, int], ordered: Collection[int]) -> None:
        """Make topics, by number and author, and wait until others keep them."""
        replicas = min(REPLICAS_MAX, self.nodes - 1)
        for topic, author in authors.items():
            self._of(author).say(Create(author, topic, topic in ordered, replicas))

        def made() -> bool:
            self.cids = {t: cid for w in self.workers.values() for t, cid in w.created.items()}
            return len(self.cids) == len(authors)

        await self.wait(made, "all topics to be stored")

    async def read(self, readers: Mapping[int, Collection[int]]) -> None:
        """Subscribe, by topic, and wait until all have."""
        wanted = {(node, topic) for topic, nodes in readers.items() for node in nodes}
        for node, topic in sorted(wanted):
            self._of(node).say(Read(node, topic, self.cids[topic]))

        def begun() -> bool:
            return wanted <= {pair for w in self.workers.values() for pair in w.reading}

        await self.wait(begun, "all subscriptions")

    def inject(self, node: int, topic: int, event: int, size_bytes: int) -> None:
        """Have a node publish an event."""
        self._of(node).say(Inject(node, topic, event, size_bytes))

    # Watching

    def follow(self, told: ToldGiven) -> None:
        """Tell what readers were given since the last time."""
        for node, tail in enumerate(self._tails):
            for given in tail.read():
                told(node, given)

    async def look(self, patience_s: float = PATIENCE_S) -> list[Figures]:
        """What all say that can be asked, and answer in time."""
        asked = [worker for worker in self.workers.values() if worker.answers and worker.ids]
        for worker in asked:
            worker.figures = None
            worker.say(Look())
        deadline_s = time.monotonic() + patience_s
        while any(worker.figures is None for worker in asked) and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
        return [worker.figures for worker in asked if worker.figures is not None]

    async def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            self.check()
            if time.monotonic() > deadline_s:
                raise Failure(f"waited {PATIENCE_S:g} s for {what}")
            await asyncio.sleep(LOOK_S)

    def check(self) -> None:
        """Failure if a process ended by itself."""
        for worker in self.workers.values():
            worker.check()

    # Steps

    def _of(self, node: int) -> WorkerProcess:
        return self.workers[node % len(self._members)]

    def _node_work(self, number: int, *, first: bool) -> NodeWork:
        folder = self._folder_of(number)
        folder.mkdir(parents=True, exist_ok=True)
        fixed = number < len(self._entries)
        # At the first start, those with higher numbers are not there yet.
        known = self._entries[:number] if first else self._entries
        return NodeWork(
            number=number,
            name=f"{self._name} {number}",
            listen=self._entries[number].addresses[0] if fixed else "ws://127.0.0.1:0",
            bootstrap=tuple(entry for n, entry in enumerate(known) if n != number),
            folder=str(folder),
            on_disk=self._on_disk,
        )

    def _entry(self, number: int) -> PeerEntry:
        key = PrivateKey.from_bytes(secret_of(f"{self._name} {number}"))
        return PeerEntry(show_node_id(key.address), (f"ws://127.0.0.1:{_free_port()}",))

    def _folder_of(self, number: int) -> Path:
        return self._folder / f"node-{number}"


def announce(line: str) -> None:
    """What begins, for people."""
    show("")
    print(line, file=sys.stderr, flush=True)


def show(line: str) -> None:
    """How far it is, for people at a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _free_port() -> int:
    """Below those that outgoing connections get: it must be free after a kill as well."""
    rng = Random()
    while True:
        port = rng.randrange(15_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
