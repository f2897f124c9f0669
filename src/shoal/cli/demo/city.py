"""The demo's other half: who keeps the streams, who publishes for Spark, and Spark itself."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from shoal.cli.demo.children import Child, start_child
from shoal.cli.demo.ports import free_port
from shoal.cli.demo.protocol import SparkFigures, SparkWork, StationWork
from shoal.cli.demo.station import STORAGE_KEY, TOKEN
from shoal.cli.demo.summary import Snapshot
from shoal.identity import PrivateKey, ScryptCost, SystemEntropy, create_keystore
from shoal.node import NetworkFile
from shoal.node.network_file import PeerEntry, StreamSettings

LOOK_S = 0.5
DRAIN_S = 90.0  # what was published may take Spark this long; more, and it has not kept up
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
        self.children.append(await start_child(name, "shoal.cli.demo.station", work, stack))

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
            await start_child("Spark", "shoal.cli.demo.driver", work, stack, complaints)
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
        deadline = time.monotonic() + DRAIN_S
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
