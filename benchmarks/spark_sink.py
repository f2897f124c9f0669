"""Messages per CPU-second through Spark's sink: from a DataFrame to the disk of a storage node.

    .venv/bin/python benchmarks/spark_sink.py [--json] [--rows 100000] [--rounds 3]

A publishing node with an outbox is a process of its own; tracker, storage node and a far subscriber
are another one. Spark writes rows of 308 bytes, in a session that is warm, and a round ends when
the outbox is empty: all rows are signed, published, and on the storage node's disk. The CPU of the
JVM, of its Python workers and of the publishing node is the sink's; that of the other side, which
checks every signature twice, is shown beside it. Calibration: bare signatures per CPU-second.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from shoal.base.ids import show_node_id
from shoal.config.sections import (
    GatewaySection,
    NodeSection,
    OutboxSection,
    PeerEntry,
    StorageSection,
    StreamSettings,
    TrackerSection,
)
from shoal.gateway import Gateway
from shoal.identity import PrivateKey, SeededEntropy
from shoal.node import NetworkFile, Node
from shoal_spark.session import SessionSettings, spark_session
from shoal_spark.sink import OutboxClient, parse_options

ROWS, ROUNDS, WARM_ROWS = 100_000, 3, 20_000
VALUE_BYTES = 308  # a city's vehicle message
SIGNED = 5_000
STREAM = "0x" + "ab" * 20 + "/alerts"
TOKEN = "the token of a benchmark"
TICKS_S = os.sysconf("SC_CLK_TCK")


# The network


def network_of(entries: dict[str, PeerEntry], folder: str, name: str) -> NetworkFile:
    """The network file of the tracker, the keeper, the publisher, or anybody."""
    listen = entries[name].addresses if name in entries else ("ws://127.0.0.1:0",)
    publisher = name == "publisher"
    return NetworkFile(
        node=NodeSection(listen=listen),
        trackers=(entries["tracker"],),
        storage_nodes=(entries["keeper"],),
        streams=(StreamSettings(id=STREAM, storage=(entries["keeper"].id,)),),
        tracker=TrackerSection() if name == "tracker" else None,
        storage=StorageSection() if name == "keeper" else None,
        outbox=OutboxSection(token="file:token") if publisher else None,
        gateway=GatewaySection() if publisher else None,
        folder=folder,
    )


def run_others(entries: dict[str, PeerEntry], folder: str, pipe: Connection) -> None:
    """Tracker, storage node and subscriber; asked how many messages came, until told to end."""

    async def main() -> None:
        def opened(name: str) -> Any:
            return Node.open(network_of(entries, folder, name), entropy=SeededEntropy(name))

        async with (
            opened("tracker"),
            opened("keeper"),
            opened("far") as far,
            (await far.open_stream(STREAM)).subscribe(queue_max=1_000_000) as messages,
        ):
            pipe.send("ready")
            count = 0
            while True:
                try:
                    async with asyncio.timeout(0.1):
                        while True:
                            await anext(messages)
                            count += 1
                except TimeoutError:
                    if not pipe.poll():
                        continue
                if pipe.recv() == "end":
                    return
                pipe.send(count)

    asyncio.run(main())


def run_publisher(entries: dict[str, PeerEntry], folder: str, pipe: Connection) -> None:
    """The publishing node, until it is told to end."""

    async def main() -> None:
        network = network_of(entries, folder, "publisher")
        async with Node.open(network, entropy=SeededEntropy("publisher")) as node:
            gateway = Gateway(node.host, outbox=node.outbox)
            pipe.send(await gateway.open("127.0.0.1:0"))
            while not pipe.poll():
                await asyncio.sleep(0.1)
            await gateway.close()

    asyncio.run(main())


def entries_of() -> dict[str, PeerEntry]:
    """Who listens where."""
    ports = iter(range(21_700, 21_710))
    names = ("tracker", "keeper")
    keys = {name: PrivateKey.generate(SeededEntropy(name)) for name in names}
    return {
        name: PeerEntry(show_node_id(key.address), (f"ws://127.0.0.1:{next(ports)}",))
        for name, key in keys.items()
    }


# Figures


def cpu_s(pid: int) -> float:
    """CPU-seconds of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:13]) / TICKS_S


