"""The demo's first process: the tracker, the workers, the live table, and the verdict."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from shoal.base.errors import ShoalError
from shoal.cli.demo.checker import Verdict
from shoal.cli.demo.protocol import Figures, FromWorker, Hush, Ready, Start, Stop, Work
from shoal.cli.demo.settings import DemoSettings
from shoal.cli.demo.summary import Snapshot, Summary, degrees_of, snapshot_of, summarise
from shoal.node import NetworkFile, Node
from shoal.node.network_file import TrackerSection, tracker_contact

LOOK_S = 0.5  # how often the table changes
READY_S = 60.0  # starting interpreters on a busy machine takes its time
DRAIN_S = 120.0  # after the last message, what is under way may take this long
DRAIN_ROUNDS = 4  # reports of every worker without one more delivery: nothing more comes
STOP_S = 20.0
LINE_BYTES_MAX = 1 << 20


class WorkerProcess:
    """One worker and what it said last."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ready = False
        self.figures: Figures | None = None
        self.reports = 0
        self.reading = asyncio.create_task(self._read())

    def tell(self, message: msgspec.Struct) -> None:
        """One line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def _read(self) -> None:
        assert self.process.stdout is not None
        decoder = msgspec.json.Decoder(FromWorker)
        while line := await self.process.stdout.readline():
            said = decoder.decode(line)
            if isinstance(said, Ready):
                self.ready = True
            else:
                self.figures = said
                self.reports += 1


async def run_demo(
    settings: DemoSettings, show: Callable[[Snapshot], None], stop: asyncio.Event
) -> Summary:
    """Run until the time is up or stop is set; the network is gone afterwards."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-demo-")))
        network = NetworkFile(tracker=TrackerSection(settings.degree))
        tracker = await stack.enter_async_context(Node.open(network))
        stream = f"0x{tracker.id.hex()}/demo/vehicles"
        entry = tracker_contact(tracker.id, list(tracker.addresses))
        workers = []
        for number in range(settings.processes):
            names = [f"{i:03}" for i in range(number, settings.nodes, settings.processes)]
            # The fault switch is at the last worker: the publisher's own is the first.
            drop = settings.drop if number == settings.processes - 1 else 0
            work = Work(entry, stream, str(folder), tuple(names), drop)
            workers.append(await _start_worker(work, stack))
        await _all_ready(workers, stop)
        begin = time.perf_counter()
        workers[0].tell(Start(settings.rate, settings.size_bytes, settings.seconds))
        await _watch(workers, settings, begin, show, stop)
        elapsed_s = time.perf_counter() - begin
        workers[0].tell(Hush())
        await _drain(workers, settings.nodes)
        degrees = degrees_of(_known(workers))  # while the overlay still stands
        await _stop(workers)
        verdict = await _check(folder, settings)
        return summarise(verdict, _known(workers), settings, elapsed_s, degrees)


async def _start_worker(work: Work, stack: AsyncExitStack) -> WorkerProcess:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.cli.demo.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,  # Ctrl-C is for us: we stop them, in good order
    )
    worker = WorkerProcess(process)
    stack.push_async_callback(_end, worker)
    worker.tell(work)
    return worker


async def _end(worker: WorkerProcess) -> None:
    with suppress(ProcessLookupError):
        if worker.process.returncode is None:
            worker.process.kill()
    await worker.process.wait()
    worker.reading.cancel()
    await asyncio.gather(worker.reading, return_exceptions=True)


async def _all_ready(workers: list[WorkerProcess], stop: asyncio.Event) -> None:
    deadline = time.perf_counter() + READY_S
    while missing := sum(not worker.ready for worker in workers):
        if time.perf_counter() > deadline:
            raise ShoalError(
                f"{missing} of {len(workers)} worker processes did not get ready "
                f"within {READY_S:.0f} s"
            )
        if stop.is_set():
            raise ShoalError("stopped before the network was ready")
        _check_alive(workers)
        await asyncio.sleep(0.02)


async def _watch(
    workers: list[WorkerProcess],
    settings: DemoSettings,
    begin: float,
    show: Callable[[Snapshot], None],
    stop: asyncio.Event,
) -> None:
    """Show how it goes until the publisher is done."""
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stop.wait()
        _check_alive(workers)
        show(snapshot_of(_known(workers), settings, time.perf_counter() - begin))
        publisher = workers[0].figures
        over = settings.seconds is not None and time.perf_counter() - begin > settings.seconds
        if over and publisher is not None and not publisher.publishing:
            return


def _check_alive(workers: list[WorkerProcess]) -> None:
    for number, worker in enumerate(workers):
        if worker.process.returncode is not None:
            _fail(number, worker)
        if worker.reading.done():
            problem = worker.reading.exception()
            if problem is not None:
                raise ShoalError(f"worker process {number} makes no sense: {problem}")


def _fail(number: int, worker: WorkerProcess) -> NoReturn:
    raise ShoalError(
        f"worker process {number} ended with code {worker.process.returncode} before its time; "
        "what it said is above"
    )


async def _drain(workers: list[WorkerProcess], nodes: int) -> None:
    """Wait until everything is there, or nothing more comes."""
    deadline = time.perf_counter() + DRAIN_S
    before, unchanged = -1, 0
    while unchanged < DRAIN_ROUNDS:
        await _next_round(workers, deadline)
        known = _known(workers)
        delivered = sum(figures.delivered for figures in known)
        if not any(figures.publishing for figures in known):
            if delivered >= sum(figures.published for figures in known) * (nodes - 1):
                return
            unchanged = unchanged + 1 if delivered == before else 0
        if time.perf_counter() > deadline:
            return
        before = delivered


async def _next_round(workers: list[WorkerProcess], deadline: float) -> None:
    """Every worker says once more how far it is: on a busy machine that takes its time."""
    seen = [worker.reports for worker in workers]
    while any(worker.reports == known for worker, known in zip(workers, seen, strict=True)):
        if time.perf_counter() > deadline:
            return
        _check_alive(workers)
        await asyncio.sleep(0.05)


async def _stop(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        worker.tell(Stop())
    try:
        async with asyncio.timeout(STOP_S):
            await asyncio.gather(*(worker.process.wait() for worker in workers))
    except TimeoutError:
        raise ShoalError(f"a worker process did not end within {STOP_S:.0f} s") from None
    await asyncio.gather(*(worker.reading for worker in workers))
    for number, worker in enumerate(workers):
        if worker.process.returncode:
            _fail(number, worker)


async def _check(folder: Path, settings: DemoSettings) -> Verdict:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.cli.demo.checker",
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    out, _ = await process.communicate()
    try:
        verdict = msgspec.json.decode(out, type=Verdict)
    except msgspec.DecodeError:
        raise ShoalError(
            f"the checker ended with code {process.returncode} and without a verdict"
        ) from None
    if verdict.subscribers != settings.nodes:
        raise ShoalError(f"{verdict.subscribers} of {settings.nodes} subscribers kept a journal")
    return verdict


def _known(workers: list[WorkerProcess]) -> list[Figures]:
    return [worker.figures for worker in workers if worker.figures is not None]
