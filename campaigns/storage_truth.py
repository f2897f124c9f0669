"""Storage nodes fail in every way, and no answer that claims to be complete lacks a message.

    .venv/bin/python -m campaigns.storage_truth                      1,000 streams: half an hour
    .venv/bin/python -m campaigns.storage_truth --streams 40 --messages 400 --publishers 8 --seed 7
    .venv/bin/python -m campaigns.storage_truth --simulated 200      under virtual time, 200 seeds
    .venv/bin/python -m campaigns.storage_truth --json               one object, for machines

A tracker and three storage nodes for `"*"` run as `shoal serve`, with the files of
docs/how-to-own-network.md. Publishers have messages kept durably, all at once or one publisher
after the other, while readers read. Each storage node in turn is killed, frozen, emptied,
replaced by a new folder, and restored from an old backup. The last three destroy a copy, so
publishers pause before them until the metrics of the other nodes say that every acknowledged
message has another copy on disk.

What must hold:

- an answer that claims to be complete has every message that was acknowledged before it was asked
- 60 s after the last fault every answer claims to be complete
- then every storage node has every acknowledged message on disk
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from multiprocessing import get_context
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

import aiohttp
import msgspec

from campaigns.kills import ROOT, Failure
from campaigns.storage_node_kill import NamedEntropy, entry, secret_of
from campaigns.workers import announce
from shoal.base.errors import ShoalError
from shoal.base.ids import MessageId, StreamId, parse_stream_id
from shoal.config.sections import NodeSection, PeerEntry, StreamSettings, TrackerSection
from shoal.identity import PrivateKey, SystemEntropy
from shoal.identity.keystore import ScryptCost, create_keystore
from shoal.node import Last, NetworkFile, Node, Stream
from shoal.storage.message_store.store import Store
from shoal_lab.testbed.child_process import free_port
from tests.simulation import storage_truth

STORAGE_NODES = 3
READERS = 4
FAULTS = ("kill", "freeze", "empty", "replace", "restore")
DESTROYS = ("empty", "replace", "restore")  # what has no other copy would be gone
DOWN_S = (0.5, 4.0)  # a storage node is killed or frozen for so long
BETWEEN_S = (1.0, 3.0)  # faults
START_S_MAX = 60.0
COPIES_S_MAX = 120.0
END_S = 20.0
TRACKER = "tracker"
OWNER = "0x" + "5e" * 20
PASSPHRASE = "campaign"

Show = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True):
    """One campaign."""

    streams: int = 1_000
    messages: int = 20_000
    publishers: int = 64
    faults: int = len(FAULTS) * STORAGE_NODES
    """So many; with all of them each storage node suffers each kind of fault."""
    heal_s: int = 60
    """After the last fault; then all must be well."""
    seed: int = 1


class StorageProcess:
    """One storage node: `shoal serve` in a folder of its own."""

    def __init__(self, folder: Path, peer: PeerEntry, common: str) -> None:
        self.folder = folder
        self.peer = peer
        self.gateway = f"http://127.0.0.1:{free_port()}"
        self._common = common
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it in its folder, which is set up if it is new; return when it can be asked."""
        if not (self.folder / "shoal.toml").exists():
            self._set_up()
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal.cli", "serve"),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )
        deadline_s = time.monotonic() + START_S_MAX
        while not await self._answers():
            if self._process.returncode is not None:
                raise Failure(f"a storage node ended with {self._process.returncode}: {self.log()}")
            if time.monotonic() > deadline_s:
                raise Failure(f"a storage node did not start in {START_S_MAX:g} s: {self.log()}")
            await asyncio.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and wait; after a while it is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def metrics(self) -> dict[str, float]:
        """Its metrics without labels."""
        async with aiohttp.request("GET", f"{self.gateway}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = [line.split(" ") for line in lines if line and line[0] != "#" and "{" not in line]
        return {name: float(value) for name, value in pairs}

    async def missing_copies(self) -> float:
        """How many messages of its log have no other copy yet, as far as it knows."""
        metrics = await self.metrics()
        return metrics["shoal_storage_single_copies"] + metrics["shoal_storage_uncompared_streams"]

    async def shoal(self, *arguments: str, folder: Path | None = None) -> None:
        """Run a command in its folder."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.cli", *arguments),
            cwd=folder or self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        said, _ = await process.communicate()
        if process.returncode:
            raise Failure(f"shoal {' '.join(arguments)}: {said.decode()}")

    def log(self) -> str:
        """The end of what it said."""
        return (self.folder / "log").read_text()[-2_000:]

    def _set_up(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        key = PrivateKey.from_bytes(secret_of(self.folder.name))
        create_keystore(
            self.folder / "node.key", key, PASSPHRASE, SystemEntropy(), cost=ScryptCost(2**10, 8, 1)
        )
        (self.folder / "passphrase").write_text(PASSPHRASE)
        (self.folder / "passphrase").chmod(0o600)
        listen = self.gateway.removeprefix("http://")
        own = (
            f'[node]\nkey = "node.key"\npassphrase = "file:passphrase"\n'
            f"listen = {list(self.peer.addresses)}\n"
            f'[storage]\nfolder = "store"\n[gateway]\nlisten = "{listen}"\n'
        )
        (self.folder / "shoal.toml").write_text(own + self._common)

    async def _answers(self) -> bool:
        try:
            async with aiohttp.request("GET", f"{self.gateway}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


class Ledger:
    """What was acknowledged, and what readers were told."""

    def __init__(self) -> None:
        self.acknowledged: dict[StreamId, set[MessageId]] = {}
        self.counts: Counter[str] = Counter()

    @property
    def messages(self) -> int:
        """How many were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def check(self, stream: StreamId, said: set[MessageId], found: set[MessageId]) -> None:
        """An answer that claims to be complete, against what was acknowledged before it."""
        missing = said - found
        if missing:
            raise Failure(
                f"{stream}: {len(missing)} of {len(said)} acknowledged messages are missing from "
                f"an answer that claims to be complete; one of them: {min(missing, key=str)}"
            )


class Load:
    """Messages that publishers have kept durably, while they are not told to pause."""

    def __init__(self, ledger: Ledger, nodes: list[Node], owned: list[list[StreamId]]) -> None:
        """Each node publishes in streams of its own."""
        self._ledger = ledger
        self._publishers = list(zip(nodes, owned, strict=True))
        self._opened: dict[StreamId, Stream] = {}
        self._sent = [0] * len(nodes)
        self._may_publish = asyncio.Event()
        self._may_publish.set()
        self._under_way = 0

    async def publish(self, share: int, *, together: bool) -> None:
        """So many messages of each publisher: of all at once, or of one after the other."""
        if together:
            async with asyncio.TaskGroup() as group:
                for number in range(len(self._publishers)):
                    group.create_task(self._publish(number, share))
        else:
            for number in range(len(self._publishers)):
                await self._publish(number, share)

    async def pause(self) -> None:
        """Return when no message is on its way."""
        self._may_publish.clear()
        while self._under_way:
            await asyncio.sleep(0.01)

    def resume(self) -> None:
        """Go on."""
        self._may_publish.set()

    async def _publish(self, number: int, share: int) -> None:
        node, streams = self._publishers[number]
        for _ in range(share):
            await self._may_publish.wait()
            stream = streams[self._sent[number] % len(streams)]
            self._sent[number] += 1
            if stream not in self._opened:
                self._opened[stream] = await node.open_stream(stream)
            self._under_way += 1
            try:
                id = await self._opened[stream].publish({"number": share}, durable=True)
            except ShoalError:
                self._ledger.counts["not acknowledged"] += 1
            else:
                self._ledger.acknowledged.setdefault(stream, set()).add(id)
            finally:
                self._under_way -= 1


async def read_on(node: Node, ledger: Ledger, rng: Random, until: asyncio.Event) -> None:
    """Read streams drawn at random, until told to end."""
    while not until.is_set():
        await read_one(node, rng.choice(list(ledger.acknowledged)), ledger, rng)


def place_of(id: MessageId) -> tuple[int, int, bytes, str]:
    """Where a message stands among those of its partition."""
    return id.timestamp_ms, id.sequence, id.publisher, id.chain


async def read_one(node: Node, id: StreamId, ledger: Ledger, rng: Random) -> bool:
    """One read, checked; whether it claims to be complete."""
    said = set(ledger.acknowledged[id])
    stream = await node.open_stream(id)
    count = len(said) if rng.random() < 0.3 else None
    reading = stream.read() if count is None else stream.read(Last(count))
    try:
        found = {message.id async for message in reading}
    except ShoalError:
        ledger.counts["read refused"] += 1
        return False
    if not reading.complete:
        ledger.counts["read incomplete"] += 1
        return False
    ledger.counts["read complete"] += 1
    if count is not None and len(found) == count:
        first = min(map(place_of, found))  # newer ones may have taken the place of those before it
        said = {id for id in said if place_of(id) > first}
    ledger.check(id, said, found)
    return True


class Faults:
    """What is done to the storage nodes, one after the other."""

    def __init__(self, processes: list[StorageProcess], load: Load, rng: Random) -> None:
        self._processes = processes
        self._load = load
        self._rng = rng
        self._backups: dict[StorageProcess, Path] = {}

    async def back_up(self) -> None:
        """Copies that will be old when they are needed."""
        for process in self._processes:
            self._backups[process] = process.folder.parent / f"{process.folder.name}.tar"
            await process.shoal("backup", str(self._backups[process]))

    async def do(self, kind: str, victim: StorageProcess) -> None:
        """One fault, from its beginning to the node's return."""
        if kind not in DESTROYS:
            await self._interrupt(kind, victim)
            return
        await self._load.pause()
        try:
            await self.copied()
            await victim.end(self._rng.choice([signal.SIGTERM, signal.SIGKILL]))
            await self._destroy(kind, victim)
            self._load.resume()
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
            await victim.start()
        finally:
            self._load.resume()

    async def copied(self) -> None:
        """Return when every storage node says that all its messages have another copy."""
        deadline_s = time.monotonic() + COPIES_S_MAX
        while True:
            lacking = [await process.missing_copies() for process in self._processes]
            if not any(lacking):
                return
            if time.monotonic() > deadline_s:
                raise Failure(f"copies are still missing after {COPIES_S_MAX:g} s: {lacking}")
            await asyncio.sleep(0.2)

    async def _interrupt(self, kind: str, victim: StorageProcess) -> None:
        if kind == "freeze":
            victim.send(signal.SIGSTOP)
            await asyncio.sleep(self._rng.uniform(*DOWN_S))
            victim.send(signal.SIGCONT)
            return
        await victim.end(signal.SIGKILL)
        await asyncio.sleep(self._rng.uniform(*DOWN_S))
        await victim.start()

    async def _destroy(self, kind: str, victim: StorageProcess) -> None:
        match kind:
            case "empty":
                rmtree(victim.folder / "store")
                file = victim.folder / "shoal.toml"
                text = file.read_text()
                if "create = true" not in text:
                    file.write_text(text.replace("[storage]", "[storage]\ncreate = true"))
            case "replace":
                rmtree(victim.folder)
            case _:
                rmtree(victim.folder)
                victim.folder.mkdir()
                await victim.shoal("restore", str(self._backups[victim]))


def check_stores(processes: list[StorageProcess], ledger: Ledger) -> None:
    """Every storage node has every acknowledged message."""
    for process in processes:
        with Store(process.folder / "store", SystemEntropy()) as store:
            store.check_invariants()
            for stream, said in ledger.acknowledged.items():
                ids = sorted(said, key=str)
                have = {row.id for page in store.get(ids) for row in page}
                if said - have:
                    raise Failure(
                        f"{process.folder.name} lacks {len(said - have)} of {len(said)} messages "
                        f"of {stream} when all should be well again"
                    )


async def campaign(folder: Path, settings: Settings, show: Show) -> dict[str, Any]:
    """The result, or Failure."""
    rng = Random(settings.seed)
    begin_s = time.monotonic()
    tracker = entry(TRACKER)
    names = [f"storage-{number}" for number in range(STORAGE_NODES)]
    peers = [entry(name) for name in names]
    network = NetworkFile(
        trackers=(tracker,),
        storage_nodes=tuple(peers),
        streams=(StreamSettings(storage=tuple(peer.id for peer in peers)),),
    )
    common = common_toml(tracker, peers)
    processes = [
        StorageProcess(folder / name, peer, common) for name, peer in zip(names, peers, strict=True)
    ]
    ledger, load_over = Ledger(), asyncio.Event()
    streams = [parse_stream_id(f"{OWNER}/truth/{number}") for number in range(settings.streams)]
    owned = [streams[n :: settings.publishers] for n in range(settings.publishers)]
    async with AsyncExitStack() as stack:
        tracked = NetworkFile(
            node=NodeSection(listen=tracker.addresses),
            tracker=TrackerSection(),
            storage_nodes=network.storage_nodes,
            streams=network.streams,
        )
        await stack.enter_async_context(Node.open(tracked, entropy=NamedEntropy(TRACKER)))
        for process in processes:
            stack.push_async_callback(process.end)
        await asyncio.gather(*[process.start() for process in processes])
        publishers = [
            await stack.enter_async_context(Node.open(network)) for _ in range(settings.publishers)
        ]
        readers = [await stack.enter_async_context(Node.open(network)) for _ in range(READERS)]
        load = Load(ledger, publishers, owned)
        faults = Faults(processes, load, rng)
        plan = [(kind, process) for kind in FAULTS for process in processes]
        if settings.faults < len(plan):
            plan = rng.sample(plan, settings.faults)
        share = -(-settings.messages // settings.publishers // (len(plan) + 1))
        await load.publish(share, together=True)
        await faults.back_up()
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(read_on(reader, ledger, Random(rng.random()), load_over))
            for number, (kind, process) in enumerate(plan, 1):
                show(f"fault {number} of {len(plan)}: {kind}, {ledger.messages} acknowledged")
                async with asyncio.TaskGroup() as both:
                    both.create_task(load.publish(share, together=number % 2 == 0))
                    await asyncio.sleep(rng.uniform(*BETWEEN_S))
                    await faults.do(kind, process)
            load_over.set()
        show("all faults are over")
        healed_s = time.monotonic() + settings.heal_s
        await faults.copied()
        copied_s = time.monotonic() - (healed_s - settings.heal_s)
        await asyncio.sleep(max(0.0, healed_s - time.monotonic()))
        for stream in ledger.acknowledged:
            if not await read_one(rng.choice(readers), stream, ledger, rng):
                raise Failure(
                    f"{stream}: no complete answer {settings.heal_s} s after the last fault"
                )
        await asyncio.gather(*[process.end() for process in processes])
        await asyncio.to_thread(check_stores, processes, ledger)
    return {
        "campaign": "storage_truth",
        **msgspec.to_builtins(settings),
        "acknowledged": ledger.messages,
        **shown(ledger.counts),
        "copied_s": round(copied_s, 1),
        "missing": 0,
        "seconds": round(time.monotonic() - begin_s, 1),
    }


def common_toml(tracker: PeerEntry, storage: list[PeerEntry]) -> str:
    """What all machines have in their network files."""
    lines = ["[[trackers]]", f'id = "{tracker.id}"', f"addresses = {list(tracker.addresses)}"]
    for peer in storage:
        lines += ["[[storage_nodes]]", f'id = "{peer.id}"', f"addresses = {list(peer.addresses)}"]
    lines += ["[[streams]]", 'id = "*"', f"storage = {[peer.id for peer in storage]}"]
    return "\n".join(lines) + "\n"


def run(folder: Path, settings: Settings, show: Show = lambda line: None) -> dict[str, Any]:
    """The result, or Failure with what replays it."""
    try:
        return asyncio.run(campaign(folder, settings, show))
    except* Failure as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise Failure(f"--seed {settings.seed}: {failure}") from group


def simulated(seeds: Sequence[int], show: Show) -> dict[str, Any]:
    """Each seed under virtual time; which ones failed, and why."""
    failed: list[str] = []
    counts: Counter[str] = Counter()
    with get_context("spawn").Pool(min(2, len(seeds))) as pool:
        for number, outcome in enumerate(pool.imap(storage_truth.run, seeds), 1):
            wrong = [*outcome.untrue, *outcome.unsure]
            failed += [f"--simulated 1 --seed {outcome.seed}: {what}" for what in wrong]
            counts["acknowledged"] += outcome.acknowledged
            counts["read complete"] += outcome.complete
            counts["read incomplete"] += outcome.incomplete
            counts["read refused"] += outcome.failed
            counts.update(outcome.faults)
            show(f"{number} of {len(seeds)} seeds, {len(failed)} wrong answers")
    return {"campaign": "storage_truth", "seeds": len(seeds), **shown(counts), "failed": failed}


def shown(counts: Counter[str]) -> dict[str, int]:
    """Counts as the result names them."""
    return {name.replace(" ", "_"): count for name, count in sorted(counts.items())}


def main() -> None:
    """The command."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in msgspec.structs.fields(Settings):
        default = getattr(defaults, field.name)
        parser.add_argument(f"--{field.name}", type=int, default=default, help=f"{default}")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--simulated", type=int, metavar="N", help="no processes: N seeds")
    options = vars(parser.parse_args())
    as_json, seeds = options.pop("json"), options.pop("simulated")
    if seeds is not None:
        result = simulated(range(options["seed"], options["seed"] + seeds), announce)
        print(msgspec.json.encode(result).decode() if as_json else result)
        sys.exit(0 if result["failed"] == [] else 1)
    with tempfile.TemporaryDirectory(prefix="shoal-truth-") as folder:
        try:
            result = run(Path(folder), Settings(**options), announce)
        except Failure as failure:
            sys.exit(str(failure))
    if as_json:
        print(msgspec.json.encode(result).decode())
        return
    for name, value in result.items():
        print(f"{name:<22}{value}")


if __name__ == "__main__":
    main()
