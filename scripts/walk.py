"""A guided walk: which files and functions one flow passes through, in order.

    python -m scripts.walk publish             files, and in each the functions
    python -m scripts.walk topic --compact     files only
    python -m scripts.walk all --totals        how many files, returns and calls each flow takes
    python -m scripts.walk search --json       one object for each flow, a line each

    publish       one node publishes to a stream, until the iterator of another one yields
    topic         a node publishes an event, and another node confirms that it stores it; then a
                  third node, which has joined since, subscribes from the beginning, until its
                  iterator yields
    search        a node searches, until it has the hit, a document of another node
    spark-in      a node publishes a durable message, and Spark's source reads it as a row
    spark-out     a row goes into Spark's sink, until another node's iterator yields it

Nodes, a tracker and gateways run in this process and speak over loopback sockets, as in production.
There is no JVM: what Spark calls in the source and in the sink is called here, in a thread of its
own. Streams are in a registry, as those of `shoal up` are: the one of `publish` is private, so its
messages are sealed; those of Spark are public.

A call enters a function or lambda in a file below src, in any thread or task. A coroutine or
generator that resumes is no new call, and a comprehension is part of its function. Calls in base,
kernel, runtime, transport and sim are neither shown nor counted: LEFT_OUT, at the top of the code,
names them. Consecutive calls in one file are one stop; a stop in a file that was visited before is
a return. Start-up, joins and imports are not in a walk, since each flow runs three times before it.
Tasks, threads and timers of all nodes interleave, so two walks differ a little: the figures are
medians with their ranges, and the walk that is printed is the one nearest to the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import gc
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from inspect import CO_OPTIMIZED
from itertools import groupby
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

import msgspec

import shoal
from shoal.base.ids import NodeId, show_node_id
from shoal.gateway.server import open_doors
from shoal.identity import (
    PrivateKey,
    ScryptCost,
    SeededEntropy,
    SystemEntropy,
    create_keystore,
)
from shoal.kernel.access import Permission
from shoal.registry.config import RegistrySection
from shoal.registry.opening import deploy_registry

SRC = Path(shoal.__file__).parents[1]
# A call counts if its module is in one of these packages ...
COUNTED = ("shoal", "shoal_spark", "shoal_lab", "shoal_city", "pyspark_shoal")
# ... and in none of these, which are below every flow and the same for all.
LEFT_OUT = ("shoal.base", "shoal.kernel", "shoal.runtime", "shoal.transport", "shoal.sim")

WARM_UPS = 3
WALKS = 15
WALKS_MAX = 100
PATIENCE_S = 60.0
POLL_S = 3.0  # of the registry: the default, 0.25 s, would put a poll into most walks
CHEAP = ScryptCost(n=2, r=8, p=1)  # the keys of a walk need no protection
SETTLE_S = 0.3  # before each walk: acknowledgements of the last one arrive
INLINE = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
RESUME = dis.opmap["RESUME"]
RESUME_KIND = 0b11  # of its argument: 0 at the start of a function, else after a yield or await

# What was called


class Call(msgspec.Struct, frozen=True):
    """One call."""

    file: str
    """Below src."""
    function: str
    thread: str = ""
    """Its name, if it is not the one of the event loop."""


class Recording:
    """Records the calls of all threads while it is on.

    Threads that started before it was installed are not recorded.
    """

    def __init__(self, src: Path = SRC) -> None:
        self.calls: list[Call] = []
        self._src = f"{src}{os.sep}"
        self._on = False
        self._files: dict[str, str | None] = {}  # by the file name of the code

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread, and every thread that starts meanwhile."""
        before, before_in_threads = sys.gettrace(), threading.gettrace()
        threading.settrace(self._called)
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before_in_threads)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Add the calls made meanwhile to the recorded ones."""
        gc.collect()
        gc.disable()  # finalizers of earlier objects are no part of a walk
        self._on = True
        try:
            yield
        finally:
            self._on = False
            gc.enable()

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if not self._on:
            return
        code = frame.f_code
        file = self._files.get(code.co_filename, "")
        if file == "":
            file = self._files[code.co_filename] = counted(code.co_filename, self._src)
        if file is not None and is_start(code, frame.f_lasti):
            thread = threading.current_thread()
            name = "" if thread is threading.main_thread() else thread.name
            self.calls.append(Call(file, code.co_qualname, name))


def counted(filename: str, src: str) -> str | None:
    """A file below src if its calls count, else None."""
    if not filename.startswith(src):
        return None
    path = Path(filename[len(src) :])
    module = ".".join(path.with_suffix("").parts)
    is_in = [any(f"{module}.".startswith(f"{name}.") for name in of) for of in (COUNTED, LEFT_OUT)]
    return path.as_posix() if is_in == [True, False] else None


def is_start(code: CodeType, offset: int) -> bool:
    """Whether a frame that is entered is a new call of a function: not the body of a module or
    class, not a comprehension, not a coroutine or generator that resumes."""
    if not code.co_flags & CO_OPTIMIZED or code.co_name in INLINE:
        return False
    instruction = code.co_code[offset : offset + 2]
    return instruction[0] != RESUME or not instruction[1] & RESUME_KIND


# What a walk is


class Stop(msgspec.Struct, frozen=True):
    """Consecutive calls in one file."""

    file: str
    functions: list[str]
    is_return: bool
    thread: str


class Walk(msgspec.Struct, frozen=True):
    """One run of a flow."""

    stops: list[Stop]
    calls: int

    @property
    def files(self) -> int:
        return len({stop.file for stop in self.stops})

    @property
    def returns(self) -> int:
        return sum(stop.is_return for stop in self.stops)


class Total(msgspec.Struct, frozen=True):
    """A figure of several walks."""

    median: float
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.median:g} ({self.least} to {self.most})"


class Walked(msgspec.Struct, frozen=True):
    """What is told of a flow."""

    flow: str
    walks: int
    files: Total
    returns: Total
    calls: Total
    stops: list[Stop]
    """Of the walk whose figures are nearest to the medians."""


def walk_of(calls: Iterable[Call]) -> Walk:
    """Calls, as stops."""
    stops: list[Stop] = []
    visited: set[str] = set()
    count = 0
    for file, group in groupby(calls, lambda call: call.file):
        there = list(group)
        count += len(there)
        functions = [call.function for call in there]
        stops.append(Stop(file, functions, file in visited, there[0].thread))
        visited.add(file)
    return Walk(stops, count)


def summed_up(flow: str, walks: Sequence[Walk]) -> Walked:
    """Medians and ranges, and the walk that is nearest to them."""
    files, returns, calls = (
        Total(median(of), min(of), max(of))
        for of in (
            [walk.files for walk in walks],
            [walk.returns for walk in walks],
            [walk.calls for walk in walks],
        )
    )
    typical = min(
        walks,
        key=lambda walk: (
            abs(walk.files - files.median) + abs(walk.returns - returns.median),
            abs(walk.calls - calls.median),
        ),
    )
    return Walked(flow, len(walks), files, returns, calls, typical.stops)


def shown(result: Walked, *, compact: bool = False) -> Iterator[str]:
    """The stops of a walk, as lines."""
    for stop in result.stops:
        mark = "return to " if stop.is_return else ""
        thread = f"  (thread {stop.thread})" if stop.thread else ""
        yield f"{mark:>10}{stop.file}{thread}"
        if not compact:
            for function, group in groupby(stop.functions):
                times = len(list(group))
                yield f"{'':14}{function}{f' ({times} times)' if times > 1 else ''}"


def totals(result: Walked) -> str:
    """Files, returns and calls, in one line."""
    return (
        f"{result.flow}: {result.files} files, {result.returns} returns, {result.calls} calls;"
        f" medians and ranges of {result.walks} walks"
    )


# The network of a walk

Once = Callable[[int], Awaitable[None]]
"""Runs a flow once and records it; the number is that of the run, from 0."""


class Town:
    """Nodes by name, in one folder."""

    def __init__(self, folder: Path, recording: Recording) -> None:
        self.recording = recording
        self.stack = AsyncExitStack()
        self._folder = folder

    async def open(self, name: str, *sections: str, listen: str = "ws://127.0.0.1:0") -> shoal.Node:
        """A running node with these sections in its network file, and its key in a keystore."""
        keystore, path = self._folder / f"{name}.key", self._folder / f"{name}.toml"
        create_keystore(
            keystore, key_of(name), "", SystemEntropy(), cost=CHEAP, allow_empty_passphrase=True
        )
        own = f'[node]\nkey = "{keystore.name}"\nlisten = ["{listen}"]'
        path.write_text("\n".join([own, *sections]))
        return await self.stack.enter_async_context(shoal.Node.open(path))

    async def registry(self) -> str:
        """A new one, on a chain in this process; the section that names it."""
        section = RegistrySection(folder="registry")
        await deploy_registry(section, self._folder, key_of("admin"), SystemEntropy())
        return f'[registry]\nfolder = "{section.folder}"\npoll_s = {POLL_S}'

    @asynccontextmanager
    async def beside(self, name: str) -> AsyncIterator[Town]:
        """Another one, which ends with the context."""
        folder = self._folder / name
        folder.mkdir()
        town = Town(folder, self.recording)
        async with town.stack:
            yield town

    @property
    def token(self) -> str:
        """Where an outbox's token is, as network files and options of Spark say it."""
        path = self._folder / "token"
        path.write_text("what a query shows to an outbox")
        return f"file:{path}"

    async def gateway(self, node: shoal.Node) -> str:
        """Serve a node over HTTP, as its network file says; the address."""
        address = await open_doors(node, self.stack)
        assert address is not None
        return address


