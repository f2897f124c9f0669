"""What a Spark query has around it: two storage nodes that have the same messages and a node with
an outbox, as processes that can be killed; a tracker and whoever publishes live, in this process.

The messages are put into the stores before the nodes start: signed one by one, as if they had been
published before, and with the logs of both nodes in both stores, as anti-entropy leaves them.
What comes later is published over the network.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from time import time_ns

import msgspec
from msgspec.structs import replace

from campaigns.kills import ROOT, Failure
from campaigns.storage_node_kill import NamedEntropy, entry, secret_of
from shoal.base.ids import MessageId, StreamId, show_node_id
from shoal.base.units import MS_NS
from shoal.config.sections import NodeSection, TrackerSection
from shoal.identity import PrivateKey, ScryptCost, SystemEntropy, create_keystore
from shoal.identity.message_body import JSON, Position
from shoal.node import NetworkFile, Node, load_network_file
from shoal.protocols.streams.signed_message import VerifiedMessage, sign_message
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_types import ReplicaRow

STORAGE = ("a", "b")
PUBLISHER = "publisher"
PARTITIONS = 2
KEYS = 100
STEP_MS = 100
"""Between messages, by the clock of those who say them."""
OWNER = PrivateKey.from_bytes(secret_of("sensors"))
SAID = StreamId(f"{show_node_id(OWNER.address)}/said")
COUNTED = StreamId(f"{show_node_id(OWNER.address)}/counted")
ANY_PORT = "ws://127.0.0.1:0"
OUTBOX = '[outbox]\ntoken = "file:token"\nmegabytes_max = 1'
"""Two of the writes beside the query (spark_driver.py) do not fit into it at once."""
PATIENCE_S = 300.0  # processes start slowly on a busy machine
ROWS = 1_000  # of one transaction


def content(number: int, time_ms: int | None = None) -> dict[str, int | str]:
    """What a sensor says."""
    time_ms = number * STEP_MS if time_ms is None else time_ms
    return {"n": number, "key": f"k{number % KEYS}", "t": time_ms}


class Town:
    """Network files, stores and processes, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tracker = entry("tracker")
        self.storage = {name: entry(name) for name in STORAGE}
        self.gateways = {name: entry(name).addresses[0][5:] for name in (*STORAGE, PUBLISHER)}
        self.logs: dict[str, str] = {}
        """Whose log it is, by its id."""
        self._running: dict[str, Process] = {}
        (folder / "token").write_text("a token that nobody guesses")
        (folder / "passphrase").write_text("p")

    @property
    def servers(self) -> str:
        return ",".join(f"http://{self.gateways[name]}" for name in STORAGE)

    def network(self, name: str | None = None) -> NetworkFile:
        """The file of the tracker, or of anybody."""
        network = load_network_file(self._write("anybody", ""))
        if name != "tracker":
            return network
        listen = NodeSection(listen=self.tracker.addresses)
        return replace(network, node=listen, tracker=TrackerSection())

    def _write(self, name: str, more: str) -> Path:
        """A network file."""
        ids = json.dumps([peer.id for peer in self.storage.values()])
        peers = [("trackers", self.tracker), *(("storage_nodes", p) for p in self.storage.values())]
        met = "".join(
            f'[[{kind}]]\nid = "{peer.id}"\naddresses = {json.dumps(peer.addresses)}\n'
            for kind, peer in peers
        )
        streams = f"""
[[streams]]
id = "{SAID}"
partitions = {PARTITIONS}
storage = {ids}
[[streams]]
id = "{COUNTED}"
storage = {ids}
"""
        file = self.folder / f"{name}.toml"
        file.write_text(more + met + streams)
        return file

    def _file_of(self, name: str) -> Path:
        """The file of a node that runs as a process, with the key of its name."""
        key = self.folder / f"{name}.key"
        if not key.exists():
            cost = ScryptCost(n=2, r=1, p=1)
            private = PrivateKey.from_bytes(secret_of(name))
            create_keystore(key, private, "p", SystemEntropy(), cost=cost)
        listen = list(self.storage[name].addresses) if name in self.storage else [ANY_PORT]
        part = f'[storage]\nfolder = "store-{name}"' if name in self.storage else OUTBOX
        return self._write(
            name,
            f"""
[node]
key = "{key.name}"
passphrase = "file:passphrase"
listen = {json.dumps(listen)}
[gateway]
listen = "{self.gateways[name]}"
{part}
""",
        )

    def fill(self, messages: int, tell: Callable[[int], None]) -> None:
        """Have both storage nodes keep so many messages; says how many are there."""
        signed, there = said(messages), 0
        with (
            Store(self.folder / "store-a", SystemEntropy()) as a,
            Store(self.folder / "store-b", SystemEntropy()) as b,
        ):
            self.logs = {str(a.log): "a", str(b.log): "b"}
            while some := list(islice(signed, ROWS)):
                a.append(some, time_ns())
                held = {message.id: message for message in some}
                _follow(b, a, held)
                _follow(a, b, held)
                there += len(some)
                tell(there)

    # Processes

    async def start(self, name: str) -> None:
        """Start a node, and wait until it serves."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.cli", "serve", "--config", str(self._file_of(name))),
            stdout=PIPE,
            start_new_session=True,
        )
        self._running[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while b"gateway" not in (line := await process.stdout.readline()):
                if not line:
                    raise Failure(f"{name} did not start")

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All nodes, until the end."""
        try:
            async with Node.open(self.network("tracker"), entropy=NamedEntropy("tracker")):
                for name in (*STORAGE, PUBLISHER):
                    await self.start(name)
                yield
        finally:
            for name in list(self._running):
                await self.kill(name)

    @asynccontextmanager
    async def visitor(self) -> AsyncIterator[Node]:
        """A node of somebody else."""
        async with Node.open(self.network()) as node:
            yield node

    # Drivers

    async def driver(self, plan: Path) -> Process:
        """A driver of Spark, and its JVM, as one group of processes."""
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "campaigns.spark_driver", str(plan)),
            cwd=ROOT,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )


def kill_driver(driver: Process) -> None:
    """With its JVM."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)


def said(messages: int) -> Iterator[VerifiedMessage]:
    """Messages as their publisher signed them, numbered from 0, in turn over the partitions."""
    now_ms = time_ns() // MS_NS
    before: dict[int, Position] = {}
    for number in range(messages):
        partition = number % PARTITIONS
        id = MessageId(SAID, partition, now_ms, number, OWNER.address, "said")
        raw = msgspec.json.encode(content(number))
        yield sign_message(OWNER.sign, id, before.get(partition), JSON, raw)
        before[partition] = Position(now_ms, number)


def _follow(one: Store, other: Store, held: dict[MessageId, VerifiedMessage]) -> None:
    """Have a store copy what is new in the own log of another."""
    for partition in range(PARTITIONS):
        copy = one.heads(SAID, partition).get(other.log)
        after = 0 if copy is None else copy.last
        page = other.log_read(other.log, SAID, partition, after, ROWS)
        rows = [ReplicaRow(row.seq, row.ingest_ns, row.id, held[row.id]) for row in page.rows]
        one.append_replica(other.log, SAID, partition, rows, time_ns())
