"""Rows that the Spark source reads and checks per CPU-second, beside bare coincurve.

    .venv/bin/python benchmarks/spark_source.py [--json] [--messages 200000] [--rounds 2]

Signed messages of 308 bytes of content lie in the store of another process, which serves its log
over HTTP; its CPU time is shown, and counts for nobody else. Bare: coincurve checks the same
signatures over digests that were made before, and nothing else. Executor: what one task does,
without Spark: pages are read, decoded, checked, and made into Arrow batches. Spark: a batch read of
all rows, of which Spark makes one sum; the JVM, its planner and its Python workers count. The
session has run one read before. CPU time counts; the best of the rounds, as others share the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coincurve
import msgspec
from aiohttp import web
from coincurve.ecdsa import cdata_to_der, deserialize_recoverable, recoverable_convert

from shoal.base.ids import MessageId, NodeId, StreamId, show_node_id
from shoal.gateway.endpoints.storage_log import Logs
from shoal.gateway.route_table import Table
from shoal.identity import PrivateKey, SeededEntropy, SystemEntropy
from shoal.identity.message_body import JSON, Body, encode_body, split_signed
from shoal.identity.signatures import keccak256
from shoal.protocols.streams.signed_message import VerifiedMessage
from shoal.storage.message_store.store import Store
from shoal_spark.session import SessionSettings, spark_session
from shoal_spark.source.follower import Follower
from shoal_spark.source.offsets import EVERYTHING, split
from shoal_spark.source.options import parse_options
from shoal_spark.source.readers import read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = PrivateKey.generate(SeededEntropy("vehicles"))
STREAM = StreamId(f"{show_node_id(KEY.address)}/city/vehicles")
START_MS = 1_767_225_600_000
CONTENT_BYTES = 308
PARTITIONS = 2
MESSAGES = 200_000
ROUNDS = 2
BATCH = 2_000
BARE = 20_000  # signatures of the bare check
TASK_ROWS = 50_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

SPAWN = multiprocessing.get_context("spawn")


class Row(msgspec.Struct, frozen=True):
    """One measurement."""

    what: str
    messages: int
    per_cpu_second: float
    ratio: float
    """Against bare coincurve: 1 would be a source that costs nothing else."""


def message(number: int) -> VerifiedMessage:
    content = b'{"vehicle":%d,"padding":"' % number
    content += b"x" * (CONTENT_BYTES - len(content) - 2) + b'"}'
    id = MessageId(STREAM, number % PARTITIONS, START_MS + number, 0, KEY.address, "c1")
    body = encode_body(Body(id, None, JSON, content))
    return VerifiedMessage(id, None, JSON, content, KEY.sign(body) + body)


# The other process


def serve(parent: Connection, folder: str, count: int) -> None:
    """Make the messages, and serve them until told to end; says how much CPU that took."""
    with Store(Path(folder, "store"), SystemEntropy()) as store:
        for begin in range(0, count, BATCH):
            made = [message(number) for number in range(begin, min(begin + BATCH, count))]
            store.append(made, time.time_ns())
        asyncio.run(_serve(parent, store))


async def _serve(parent: Connection, store: Store) -> None:
    logs, app = Logs(store, NodeId(bytes(20))), web.Application()
    Table([logs]).add_to(app.router)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    parent.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
    while await asyncio.to_thread(parent.recv):
        parent.send(time.process_time())
    await runner.cleanup()
    logs.close()


# Rates


def bare(rounds: int) -> float:
    """Signatures that coincurve checks per CPU-second."""
    key = coincurve.PublicKey(KEY.public.to_bytes())
    checks = []
    for number in range(BARE):
        signature, body = split_signed(message(number).signed)
        plain = recoverable_convert(deserialize_recoverable(signature))
        checks.append((cdata_to_der(plain), keccak256(body)))
    best = 0.0
    for _ in range(rounds):
        begin_s = time.process_time()
        good = sum(key.verify(signature, digest, hasher=None) for signature, digest in checks)
        best = max(best, BARE / (time.process_time() - begin_s))
        if good != BARE:
            raise AssertionError("a signature is bad")
    return best


def executor(server: str, count: int, rounds: int) -> float:
    """Rows that one process reads per CPU-second."""
    options = parse_options({"servers": server, "stream": STREAM}, streaming=False)
    best = 0.0
    for _ in range(rounds):
        follower = Follower(options)
        parts = follower.ranges(follower.place_of("earliest"), "latest")
        follower.close()
        begin_s = time.process_time()
        rows = 0
        for task in (task for part in parts for task in split(part, TASK_ROWS)):
            for batch in read_range(options, task, EVERYTHING):
                rows += batch.num_rows
                if batch.column("error").null_count != batch.num_rows:
                    raise AssertionError("a row is bad")
        best = max(best, count / (time.process_time() - begin_s))
        if rows != count:
            raise AssertionError(f"{rows} rows instead of {count}")
    return best


def in_spark(spark: SparkSession, server: str, count: int, rounds: int) -> float:
    """Rows that Spark reads per CPU-second, of all its processes."""
    from pyspark.sql import functions as f

    frame = spark.read.format("shoal").options(
        servers=server, stream=STREAM, maxRecordsPerPartition=str(TASK_ROWS)
    )
    sums = (f.count("value"), f.sum(f.length("content")), f.count("error"))
    frame.option("endingOffsets", str(START_MS)).load().select(*sums).collect()  # the first read
    best = 0.0
    for _ in range(rounds):
        begin_s = cpu_of_children_s()
        (found,) = frame.option("endingOffsets", "latest").load().select(*sums).collect()
        best = max(best, count / (cpu_of_children_s() - begin_s))
        if tuple(found) != (count, count * CONTENT_BYTES, 0):
            raise AssertionError(f"Spark found {found}")
    return best


def cpu_of_children_s() -> float:
    """CPU time of all processes below the JVM and of itself, of those that ended too."""
    stats: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = int(words[1]), sum(map(int, words[11:15]))
    jvm = [pid for pid, (parent, _) in stats.items() if parent == os.getpid() and is_java(pid)]
    found, waiting = 0, jvm
    while waiting:
        pid = waiting.pop()
        found += stats[pid][1]
        waiting += [child for child, (parent, _) in stats.items() if parent == pid]
    return found / TICKS_PER_S


def is_java(pid: int) -> bool:
    return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()


def measure(count: int, rounds: int) -> tuple[list[Row], float]:
    """All of it, and what the server took per row, in microseconds of its CPU."""
    parent, child = SPAWN.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = SPAWN.Process(target=serve, args=(child, folder, count), daemon=True)
        process.start()
        print("bare coincurve ...", file=sys.stderr, flush=True)
        plain = bare(rounds)
        print(f"signing {count:,} messages ...", file=sys.stderr, flush=True)
        server: str = parent.recv()
        try:
            print("one executor ...", file=sys.stderr, flush=True)
            begin_s = told(parent)
            alone = executor(server, count, rounds)
            server_us = (told(parent) - begin_s) * 1e6 / (count * rounds)
            print("Spark ...", file=sys.stderr, flush=True)
            with spark_session(SessionSettings(master="local[2]", driver_memory="1g")) as spark:
                whole = in_spark(spark, server, count, rounds)
        finally:
            parent.send(False)
            process.join()
    rows = [
        Row("bare coincurve", BARE, plain, 1.0),
        Row("executor", count, alone, alone / plain),
        Row("Spark, all of it", count, whole, whole / plain),
    ]
    return rows, server_us


def told(parent: Connection) -> float:
    parent.send(True)
    cpu_s: Any = parent.recv()
    return float(cpu_s)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description="Verified rows of the source per CPU-second.")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    rows, server_us = measure(options.messages, options.rounds)
    if options.json:
        result = {"benchmark": "spark_source", "rows": rows, "server_us_per_row": server_us}
        print(msgspec.json.encode(result).decode())
        return
    print(f"{'':<20}{'messages':>10}{'per CPU-s':>12}{'ratio':>8}")
    for row in rows:
        print(f"{row.what:<20}{row.messages:>10,}{row.per_cpu_second:>12,.0f}{row.ratio:>8.2f}")
    print(f"the server's CPU: {server_us:.1f} us per row")


if __name__ == "__main__":
    main()
