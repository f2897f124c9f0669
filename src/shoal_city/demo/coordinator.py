"""The demo's first process: the tracker, the workers, the live table, and the verdict."""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from shoal.base.errors import ShoalError
from shoal.config.network_file import tracker_contact
from shoal.config.sections import PeerEntry, StreamSettings, TrackerSection
from shoal.identity import PrivateKey, ScryptCost, SystemEntropy, create_keystore
from shoal.node import NetworkFile, Node
from shoal_city.demo.checker import Verdict
from shoal_city.demo.messages import (
    DemoSettings,
    Figures,
    Hush,
    SparkFigures,
    SparkWork,
    Start,
    StationWork,
    Work,
)
from shoal_city.demo.station import STORAGE_KEY, TOKEN
from shoal_city.demo.summary import Snapshot, Summary, degrees_of, snapshot_of, summarise
from shoal_lab.testbed.child_process import Child, free_port, start_child

LOOK_S = 0.5  # how often the table changes
READY_S = 60.0  # starting interpreters on a busy machine takes its time
SPARK_READY_S = 300.0  # a Java and a dozen interpreters: 100 s on one that is very busy
DRAIN_S = 120.0  # after the last message, what is under way may take this long
DRAIN_ROUNDS = 4  # reports of every worker without one more delivery: nothing more comes


async def run_demo(
    settings: DemoSettings,
    show: Callable[[Snapshot], None],
    note: Callable[[str], None],
    stop: asyncio.Event,
) -> Summary:
    """Run until the time is up or stop is set; the network is gone afterwards. `show` gets how it
    goes, `note` what is worth a line."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-demo-")))
        city = City(folder) if settings.spark else None
        network = NetworkFile() if city is None else city.network
        tracking = replace(network, tracker=TrackerSection(settings.degree))
        tracker = await stack.enter_async_context(Node.open(tracking))
        entry = tracker_contact(tracker.id, list(tracker.addresses))
        network = replace(network, trackers=(entry,))
        stream = f"0x{tracker.id.hex()}/demo/vehicles" if city is None else city.vehicles
        if city is not None:
            await city.open_station(network, stack)
        workers = []
        for number in range(settings.processes):
            last = number == settings.processes - 1
            work = Work(
                network,
                stream,
                str(folder),
                tuple(f"{i:03}" for i in range(number, settings.nodes, settings.processes)),
                # The fault switch is at the last worker: the publisher's own is the first.
                drop=settings.drop if last else 0,
                alerts=city.alerts if city is not None and last else None,
            )
            name = f"worker process {number}"
            workers.append(await start_child(name, "shoal_city.demo.worker", work, stack))
        if city is not None:
            note("starting Spark beside the network")
            await _all_ready([city.station], stop)
            await city.start_spark(stack)
        children = [*workers, *([] if city is None else city.children)]
        await _all_ready(children, stop, READY_S if city is None else SPARK_READY_S)
        if city is not None:
            note(f"the fleet's stream: --servers {city.servers} --stream {city.vehicles}")
        begin = time.perf_counter()
        workers[0].tell(
            Start(settings.rate, settings.size_bytes, settings.seconds, fleet=settings.spark)
        )

        def look() -> Snapshot:
            spark = None if city is None else city.figures
            return snapshot_of(_known(workers), settings, time.perf_counter() - begin, spark)

        await _watch(children, settings, begin, lambda: show(look()), stop)
        elapsed_s = time.perf_counter() - begin
        workers[0].tell(Hush())
        await _drain(workers, settings.nodes)
        degrees = degrees_of(_known(workers))  # while the overlay still stands
        if city is not None:
            await city.drain(look, show, workers[-1])
        await asyncio.gather(*(worker.stop() for worker in workers))
        if city is not None:
            await city.station.stop()
        verdict = await _check(folder, settings)
        spark = None if city is None else city.figures
        return summarise(verdict, _known(workers), settings, elapsed_s, degrees, spark)


async def _all_ready(
    children: list[Child], stop: asyncio.Event, patience_s: float = READY_S
) -> None:
    deadline = time.perf_counter() + patience_s
    while missing := [child.name for child in children if not child.ready]:
        if time.perf_counter() > deadline:
            raise ShoalError(f"{', '.join(missing)}: not ready within {patience_s:.0f} s")
        if stop.is_set():
            raise ShoalError("stopped before the network was ready")
        _check_alive(children)
        await asyncio.sleep(0.02)


async def _watch(
    children: list[Child],
    settings: DemoSettings,
    begin: float,
    show: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Show how it goes until the publisher is done; that is the first one."""
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stop.wait()
        _check_alive(children)
        show()
        publisher = children[0].figures
        over = settings.seconds is not None and time.perf_counter() - begin > settings.seconds
        if over and publisher is not None and not publisher.publishing:
            return


def _check_alive(children: list[Child]) -> None:
    for child in children:
        child.check()


async def _drain(workers: list[Child], nodes: int) -> None:
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


