"""The demo's first process: the tracker, the workers, the live table, and the verdict."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from shoal.base.errors import ShoalError
from shoal.cli.demo.checker import Verdict
from shoal.cli.demo.protocol import Figures, FromWorker, Ready, Start, Stop, Work
from shoal.node import NetworkFile, Node
from shoal.node.network_file import TrackerSection, tracker_contact

READY_S = 60.0  # starting interpreters on a busy machine takes its time
DRAIN_S = 20.0  # after the last message, what is under way may take this long
STOP_S = 20.0
LINE_BYTES_MAX = 1 << 20


class DemoSettings(msgspec.Struct, frozen=True):
    """The Helsinki vehicle stream of the paper, on one machine."""

    nodes: int = 16
    processes: int = 4
    degree: int = 4
    rate: float = 653.0
    size_bytes: int = 308
    seconds: float | None = None
    drop: int = 0


class Delays(msgspec.Struct, frozen=True):
    """Percentiles of the age of messages at their first arrival."""

    p50: float | None
    p99: float | None


class Summary(msgspec.Struct, frozen=True):
    """How it went; what --json prints."""

    published: int
    expected: int
    delivered: int
    lost: int
    double: int
    invented: int
    duplicates_per_message: float
    delay_ms: Delays
    nodes: int
    degrees: tuple[int, ...]
    seconds: float
    rate: float
    wanted_rate: float
    cpu_seconds: float

    @property
    def good(self) -> bool:
        """Nothing lost, doubled or invented."""
        return not (self.lost or self.double or self.invented)


class Snapshot(msgspec.Struct, frozen=True):
    """For the live table."""

    seconds: float
    published: int
    delivered: int
    received: int
    duplicates: int
    delay_ms: Delays
    degrees: tuple[int, ...]
    nodes: int


class WorkerProcess:
    """One worker and what it said last."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ready = asyncio.Event()
        self.figures: Figures | None = None
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
                self.ready.set()
            else:
                self.figures = said


async def run_demo(settings: DemoSettings, show: Callable[[Snapshot], None]) -> Summary:
    """Run until the time is up or the task is cancelled; the network is gone afterwards."""
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
        await _all_ready(workers)
        begin = time.perf_counter()
        workers[0].tell(Start(settings.rate, settings.size_bytes, settings.seconds))
        with suppress(asyncio.CancelledError):  # Ctrl-C: end in good order, and say how it went
            await _watch(workers, settings, begin, show)
        elapsed_s = time.perf_counter() - begin
        await _drain(workers, settings.nodes)
        await _stop(workers)
        verdict = await _check(folder)
        return _summarise(verdict, workers, settings, elapsed_s)


async def _start_worker(work: Work, stack: AsyncExitStack) -> WorkerProcess:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.cli.demo.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    worker = WorkerProcess(process)
    stack.push_async_callback(_end, worker)
    worker.tell(work)
    return worker


async def _end(worker: WorkerProcess) -> None:
    if worker.process.returncode is None:
        worker.process.kill()
    await worker.process.wait()
    worker.reading.cancel()
    await asyncio.gather(worker.reading, return_exceptions=True)


async def _all_ready(workers: list[WorkerProcess]) -> None:
    try:
        await asyncio.wait_for(asyncio.gather(*(w.ready.wait() for w in workers)), READY_S)
    except TimeoutError:
        missing = sum(not w.ready.is_set() for w in workers)
        raise ShoalError(
            f"{missing} of {len(workers)} worker processes did not get ready within {READY_S:.0f} s"
        ) from None


async def _watch(
    workers: list[WorkerProcess],
    settings: DemoSettings,
    begin: float,
    show: Callable[[Snapshot], None],
) -> None:
    """Show how it goes until the publisher is done."""
    while True:
        await asyncio.sleep(0.5)
        _check_alive(workers)
        show(_snapshot(workers, settings, begin))
        publisher = workers[0].figures
        over = settings.seconds is not None and time.perf_counter() - begin > settings.seconds
        if over and publisher is not None and not publisher.publishing:
            return


def _check_alive(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        if worker.process.returncode is not None:
            raise ShoalError(f"a worker process ended with code {worker.process.returncode}")


async def _drain(workers: list[WorkerProcess], nodes: int) -> None:
    """Wait until everything is there, or nothing more comes."""
    deadline = time.perf_counter() + DRAIN_S
    before, unchanged = -1, 0
    while time.perf_counter() < deadline and unchanged < 4:
        await asyncio.sleep(0.5)
        published = sum(w.figures.published for w in workers if w.figures)
        delivered = sum(w.figures.delivered for w in workers if w.figures)
        if delivered >= published * (nodes - 1):
            return
        unchanged = unchanged + 1 if delivered == before else 0
        before = delivered


async def _stop(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        if worker.process.returncode is None:
            worker.tell(Stop())
    await asyncio.wait_for(asyncio.gather(*(w.process.wait() for w in workers)), STOP_S)
    await asyncio.gather(*(w.reading for w in workers))


async def _check(folder: Path) -> Verdict:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.cli.demo.checker",
        str(folder),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return msgspec.json.decode(out, type=Verdict)


def _sums(workers: list[WorkerProcess]) -> tuple[Counter[int], tuple[int, ...]]:
    ages: Counter[int] = Counter()
    degrees: list[int] = []
    for worker in workers:
        if worker.figures is not None:
            ages.update(worker.figures.ages_tenth_ms)
            degrees.extend(worker.figures.degrees)
    return ages, tuple(degrees)


def _delays(ages: Counter[int]) -> Delays:
    return Delays(_percentile(ages, 0.5), _percentile(ages, 0.99))


def _percentile(ages: Counter[int], share: float) -> float | None:
    total, passed = sum(ages.values()), 0
    for age in sorted(ages):
        passed += ages[age]
        if passed >= share * total:
            return age / 10
    return None


def _snapshot(workers: list[WorkerProcess], settings: DemoSettings, begin: float) -> Snapshot:
    known = [w.figures for w in workers if w.figures is not None]
    ages, degrees = _sums(workers)
    return Snapshot(
        time.perf_counter() - begin,
        sum(f.published for f in known),
        sum(f.delivered for f in known),
        sum(f.received for f in known),
        sum(f.duplicates for f in known),
        _delays(ages),
        degrees,
        settings.nodes,
    )


def _summarise(
    verdict: Verdict, workers: list[WorkerProcess], settings: DemoSettings, elapsed_s: float
) -> Summary:
    known = [w.figures for w in workers if w.figures is not None]
    ages, degrees = _sums(workers)
    received = sum(f.received for f in known)
    publishing_s = settings.seconds if settings.seconds is not None else elapsed_s
    # The journal of the publisher's own subscriber counts for nothing: it is no delivery.
    return Summary(
        published=verdict.published,
        expected=verdict.expected - verdict.published,
        delivered=verdict.delivered - verdict.published,
        lost=verdict.lost,
        double=verdict.double,
        invented=verdict.invented,
        duplicates_per_message=sum(f.duplicates for f in known) / received if received else 0.0,
        delay_ms=_delays(ages),
        nodes=settings.nodes,
        degrees=degrees,
        seconds=elapsed_s,
        rate=verdict.published / publishing_s if publishing_s else 0.0,
        wanted_rate=settings.rate,
        cpu_seconds=sum(f.cpu_seconds for f in known) + time.process_time(),
    )
