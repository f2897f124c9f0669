"""What a store takes and gives per CPU-second, beside plain lmdb in the same run.

    .venv/bin/python benchmarks/storage.py [--json] [--messages 65536] [--rounds 3]

Stored: messages of 300 bytes of content, in batches of 1, 64 and 1,024; each batch is one durable
transaction. Plain lmdb puts the same bytes under the same keys into one table, as often synced;
the store keeps its log and its heads beside that, and answers for duplicates.

Read: the same messages again, as a resend by range, as a resend of the last ones, and as log rows;
plain lmdb walks keys and values of one table.

Kept: the same through the storage machine and its disk thread, in bursts; the next burst begins
when the last one is durable. Signatures were checked before, so these are none. Kept by a node:
signed messages come from a publisher in another process over loopback, are checked and kept; only
the CPU time of the storage node counts.

Batches of 1 cost two syncs each, so fewer of them are measured. CPU time counts, of all threads
and of the kernel for us; the best of several rounds, as others share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import msgspec
import uvloop

from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.config.sections import (
    NodeSection,
    PeerEntry,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.identity import PrivateKey, SeededEntropy, SystemEntropy
from shoal.identity.message_body import Body, encode_body
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Input
from shoal.node import NetworkFile, Node
from shoal.protocols.streams.history.storage_node import KeepMessage, StorageNode
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.runtime import RuntimeHost
from shoal.storage.message_store.store import Store
from shoal.storage.message_store.store_disk import StoreDisk

STREAM = StreamId("0x1111111111111111111111111111111111111111/city/vehicles")
PUBLISHER = NodeId(bytes(range(20)))
CONTENT_BYTES = 300
BATCHES = (1, 64, 1024)
MESSAGES = 65_536
SINGLE_SHARE = 32  # of the messages, one in so many is stored by itself
ROUNDS = 3
PAGE_ROWS = 1_000
BURSTS = (16, 64, 1024)
NODE_SHARE = 4  # of the messages, one in so many goes through a whole node
WINDOW = 4_096  # messages of the publisher that are not kept yet
POLL_S = 0.005

SPAWN = multiprocessing.get_context("spawn")


class Row(msgspec.Struct, frozen=True):
    """One measurement."""

    what: str
    messages: int
    per_cpu_second: float
    plain_per_cpu_second: float
    ratio: float
    """The store against plain lmdb: 1 would be a store that costs nothing."""


def messages(count: int) -> list[VerifiedMessage]:
    """One chain, signed by nobody: signatures are checked before a store sees them."""
    content = bytes(CONTENT_BYTES)
    made = []
    for number in range(count):
        id = MessageId(STREAM, 0, 1_767_225_600_000 + number, 0, PUBLISHER, "1a2b3c4d")
        body = encode_body(Body(id, None, 0, content))
        made.append(VerifiedMessage(id, None, 0, content, bytes(65) + body))
    return made


def rate(count: int, work: Callable[[], object]) -> float:
    """Messages per CPU-second."""
    begin_s = time.process_time()
    work()
    return count / (time.process_time() - begin_s)


def measure_storing(sent: list[VerifiedMessage], batch: int, rounds: int) -> Row:
    """Both in turn, each time in a new file."""
    stored = plain = 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            with Store(Path(folder, "store"), SystemEntropy()) as store:
                stored = max(stored, rate(len(sent), lambda: store_all(store, sent, batch)))
            with lmdb.open(str(Path(folder, "plain")), map_size=1 << 30) as environment:
                plain = max(plain, rate(len(sent), lambda: put_all(environment, sent, batch)))
    return Row(f"stored, batches of {batch}", len(sent), stored, plain, stored / plain)


def store_all(store: Store, sent: list[VerifiedMessage], batch: int) -> None:
    for begin in range(0, len(sent), batch):
        store.append(sent[begin : begin + batch], time.time_ns())


def put_all(environment: lmdb.Environment, sent: list[VerifiedMessage], batch: int) -> None:
    for begin in range(0, len(sent), batch):
        with environment.begin(write=True) as txn:
            for message in sent[begin : begin + batch]:
                id = message.id
                position = id.timestamp_ms.to_bytes(8) + id.sequence.to_bytes(8)
                txn.put(position + id.publisher + id.chain.encode(), message.signed)


def measure_reading(sent: list[VerifiedMessage], rounds: int) -> list[Row]:
    """Everything that was stored, in each of the ways that it can be read."""
    count = len(sent)
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder, "a"), SystemEntropy()) as store,
    ):
        store_all(store, sent, BATCHES[-1])
        ways: dict[str, Callable[[], int]] = {
            "resent by range": lambda: sum(map(len, store.range(STREAM, 0))),
            "resent as last n": lambda: sum(map(len, store.last(STREAM, 0, count))),
            "read as log rows": lambda: read_log(store),
        }
        with lmdb.open(str(Path(folder, "plain")), map_size=1 << 30) as environment:
            put_all(environment, sent, BATCHES[-1])
            plain = max(rate(count, lambda: walk(environment)) for _ in range(rounds))
        rows = []
        for what, read in ways.items():
            if read() != count:
                raise AssertionError(f"{what}: not all of them")
            best = max(rate(count, read) for _ in range(rounds))
            rows.append(Row(what, count, best, plain, best / plain))
        return rows


def read_log(store: Store) -> int:
    after = count = 0
    while True:
        page = store.log_read(store.log, STREAM, 0, after, PAGE_ROWS)
        if not page.rows:
            return count
        count += len(page.rows)
        after = page.through


def walk(environment: lmdb.Environment) -> int:
    with environment.begin() as txn, txn.cursor() as cursor:
        return sum(1 for _ in cursor.iternext())


# The role


class Watched(StorageNode):
    """Says when nothing waits for the disk."""

    def __init__(self) -> None:
        super().__init__(PUBLISHER, lambda stream: True)
        self.quiet = asyncio.Event()

    def handle(self, event: Input, now_ns: int) -> list[Effect]:
        effects = super().handle(event, now_ns)
        if not self.waiting:
            self.quiet.set()
        return effects


def measure_keeping(sent: list[VerifiedMessage], burst: int, rounds: int) -> Row:
    """Through the storage machine and the disk thread, beside plain lmdb in batches as large."""
    kept = plain = 0.0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            kept = max(kept, uvloop.run(keep_all(Path(folder, "store"), sent, burst)))
            with lmdb.open(str(Path(folder, "plain")), map_size=1 << 30) as environment:
                plain = max(plain, rate(len(sent), lambda: put_all(environment, sent, burst)))
    return Row(f"kept, bursts of {burst}", len(sent), kept, plain, kept / plain)


async def keep_all(folder: Path, sent: list[VerifiedMessage], burst: int) -> float:
    machine = Watched()
    disk = StoreDisk(Store(folder, SystemEntropy()))
    host = RuntimeHost(PUBLISHER, [machine], [], rng=Random(1), disk=disk)
    await host.open([], ())
    try:
        begin_s = time.process_time()
        for begin in range(0, len(sent), burst):
            machine.quiet.clear()
            for message in sent[begin : begin + burst]:
                host.command(machine, KeepMessage(message))
            await machine.quiet.wait()
        return len(sent) / (time.process_time() - begin_s)
    finally:
        await host.stop()


# A whole node


def measure_node(count: int, rounds: int, plain: float) -> Row:
    """A storage node as `shoal serve` runs it, and a publisher that is always ahead of it."""
    best = max(uvloop.run(with_publisher(count)) for _ in range(rounds))
    return Row("kept by a node", count, best, plain, best / plain)


async def with_publisher(count: int) -> float:
    parent, child = SPAWN.Pipe()
    kept = SPAWN.Value("q", 0)
    process = SPAWN.Process(target=publish_all, args=(child, kept, count + WINDOW), daemon=True)
    process.start()
    try:
        tracker = await asyncio.to_thread(parent.recv)
        with tempfile.TemporaryDirectory() as folder:
            async with Node.open(keeper(tracker, folder), entropy=SeededEntropy("keeper")) as node:
                return await kept_by(node, kept, count)
    finally:
        process.kill()
        process.join()


def keeper(tracker: PeerEntry, folder: str) -> NetworkFile:
    own = show_node_id(PrivateKey.generate(SeededEntropy("keeper")).address)
    return NetworkFile(
        node=NodeSection(),
        trackers=(tracker,),
        storage_nodes=(PeerEntry(own, ("ws://127.0.0.1:9",)),),  # nobody dials it
        streams=(StreamSettings(id=STREAM, storage=(own,)),),
        storage=StorageSection(),
        folder=folder,
    )


async def kept_by(node: Node, kept: Any, count: int) -> float:
    """Messages per CPU-second, once it has begun."""
    assert node.storage is not None  # its file says so
    machine = node.storage.machine
    first = 0
    begin_s = 0.0
    while machine.stored < first + count:
        kept.value = machine.stored
        await asyncio.sleep(POLL_S)
        if machine.stored and not first:
            first, begin_s = machine.stored, time.process_time()
    return (machine.stored - first) / (time.process_time() - begin_s)


def publish_all(parent: Connection, kept: Any, count: int) -> None:
    """The other process: a tracker that publishes; ends by being killed."""
    uvloop.run(publish(parent, kept, count))


async def publish(parent: Connection, kept: Any, count: int) -> None:
    network = NetworkFile(node=NodeSection(listen=("ws://127.0.0.1:0",)), tracker=TrackerSection())
    async with Node.open(network) as node:
        parent.send(PeerEntry(show_node_id(node.id), node.addresses))
        stream = await node.open_stream(STREAM)
        await node.join(STREAM)
        while not node.degree(STREAM):
            await asyncio.sleep(POLL_S)
        for number in range(count):
            while number - kept.value >= WINDOW:
                await asyncio.sleep(POLL_S)
            await stream.publish(bytes(CONTENT_BYTES))
        await asyncio.Event().wait()


def measure(count: int, rounds: int) -> list[Row]:
    """All of it."""
    sent = messages(count)
    rows = []
    for batch in BATCHES:
        print(f"batches of {batch} ...", file=sys.stderr, flush=True)
        rows.append(measure_storing(sent if batch > 1 else sent[::SINGLE_SHARE], batch, rounds))
    for burst in BURSTS:
        print(f"bursts of {burst} ...", file=sys.stderr, flush=True)
        rows.append(measure_keeping(sent, burst, rounds))
    print("a whole node ...", file=sys.stderr, flush=True)
    rows.append(measure_node(count // NODE_SHARE, rounds, rows[-1].plain_per_cpu_second))
    print("reading ...", file=sys.stderr, flush=True)
    return rows + measure_reading(sent, rounds)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="Stored and read messages per CPU-second.")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rows = measure(options.messages, options.rounds)
    if options.json:
        result = {"benchmark": "storage", "content_bytes": CONTENT_BYTES, "rows": rows}
        print(msgspec.json.encode(result).decode())
        return
    print(f"{'':<26}{'messages':>10}{'per CPU-s':>12}{'plain lmdb':>12}{'ratio':>8}")
    for row in rows:
        print(
            f"{row.what:<26}{row.messages:>10,}{row.per_cpu_second:>12,.0f}"
            f"{row.plain_per_cpu_second:>12,.0f}{row.ratio:>8.3f}"
        )


if __name__ == "__main__":
    main()
