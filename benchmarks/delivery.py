"""CPU time per verified delivery, beside js gossipsub on the same graph in the same run.

    .venv/bin/python benchmarks/delivery.py                  a table
    .venv/bin/python benchmarks/delivery.py --json           one object, for machines
    ... --repeat 5 --messages 4000 --window 8                longer, or with less under way at once
    ... --no-gossipsub                                       ours alone

Sixteen nodes and their tracker in this process, over loopback WebSockets, as `shoal.Node` runs
them: every node subscribes, every message is checked by every node and read by its application. A
delivery is a message at a node other than its publisher. At most `window` messages are under way
at once. CPU time is that of the whole process, with the kernel's part of it.

    verify       one signature check and nothing else: no verified delivery costs less
    ours         microseconds of CPU per delivery
    gossipsub    the same load over the same graph, 16 nodes in one Node.js process, StrictSign

Every round measures the three one after the other, so that a slow minute hits all; the table has
the medians, and the range of `ours`. js gossipsub comes from npm (gossipsub/package.json) at the
first run. Without npm, its column is empty and the reason is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop

from shoal.config.network_file import tracker_contact
from shoal.config.sections import TrackerSection
from shoal.identity import PrivateKey, SeededEntropy, verify
from shoal.node import NetworkFile, Node, Stream, Subscription

NODES = 16
DEGREE = 4
PAYLOAD_BYTES = 300
WARM_UP_MESSAGES = 200
VERIFIES = 3000
JOIN_S_MAX = 30.0
FLOOD_S_MAX = 60.0  # what has not arrived by then counts as lost
INSTALL_S_MAX = 300.0
GOSSIPSUB = Path(__file__).with_name("gossipsub")
NODE_VERSION_MIN = 22  # of Node.js, for libp2p

Edges = list[tuple[int, int]]


class Flooded(msgspec.Struct, frozen=True):
    """What one run brought, ours or theirs."""

    expected: int
    delivered: int
    cpu_us: float
    wall_ms: float
    versions: dict[str, str] = {}

    @property
    def share(self) -> float:
        return self.delivered / self.expected

    @property
    def cpu_us_per_delivery(self) -> float:
        return self.cpu_us / max(1, self.delivered)


class Side(msgspec.Struct, frozen=True):
    """Medians of several rounds, and the range."""

    cpu_us_per_delivery: float
    cpu_us_min: float
    cpu_us_max: float
    deliveries_per_cpu_second: float
    delivered_share: float


class Row(msgspec.Struct, frozen=True):
    """One kind of load."""

    publishers: int
    verify_us: float
    verifies_per_cpu_second: float
    ours: Side
    over_verify: float
    """Ours / verify: 1 would be a network that costs nothing."""
    gossipsub: Side | None
    ratio: float | None
    """Gossipsub / ours."""


class GossipsubMissing(Exception):
    """Why there is nothing to compare with."""


# Ours


class Network:
    """Nodes in one stream, with their readers."""

    def __init__(self, nodes: list[Node], streams: list[Stream]) -> None:
        self.nodes = nodes
        self.streams = streams
        self.edges: Edges = []
        self.delivered = 0
        self._sent = 0
        self._wanted = 0
        self._enough = asyncio.Event()

    async def read(self, node: Node, subscription: Subscription) -> None:
        """An application that counts what others published."""
        async for message in subscription:
            if message.id.publisher != node.id:
                self.delivered += 1
                if self.delivered == self._wanted:
                    self._enough.set()

    async def flood(self, messages: int, publishers: int, window: int) -> Flooded:
        """Publish so many messages, and wait for them everywhere."""
        others, content = len(self.nodes) - 1, bytes(PAYLOAD_BYTES)
        before, begin_s, begin_cpu_s = self.delivered, time.perf_counter(), time.process_time()
        try:
            async with asyncio.timeout(FLOOD_S_MAX):
                for _ in range(messages):
                    await self._at_least((self._sent - window + 1) * others)
                    await self.streams[self._sent % publishers].publish(content)
                    self._sent += 1
                await self._at_least(self._sent * others)
        except TimeoutError:
            pass
        cpu_s, wall_s = time.process_time() - begin_cpu_s, time.perf_counter() - begin_s
        return Flooded(messages * others, self.delivered - before, cpu_s * 1e6, wall_s * 1e3)

    async def _at_least(self, delivered: int) -> None:
        if self.delivered < delivered:
            self._wanted = delivered
            self._enough.clear()
            await self._enough.wait()


@asynccontextmanager
async def network(nodes: int = NODES, degree: int = DEGREE) -> AsyncIterator[Network]:
    """A tracker and nodes on loopback, each with `degree` neighbours and a reader."""
    async with AsyncExitStack() as stack:
        file = NetworkFile(tracker=TrackerSection(degree=degree))
        tracker = await stack.enter_async_context(open_node(file, "tracker"))
        file = NetworkFile(trackers=(tracker_contact(tracker.id, list(tracker.addresses)),))
        opened = [
            await stack.enter_async_context(open_node(file, f"node {number}"))
            for number in range(nodes)
        ]
        own = await opened[0].create_stream("/benchmark")
        streams = [await node.open_stream(own.id) for node in opened]
        net = Network(opened, streams)
        readers = await stack.enter_async_context(asyncio.TaskGroup())
        for node, stream in zip(opened, streams, strict=True):
            subscription = await stack.enter_async_context(stream.subscribe())
            readers.create_task(net.read(node, subscription))
        async with asyncio.timeout(JOIN_S_MAX):
            while not (edges := settled(tracker, opened, own, degree)):
                await asyncio.sleep(0.05)
        net.edges = edges
        yield net


def open_node(file: NetworkFile, name: str) -> AbstractAsyncContextManager[Node]:
    return Node.open(file, entropy=SeededEntropy(name))


def settled(tracker: Node, nodes: list[Node], stream: Stream, degree: int) -> Edges:
    """The overlay by numbers of nodes, once all of it is connected as the tracker says."""
    assert tracker.tracker is not None
    state = tracker.tracker.streams[stream.id]
    if state.unanswered or len(state.members) < len(nodes):
        return []
    neighbours = [list(state.policy.neighbours(node.id)) for node in nodes]
    if any(len(of_node) != degree for of_node in neighbours):
        return []
    numbers = {node.id: number for number, node in enumerate(nodes)}
    pairs = [(a, numbers[peer]) for a, of_node in enumerate(neighbours) for peer in of_node]
    return sorted((a, b) for a, b in pairs if a < b)


def verify_us(checks: int) -> float:
    """CPU microseconds of a bare signature check."""
    key = PrivateKey.generate(SeededEntropy("publisher"))
    body = bytes(PAYLOAD_BYTES)
    signer, signature = key.address, key.sign(body)
    begin_s = time.process_time()
    for _ in range(checks):
        if not verify(signer, body, signature):
            raise AssertionError("a good signature was refused")
    return (time.process_time() - begin_s) * 1e6 / checks


# Theirs


async def install_gossipsub() -> str:
    """The Node.js to run it with; installs what gossipsub/package.json asks for, once."""
    own = GOSSIPSUB / "node_modules" / ".bin" / "node"
    if not (GOSSIPSUB / "node_modules" / ".package-lock.json").is_file():  # written last
        npm = shutil.which("npm")
        if npm is None:
            raise GossipsubMissing("npm is not installed")
        print("npm ci in benchmarks/gossipsub ...", file=sys.stderr, flush=True)
        await call(INSTALL_S_MAX, npm, "ci", "--no-audit", "--no-fund", "--loglevel=error")
    problem = "there is none"
    for program in (str(own), shutil.which("node")):
        if program is None or shutil.which(program) is None:
            continue
        version = (await call(10, program, "--version")).strip()
        if int(version.removeprefix("v").partition(".")[0]) >= NODE_VERSION_MIN:
            return program
        problem = f"this one is {version}"
    raise GossipsubMissing(f"it needs Node.js {NODE_VERSION_MIN}, and {problem}")


async def flood_gossipsub(
    program: str, edges: Edges, messages: int, publishers: int, window: int
) -> Flooded:
    """The same load in one Node.js process."""
    settings = {
        "nodes": NODES,
        "edges": edges,
        "warm_up": WARM_UP_MESSAGES,
        "messages": messages,
        "size": PAYLOAD_BYTES,
        "window": window,
        "publishers": publishers,
        "timeout_ms": FLOOD_S_MAX * 1000,
    }
    answer = await call(
        2 * FLOOD_S_MAX + JOIN_S_MAX + 30, program, "flood.mjs", given=json.dumps(settings)
    )
    try:
        flooded = msgspec.json.decode(answer.splitlines()[-1], type=Flooded)
    except (msgspec.DecodeError, IndexError) as error:
        raise GossipsubMissing(f"flood.mjs said {answer[-200:]!r}") from error
    if not flooded.delivered:
        raise GossipsubMissing("it delivered nothing")
    return flooded


async def call(timeout_s: float, *command: str, given: str = "") -> str:
    """What a command in the gossipsub folder prints; GossipsubMissing if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=GOSSIPSUB,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise GossipsubMissing(f"{command[0]}: {error}") from error
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(given.encode())
    except TimeoutError:
        raise GossipsubMissing(f"{' '.join(command)} takes longer than {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = err.decode(errors="replace").strip().splitlines()
        detail = next((line for line in said if "rror" in line), said[-1] if said else "no reason")
        raise GossipsubMissing(f"{' '.join(command)} failed: {detail}")
    return out.decode(errors="replace")


# Both


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rows, and why gossipsub is missing if it is."""
    missing: str | None = "left out, as asked" if options.no_gossipsub else None
    program = ""
    if missing is None:
        try:
            program = await install_gossipsub()
        except GossipsubMissing as error:
            missing = str(error)
    rows = []
    versions: dict[str, str] = {}
    async with network() as net:
        await net.flood(WARM_UP_MESSAGES, NODES, options.window)
        for publishers in (1, NODES):
            floors: list[float] = []
            ours: list[Flooded] = []
            theirs: list[Flooded] = []
            for number in range(options.repeat):
                name = f"{publishers} of {NODES} nodes publish, round {number + 1}"
                print(f"{name} of {options.repeat} ...", file=sys.stderr, flush=True)
                floors.append(verify_us(VERIFIES))
                ours.append(await net.flood(options.messages, publishers, options.window))
                if missing is None:
                    share = max(1, options.messages // options.slower)
                    try:
                        theirs.append(
                            await flood_gossipsub(
                                program, net.edges, share, publishers, options.window
                            )
                        )
                    except GossipsubMissing as error:
                        missing = str(error)
            versions.update(theirs[0].versions if theirs else {})
            rows.append(row_of(publishers, floors, ours, theirs if missing is None else []))
    return {
        "benchmark": "delivery",
        "nodes": NODES,
        "degree": DEGREE,
        "payload_bytes": PAYLOAD_BYTES,
        "window": options.window,
        "rounds": options.repeat,
        "rows": rows,
        "gossipsub_versions": versions or None,
        "gossipsub_missing": missing,
    }


def row_of(publishers: int, floors: list[float], ours: list[Flooded], theirs: list[Flooded]) -> Row:
    floor_us = median(floors)
    mine = side_of(ours)
    other = side_of(theirs) if theirs else None
    return Row(
        publishers=publishers,
        verify_us=floor_us,
        verifies_per_cpu_second=1e6 / floor_us,
        ours=mine,
        over_verify=median(o.cpu_us_per_delivery / f for o, f in zip(ours, floors, strict=True)),
        gossipsub=other,
        ratio=None if other is None else other.cpu_us_per_delivery / mine.cpu_us_per_delivery,
    )


def side_of(runs: list[Flooded]) -> Side:
    costs_us = [run.cpu_us_per_delivery for run in runs]
    middle_us = median(costs_us)
    return Side(
        cpu_us_per_delivery=middle_us,
        cpu_us_min=min(costs_us),
        cpu_us_max=max(costs_us),
        deliveries_per_cpu_second=1e6 / middle_us,
        delivered_share=min(run.share for run in runs),
    )


def show(result: dict[str, Any]) -> None:
    """A table for people."""
    print(
        f"{NODES} nodes, {DEGREE} neighbours each, {PAYLOAD_BYTES} bytes, at most"
        f" {result['window']} messages under way; CPU microseconds per verified delivery"
    )
    print("publishers   verify     ours (range)          over verify   gossipsub   ratio")
    for row in result["rows"]:
        ours, theirs = row.ours, row.gossipsub
        other = f"{theirs.cpu_us_per_delivery:9.0f}   {row.ratio:5.1f}" if theirs else "        -"
        spread = f"({ours.cpu_us_min:.1f} to {ours.cpu_us_max:.1f})"
        print(
            f"{row.publishers:10} {row.verify_us:8.1f} {ours.cpu_us_per_delivery:8.1f}"
            f" {spread:<18} {row.over_verify:10.2f}   {other}"
        )
        shares = [ours.delivered_share] + ([theirs.delivered_share] if theirs else [])
        print(
            f"           deliveries per CPU-second: {ours.deliveries_per_cpu_second:,.0f}"
            + (f", gossipsub {theirs.deliveries_per_cpu_second:,.0f}" if theirs else "")
            + "; delivered: "
            + ", ".join(f"{share:.1%}" for share in shares)
        )
    if result["gossipsub_missing"]:
        print(f"gossipsub is missing: {result['gossipsub_missing']}")


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=2000, help="published per round")
    parser.add_argument("--window", type=int, default=64, help="messages under way at once")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each measurement")
    parser.add_argument("--no-gossipsub", action="store_true", help="ours alone")
    parser.add_argument(
        "--slower", type=int, default=8, help="gossipsub gets one of so many messages"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    work: Coroutine[Any, Any, dict[str, Any]] = measure(options)
    result = uvloop.run(work)
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        show(result)


if __name__ == "__main__":
    main()