def tree_of(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue  # it is gone
            parents.setdefault(int(parent), []).append(int(path.name))
    found, new = [root], [root]
    while new:
        new = [child for pid in new for child in parents.get(pid, [])]
        found += new
    return found


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


class Meter:
    """CPU-seconds of Spark, and of processes apart from it, by name. Workers come and go, and what
    one used is gone with it: so all are looked at ten times a second."""

    def __init__(self, apart: dict[int, str]) -> None:
        self._apart = apart
        self._begun: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._over = threading.Event()
        self._look()
        self._begun = dict(self._last)  # whoever comes later begins with nothing
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()

    def end(self) -> dict[str, float]:
        """What was used since the beginning."""
        self._over.set()
        self._thread.join()
        self._look()
        used = dict.fromkeys(("jvm", "python", *self._apart.values()), 0.0)
        for pid, last_s in self._last.items():
            used[self._names[pid]] += last_s - self._begun.get(pid, 0.0)
        return used

    def _look_on(self) -> None:
        while not self._over.wait(0.1):
            self._look()

    def _look(self) -> None:
        for pid in tree_of(os.getpid()):
            try:
                kind = "jvm" if name_of(pid) == "java" else "python"
                self._names[pid] = self._apart.get(pid, kind)
                self._last[pid] = cpu_s(pid)
            except OSError:
                continue  # it is gone


def signatures_per_cpu_s() -> float:
    key = PrivateKey.generate(SeededEntropy("calibration"))
    body = bytes(VALUE_BYTES + 100)
    begun_s = time.process_time()
    for _ in range(SIGNED):
        key.sign(body)
    return SIGNED / (time.process_time() - begun_s)


def measure(rows: int, rounds: int) -> dict[str, Any]:
    """All of it."""
    context = multiprocessing.get_context("spawn")
    entries = entries_of()
    with tempfile.TemporaryDirectory(prefix="shoal-sink-") as folder:
        token = Path(folder, "token")
        token.write_text(TOKEN)
        ours, theirs = context.Pipe()
        others = context.Process(target=run_others, args=(entries, folder, theirs))
        others.start()
        assert ours.recv() == "ready"
        to_publisher, from_publisher = context.Pipe()
        publisher = context.Process(target=run_publisher, args=(entries, folder, from_publisher))
        publisher.start()
        address = to_publisher.recv()
        assert publisher.pid is not None
        assert others.pid is not None
        apart = {publisher.pid: "node", others.pid: "others"}
        options = {"outbox": address, "stream": STREAM, "token": f"file:{token}"}
        client = OutboxClient(parse_options(options))
        results: list[dict[str, Any]] = []
        with spark_session(SessionSettings(master="local[2]", driver_memory="1g")) as spark:
            from pyspark_shoal import DefaultSource

            spark.dataSource.register(DefaultSource)

            def write(count: int) -> float:
                begun_s = time.perf_counter()
                frame = spark.range(count, numPartitions=2)
                value = f"rpad(concat('row ', id), {VALUE_BYTES}, 'x') as value"
                frame.selectExpr(value).write.format("shoal").mode("append").options(
                    **options
                ).save()
                while client.state()["waiting_parts"]:
                    time.sleep(0.02)
                return time.perf_counter() - begun_s

            write(WARM_ROWS)
            for _ in range(rounds):
                meter = Meter(apart)
                took_s = write(rows)
                cpu = meter.end()
                sink_s = cpu["jvm"] + cpu["python"] + cpu["node"]
                results.append(
                    {"rows": rows, "wall_s": took_s, "cpu_s": cpu, "per_cpu_s": rows / sink_s}
                )
        expected, arrived = WARM_ROWS + rounds * rows, 0
        while arrived < expected:
            ours.send("count")
            arrived = ours.recv()
        for pipe, process in ((to_publisher, publisher), (ours, others)):
            pipe.send("end")
            process.join()
    middle = sorted(results, key=lambda result: result["per_cpu_s"])[(len(results) - 1) // 2]
    bare = signatures_per_cpu_s()
    return {"median": middle, "rounds": results, "arrived": arrived, "signatures_per_cpu_s": bare}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    result = measure(arguments.rows, arguments.rounds)
    if arguments.json:
        print(msgspec.json.encode(result).decode())
        return
    middle = result["median"]
    cpu = middle["cpu_s"]
    print(f"{middle['rows']} rows of {VALUE_BYTES} bytes in {middle['wall_s']:.1f} s")
    for name in ("jvm", "python", "node", "others"):
        print(
            f"  {name:8} {cpu[name]:6.2f} CPU-s, {cpu[name] / middle['rows'] * 1e6:5.0f} us a row"
        )
    print(f"sink (without others): {middle['per_cpu_s']:.0f} messages per CPU-second")
    print(f"bare signatures:       {result['signatures_per_cpu_s']:.0f} per CPU-second")
    print(f"the far subscriber got {result['arrived']} messages")


if __name__ == "__main__":
    main()
