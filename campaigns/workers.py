"""Worker processes of this machine with nodes in them, for campaigns: start, kill, stop, ask.

    async with Workers("campaigns.my_worker", FromWorker, folder, nodes=100, processes=8,
                       name="run", hear=print) as workers:
        workers.of(17).say(...)
        await workers.kill(3)
        figures = await workers.look()

Node n is in process n modulo their number. The first few nodes are who the others meet first, and
have fixed ports; the others have a new one with each life. No process outlives the context.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Generic, Self, TypeVar

import msgspec

from campaigns.kills import ROOT, Failure
from campaigns.storage_node_kill import secret_of
from campaigns.worker_words import Figures, Look, NodeWork, Opened, Work
from shoal.base.ids import show_node_id
from shoal.config.sections import PeerEntry
from shoal.identity import PrivateKey

BOOTSTRAPS = 3
PATIENCE_S = 180.0  # interpreters start, nodes find each other, on a busy machine
LOOK_S = 0.05
END_S = 30.0  # nodes close their links, then the process is killed
LINE_BYTES_MAX = 1 << 24

N = TypeVar("N")

Hear = Callable[[Any], None]  # whatever a worker says of its own


class WorkerProcess(Generic[N]):
    """One worker, as the campaign sees it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        nodes: Collection[int],
        words: Any,
        hear: Hear,
    ) -> None:
        self.process = process
        self.nodes = nodes
        self.ids: dict[int, str] = {}
        self.figures: Figures[N] | None = None
        self.stopped = False
        self._hear = hear
        self._listening = asyncio.create_task(self._listen(msgspec.json.Decoder(words)))

    def say(self, message: msgspec.Struct) -> None:
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

    async def _listen(self, decoder: msgspec.json.Decoder[Any]) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = decoder.decode(line)
            if isinstance(said, Opened):
                self.ids = said.ids
            elif isinstance(said, Figures):
                self.figures = said
            else:
                self._hear(said)


class Workers(Generic[N]):
    """All workers; they run while the context does."""

    def __init__(
        self,
        module: str,
        words: Any,
        folder: Path,
        *,
        nodes: int,
        processes: int,
        name: str,
        hear: Hear,
    ) -> None:
        """`module` is run as a worker, and says these words; keys are made from the name."""
        self.nodes = nodes
        self.workers: dict[int, WorkerProcess[N]] = {}
        """Those that run, or are stopped, by their numbers."""
        self._module = module
        self._words = words
        self._folder = folder
        self._name = name
        self._hear = hear
        self._members = [range(first, nodes, processes) for first in range(processes)]
        self._lives = [0] * processes
        self._entries = [self._entry(number) for number in range(min(BOOTSTRAPS, nodes))]

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

    def work(self, nodes: tuple[NodeWork, ...]) -> Work:
        """What a worker is told first."""
        return Work(nodes)

    def of(self, node: int) -> WorkerProcess[N]:
        """The worker that a node is in."""
        return self.workers[node % len(self._members)]

    async def start(self, number: int) -> WorkerProcess[N]:
        """Start a process, for the first time or again."""
        first = self._lives[number] == 0
        self._lives[number] += 1
        members = self._members[number]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C is for us: we end them
        )
        worker = WorkerProcess[N](process, members, self._words, self._hear)
        self.workers[number] = worker
        worker.say(self.work(tuple(self._node_work(member, first=first) for member in members)))
        return worker

    async def kill(self, number: int) -> None:
        """SIGKILL."""
        await self.workers.pop(number).kill()

    async def look(self, patience_s: float = PATIENCE_S) -> list[Figures[N]]:
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

    def folder_of(self, number: int) -> Path:
        """What a node keeps is there."""
        return self._folder / f"node-{number}"

    # Steps

    def _node_work(self, number: int, *, first: bool) -> NodeWork:
        folder = self.folder_of(number)
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
        )

    def _entry(self, number: int) -> PeerEntry:
        key = PrivateKey.from_bytes(secret_of(f"{self._name} {number}"))
        return PeerEntry(show_node_id(key.address), (f"ws://127.0.0.1:{_free_port()}",))


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