async def _next_round(workers: list[Child], deadline: float) -> None:
    """Every worker says once more how far it is: on a busy machine that takes its time."""
    seen = [worker.reports for worker in workers]
    while any(worker.reports == known for worker, known in zip(workers, seen, strict=True)):
        if time.perf_counter() > deadline:
            return
        _check_alive(workers)
        await asyncio.sleep(0.05)


async def _check(folder: Path, settings: DemoSettings) -> Verdict:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal_city.demo.checker",
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


def _known(workers: list[Child]) -> list[Figures]:
    return [worker.figures for worker in workers if worker.figures is not None]


# The demo's other half: who keeps the streams, who publishes for Spark, and Spark itself.

SPARK_DRAIN_S = 90.0  # what was published may take Spark this long; more, and it has not kept up
SETTLED_S = 2.5  # Spark looks every second: without another batch for so long, none comes
ARRIVE_S = 20.0  # from the outbox to the subscriber
CHEAP = ScryptCost(n=2, r=1, p=1)  # the key lives as long as the demo, in its own folder


class City:
    """The station and Spark's driver. Where the storage node is must be known before it starts: its
    tracker has to know, and it has to know its tracker."""

    def __init__(self, folder: Path) -> None:
        entropy = SystemEntropy()
        key = PrivateKey.generate(entropy)
        create_keystore(
            folder / STORAGE_KEY, key, "", entropy, cost=CHEAP, allow_empty_passphrase=True
        )
        token = folder / TOKEN
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe())
        keeper = f"0x{key.address.hex()}"
        self._folder = folder
        self._listen = f"ws://127.0.0.1:{free_port()}"
        self.vehicles, self.alerts, self.speeds = (
            f"{keeper}/city/{name}" for name in ("vehicles", "alerts", "speeds")
        )
        self.network = NetworkFile(
            storage_nodes=(PeerEntry(keeper, (self._listen,)),),
            streams=tuple(
                StreamSettings(id=stream, storage=(keeper,))
                for stream in (self.vehicles, self.alerts, self.speeds)
            ),
            folder=str(folder),
        )
        self.children: list[Child] = []

    @property
    def station(self) -> Child:
        """Storage node and outbox."""
        return self.children[0]

    @property
    def spark(self) -> Child:
        """The driver."""
        return self.children[1]

    @property
    def figures(self) -> SparkFigures | None:
        """What Spark said last."""
        return self.spark.spark

    @property
    def servers(self) -> str:
        """The gateway of the storage node."""
        assert self.station.opened is not None
        return self.station.opened.servers

    async def open_station(self, network: NetworkFile, stack: AsyncExitStack) -> None:
        """Start it; the network has its tracker by now."""
        work = StationWork(network, self._listen)
        name = "the storage node's process"
        self.children.append(await start_child(name, "shoal_city.demo.station", work, stack))

    async def start_spark(self, stack: AsyncExitStack) -> None:
        """Start it; the station is ready by now."""
        opened = self.station.opened
        assert opened is not None
        work = SparkWork(
            servers=opened.servers,
            outbox=opened.outbox,
            token=f"file:{self._folder / TOKEN}",
            stream=self.vehicles,
            tables={"alerts": self.alerts, "speeds": self.speeds},
            folder=str(self._folder),
        )
        # Java has something to say at each start, and more when it is stopped in the middle.
        complaints = self._folder / "spark.log"
        self.children.append(
            await start_child("Spark", "shoal_city.demo.spark_driver", work, stack, complaints)
        )

    async def drain(
        self, look: Callable[[], Snapshot], show: Callable[[Snapshot], None], subscriber: Child
    ) -> None:
        """All is published: wait for what Spark makes of it, stop Spark, and wait for its alerts to
        arrive. Whatever is missing after that is missing."""
        await self._until_settled(look, show)
        await self.spark.stop()
        await self._until(ARRIVE_S, self._outbox_is_empty())
        await self._until(ARRIVE_S, lambda: self._have_arrived(subscriber))

    async def _until_settled(
        self, look: Callable[[], Snapshot], show: Callable[[Snapshot], None]
    ) -> None:
        deadline = time.monotonic() + SPARK_DRAIN_S
        batches, since = -1, time.monotonic()
        while time.monotonic() < deadline:
            for child in self.children:
                child.check()
            snapshot = look()
            show(snapshot)
            known = self.figures
            if known is not None:
                done = min(known.rows.values()) >= snapshot.published and not known.busy
                if not done or known.batches != batches:
                    batches, since = known.batches, time.monotonic()
                if time.monotonic() - since > SETTLED_S:
                    return
            await asyncio.sleep(LOOK_S)

    async def _until(self, patience_s: float, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + patience_s
        while not condition() and time.monotonic() < deadline:
            self.station.check()
            await asyncio.sleep(0.1)

    def _outbox_is_empty(self) -> Callable[[], bool]:
        known = self.station.reports + 1  # the next one may have been written before now

        def is_empty() -> bool:
            station = self.station.station
            fresh = self.station.reports > known
            return fresh and station is not None and not station.waiting_parts

        return is_empty

    def _have_arrived(self, subscriber: Child) -> bool:
        spark, there = self.figures, subscriber.figures
        return spark is not None and there is not None and there.alerts >= spark.out["alerts"]