def key_of(name: str) -> PrivateKey:
    """Always the same."""
    return PrivateKey.generate(SeededEntropy(name))


def contact(section: str, node: shoal.Node) -> str:
    """The section of a network file that names a node which runs."""
    return entry(section, node.id, node.addresses)


def entry(section: str, node: NodeId, addresses: Iterable[str]) -> str:
    """A section with an id and addresses."""
    return f'[[{section}]]\nid = "{show_node_id(node)}"\naddresses = {json.dumps([*addresses])}'


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


# Flows


async def publish(town: Town) -> Once:
    """From Stream.publish of one node until the iterator of another one yields."""
    registry = await town.registry()
    tracker = await town.open("tracker", "[tracker]", registry)
    network = (contact("trackers", tracker), registry)
    near, far = [await town.open(name, *network) for name in ("near", "far")]
    stream = await near.create_stream("/walk")
    assert near.registry is not None
    await near.registry.registry.grant(stream.id, [far.id], Permission.SUBSCRIBE)
    messages = await town.stack.enter_async_context((await far.open_stream(stream.id)).subscribe())
    await until_linked(stream, messages)

    async def once(number: int) -> None:
        with town.recording.on():
            await stream.publish({"number": number})
            message = await anext(messages)
        assert message.content == {"number": number}

    return once


