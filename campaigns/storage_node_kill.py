"""A whole storage node is killed again and again under load; whatever it said it keeps is there.

    .venv/bin/python -m campaigns.storage_node_kill                      200 kills, ten minutes
    .venv/bin/python -m campaigns.storage_node_kill --kills 20 --seed 7  fewer, other ones
    .venv/bin/python -m campaigns.storage_node_kill --json               one object, for machines

A publisher has its messages kept durably, several at a time; the storage node, a process of its
own, is killed with SIGKILL at a random moment and started again. After every kill its store is
opened, and this must hold:

- every message that the publisher was told is durable is there
- the log has no hole, every row has the seq that it had, and everything agrees (`check_invariants`)

storage_kill.py does the same to the engine alone, with retention and replicas, and hits commits
more often. Here the path is whole: link, signature, machine, disk thread, answer.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from campaigns.kills import ROOT, Failure, Show, main, victim
from shoal.base.errors import ShoalError
from shoal.base.ids import MessageId, StreamId, show_node_id
from shoal.config.sections import (
    NodeSection,
    PeerEntry,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.identity import PrivateKey, SystemEntropy
from shoal.node import NetworkFile, Node, Stream
from shoal.storage.message_store.store import Store
from tests.node.network import free_port

MODULE = "campaigns.storage_node_kill"
PUBLISHERS = 8  # messages under way at once
ALIVE_S_MAX = 0.5  # after the first acknowledgement of an incarnation
START_S_MAX = 1.0  # one kill in ten comes while the process starts
ANSWER_S_MAX = 60.0  # a node that acknowledges nothing for this long is broken
STREAM = StreamId("0x" + "5e" * 20 + "/kill")
FOLDER = "store"


class NamedEntropy(SystemEntropy):
    """The same key for the same name, and nothing else that repeats."""

    def __init__(self, name: str) -> None:
        self._secret: bytes | None = secret_of(name)

    def token(self, size: int) -> bytes:
        """The key first."""
        secret, self._secret = self._secret, None
        return super().token(size) if secret is None else secret


def secret_of(name: str) -> bytes:
    """The key of whoever has this name."""
    return sha256(f"shoal kill {name}".encode()).digest()


def entry(name: str) -> PeerEntry:
    """Where a node is; its port is free, also while the node is dead."""
    key = PrivateKey.from_bytes(secret_of(name))
    return PeerEntry(show_node_id(key.address), (f"ws://127.0.0.1:{free_port()}",))


# The node that is killed


def serve(file: str) -> None:
    """Be the storage node until killed."""
    network = msgspec.json.decode(Path(file).read_bytes(), type=NetworkFile)

    async def wait() -> None:
        async with Node.open(network, entropy=NamedEntropy("storage")):
            await asyncio.Event().wait()

    asyncio.run(wait())


# The one who publishes, kills, and checks


class Load:
    """Messages that are published, and those of them that were acknowledged."""

    def __init__(self, stream: Stream) -> None:
        self.acknowledged: set[MessageId] = set()
        self.unanswered = 0
        self._stream = stream
        self._sent = 0
        self._news = asyncio.Event()

    async def publish(self) -> None:
        """One message after the other, for ever."""
        while True:
            self._sent += 1
            try:
                id = await self._stream.publish({"number": self._sent}, durable=True)
            except ShoalError:
                self.unanswered += 1
                await asyncio.sleep(0.05)  # the node is away
            else:
                self.acknowledged.add(id)
                self._news.set()

    async def next_acknowledged(self) -> None:
        """Wait for one more."""
        self._news.clear()
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._news.wait()
        except TimeoutError:
            raise Failure(f"nothing was acknowledged for {ANSWER_S_MAX:g} s") from None


class Ledger:
    """Every row that was ever seen."""

    def __init__(self) -> None:
        self.rows: list[MessageId] = []
        self._log: object = None

    def check(self, folder: Path, acknowledged: set[MessageId]) -> None:
        """What the store holds against all it ever held and said."""
        with Store(folder, SystemEntropy()) as store:
            store.check_invariants()
            if self._log not in (None, store.log):
                raise Failure("the log has another name")
            self._log = store.log
            found: list[MessageId] = []
            head = store.heads(STREAM, 0)[store.log]
            while len(found) < head.last:
                page = store.log_read(store.log, STREAM, 0, len(found), 1_000)
                for row in page.rows:
                    if row.seq != len(found) + 1:
                        raise Failure(f"the log has a hole at {len(found) + 1}")
                    found.append(row.id)
        if found[: len(self.rows)] != self.rows:
            raise Failure("rows are not what they were")
        self.rows = found
        missing = acknowledged.difference(found)
        if missing:
            raise Failure(
                f"{len(missing)} acknowledged messages are missing: {min(missing, key=str)}"
            )


async def campaign(folder: Path, kills: int, seed: int, show: Show) -> Any:
    """Kill and check so many times."""
    rng = random.Random(seed)
    begin_s = time.monotonic()
    tracker, storage = entry("tracker"), entry("storage")
    common = NetworkFile(
        trackers=(tracker,),
        storage_nodes=(storage,),
        streams=(StreamSettings(id=STREAM, storage=(storage.id,)),),
        folder=str(folder),
    )
    at_tracker, at_storage = (NodeSection(listen=peer.addresses) for peer in (tracker, storage))
    tracked = replace(common, node=at_tracker, tracker=TrackerSection())
    kept = replace(common, node=at_storage, storage=StorageSection(FOLDER))
    (folder / "storage.json").write_bytes(msgspec.json.encode(kept))
    ledger = Ledger()
    async with (
        Node.open(tracked, entropy=NamedEntropy("tracker")),
        Node.open(common) as publisher,
    ):
        load = Load(await publisher.open_stream(STREAM))
        async with under(load):
            for kill in range(1, kills + 1):
                await killed_node(folder, rng, load, early=kill > 1 and rng.random() < 0.1)
                # What was said before the kill may still be on its way to the publisher.
                await asyncio.sleep(0.05)
                try:
                    said = set(load.acknowledged)
                    await asyncio.to_thread(ledger.check, folder / FOLDER, said)
                except (ShoalError, Failure) as error:
                    where = f"after kill {kill} of --kills {kills} --seed {seed}"
                    raise Failure(f"{where}: {error}") from error
                show(kill)
    return {
        "campaign": "storage_node_kill",
        "kills": kills,
        "seed": seed,
        "acknowledged": len(load.acknowledged),
        "unanswered": load.unanswered,
        "rows": len(ledger.rows),
        "missing": 0,
        "seconds": round(time.monotonic() - begin_s, 1),
    }


@asynccontextmanager
async def under(load: Load) -> AsyncIterator[None]:
    """While messages are published."""
    tasks = [asyncio.create_task(load.publish()) for _ in range(PUBLISHERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def killed_node(folder: Path, rng: random.Random, load: Load, *, early: bool) -> None:
    """Start the storage node, and kill it at a random moment."""
    file = folder / "storage.json"
    process = await asyncio.create_subprocess_exec(*victim(MODULE, file), cwd=ROOT)
    try:
        if not early:
            await load.next_acknowledged()
        await asyncio.sleep(rng.uniform(0, START_S_MAX if early else ALIVE_S_MAX))
        if process.returncode is not None:
            raise Failure(f"the storage node ended by itself, with {process.returncode}")
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()


def run(folder: Path, kills: int, seed: int, show: Show = lambda kill: None) -> Any:
    """The result, or Failure."""
    return asyncio.run(campaign(folder, kills, seed, show))


if __name__ == "__main__":
    main(MODULE, "Kill a storage node under load.", run, serve)