async def topic(town: Town) -> Once:
    """From Topic.publish through event.stored(1) until the iterator of a newcomer yields."""

    async def once(number: int) -> None:
        # New nodes each time: the others would go on dialling a reader that has left.
        async with town.beside(str(number)) as new:
            disk = '[topics]\nfolder = "{}"'
            author = await new.open("author", "[dht]", disk.format("author"))
            met = contact("dht.bootstrap", author)
            await new.open("replica", "[dht]", met, disk.format("replica"))
            other, own = [await author.create_topic(name) for name in ("warm up", "walk")]
            await own.stored(1)
            await (await other.publish(b"warm up")).stored(1)
            await asyncio.sleep(SETTLE_S)
            with town.recording.on():
                event = await own.publish(b"walk")
                await event.stored(1)
            reader = await new.open("reader", "[dht]", met, disk.format("reader"))
            theirs = await reader.topic(own.cid)
            await asyncio.sleep(SETTLE_S)
            with town.recording.on():
                events = await new.stack.enter_async_context(theirs.subscribe(start="earliest"))
                read = await anext(events)
            assert read.payload == b"walk"

    return once


async def search(town: Town) -> Once:
    """From Node.search until its first hit, which another node put before this one joined."""
    first = await town.open("first", "[search]")
    met = contact("search.bootstrap", first)
    owner = await town.open("owner", "[search]", met)
    for number in range(WARM_UPS + WALKS_MAX):
        await owner.put({"walk": str(number)})
    searcher = await town.open("searcher", "[search]", met)
    await searcher.measure.size()  # it has joined

    async def once(number: int) -> None:
        with town.recording.on():
            hits = searcher.search(f"walk:{number}")
            hit = await anext(aiter(hits))
        await hits.stop()
        assert hit.content == {"walk": str(number)}

    return once


async def spark_in(town: Town) -> Once:
    """From Stream.publish with a storage node until the task of Spark's source has a row."""
    from pyspark_shoal import DefaultSource

    publisher, keeper, _ = await kept(town)
    stream = await publisher.create_stream("/walk", public=True)
    options = {"servers": await town.gateway(keeper), "stream": stream.id, "allowMissing": "true"}
    source = DefaultSource({**options, "startingOffsets": "earliest"})
    reader = source.streamReader(source.schema())
    town.stack.push_async_callback(asyncio.to_thread, reader.stop)
    at = await asyncio.to_thread(reader.initialOffset)

    def trigger() -> list[Any]:
        nonlocal at
        begin, at = at, reader.latestOffset(at, reader.getDefaultReadLimit())
        tasks = reader.partitions(begin, at)
        rows: list[Any] = []
        for task in tasks:
            batches: Iterable[Any] = reader.read(task)
            rows += [row for batch in batches for row in batch.to_pylist()]
        reader.commit(at)
        return rows

    async def once(number: int) -> None:
        with town.recording.on():
            await stream.publish({"number": number}, durable=True)
            (row,) = await asyncio.to_thread(trigger)
        assert json.loads(row["value"]) == {"number": number}, row

    return once


async def spark_out(town: Town) -> Once:
    """From the task of Spark's sink that writes a row until the iterator of another node yields."""
    from pyarrow import RecordBatch
    from pyspark import TaskContext
    from pyspark.sql.types import StringType, StructType

    from pyspark_shoal import DefaultSource

    publisher, _, far = await kept(town)
    stream = await publisher.create_stream("/walk", public=True)
    messages = await town.stack.enter_async_context((await far.open_stream(stream.id)).subscribe())
    await until_linked(stream, messages)
    options = {"outbox": await town.gateway(publisher), "stream": stream.id, "token": town.token}
    source = DefaultSource(options)
    schema = StructType().add("value", StringType())

    def batch(number: int) -> None:
        # As much of a task's context as a worker of Spark sets.
        context = TaskContext._getOrCreate()
        context._partitionId, context._taskAttemptId = 0, number
        context._localProperties = {
            "streaming.sql.batchId": str(number),
            "sql.streaming.queryId": "walk",
            "spark.jobGroup.id": "run",
        }
        rows = RecordBatch.from_pydict({"value": [str(number)]})
        try:
            writer = source.streamWriter(schema, overwrite=False)
            writer.commit([writer.write(iter([rows]))], number)
        finally:
            TaskContext._taskContext = None  # with one, this process is no driver

    async def once(number: int) -> None:
        with town.recording.on():
            await asyncio.to_thread(batch, number)
            message = await anext(messages)
        assert message.content == str(number)

    return once


async def until_linked(stream: shoal.Stream, messages: shoal.Subscription) -> None:
    """Publish until a message arrives, and read all of them."""
    patience_s, has_come = 1.0, False
    while True:
        if not has_come:
            await stream.publish("hello")
        try:
            async with asyncio.timeout(patience_s):
                await anext(messages)
        except TimeoutError:
            if has_come:
                return
        else:
            patience_s, has_come = SETTLE_S, True


async def kept(town: Town) -> tuple[shoal.Node, shoal.Node, shoal.Node]:
    """A publisher with an outbox, a storage node that keeps all streams, and another node."""
    keeper_id, listen = key_of("keeper").address, f"ws://127.0.0.1:{free_port()}"
    registry = await town.registry()
    tracker = await town.open("tracker", "[tracker]", registry)
    network = (
        registry,
        contact("trackers", tracker),
        entry("storage_nodes", keeper_id, [listen]),
        f'[[streams]]\nid = "*"\nstorage = ["{show_node_id(keeper_id)}"]',
    )
    serving = '[gateway]\nlisten = "127.0.0.1:0"'
    outbox = f'[outbox]\ntoken = "{town.token}"'
    keeper = await town.open(
        "keeper", *network, '[storage]\nfolder = "store"', serving, listen=listen
    )
    publisher = await town.open("publisher", *network, outbox, serving)
    return publisher, keeper, await town.open("far", *network)


FLOWS = {
    "publish": publish,
    "topic": topic,
    "search": search,
    "spark-in": spark_in,
    "spark-out": spark_out,
}


def walked(name: str, walks: int = WALKS, warm_ups: int = WARM_UPS) -> Walked:
    """Run a flow so many times; start-up and warm-ups are not counted."""
    recording = Recording()
    found: list[Walk] = []

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            town = Town(Path(folder), recording)
            async with town.stack:
                async with asyncio.timeout(PATIENCE_S):
                    once = await FLOWS[name](town)
                for number in range(warm_ups + walks):
                    await asyncio.sleep(SETTLE_S)
                    recording.calls = []
                    async with asyncio.timeout(PATIENCE_S):
                        await once(number)
                    if number >= warm_ups:
                        found.append(walk_of(recording.calls))

    with recording.installed():
        asyncio.run(main())
    return summed_up(name, found)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.walk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "flows",
        nargs="+",
        choices=[*FLOWS, "spark", "all"],
        metavar="NAME",
        help="a flow; spark: spark-in and spark-out; all",
    )
    parser.add_argument("--walks", type=int, default=WALKS, help=f"how often, default {WALKS}")
    parser.add_argument("--compact", action="store_true", help="files without their functions")
    parser.add_argument("--totals", action="store_true", help="the totals only")
    parser.add_argument("--json", action="store_true", help="one JSON object for each flow")
    options = parser.parse_args()
    if not 1 <= options.walks <= WALKS_MAX:
        parser.error(f"--walks {options.walks}: give 1 to {WALKS_MAX}")
    groups = {"all": list(FLOWS), "spark": ["spark-in", "spark-out"]}
    for name in dict.fromkeys(one for given in options.flows for one in groups.get(given, [given])):
        result = walked(name, options.walks)
        if options.json:
            print(msgspec.json.encode(result).decode(), flush=True)
            continue
        if not options.totals:
            print(f"{name}: {' '.join((FLOWS[name].__doc__ or '').split())}\n")
            print("\n".join(shown(result, compact=options.compact)), end="\n\n")
        print(totals(result), flush=True)


if __name__ == "__main__":
    main()
