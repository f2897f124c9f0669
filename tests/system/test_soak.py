"""Peers that come, go and crash, 200 times, under load: who stays loses nothing and leaks nothing.

Five nodes and their tracker stay, in this process. Others join them: nodes of this process, which
leave in good order, and nodes of other processes, which are killed (SIGKILL), some before they have
their place. Connections of those who stay are reset meanwhile, and load goes on all the time.

Twice, after a half of the events each, all others are gone and it is quiet. Then the five get
whatever any of them publishes, once, and are looked at:

| what | must be |
| --- | --- |
| tasks, descriptors, links, hosts, nodes | exactly as many as before the first event |
| threads | one for signatures per host at most, beside those from before |
| objects that Python tracks | in the second half at most OBJECTS_GROWTH_MAX more |
| resident memory | in the second half at most RESIDENT_GROWTH_MAX more |

The first half fills caches, which are bounded; a leak grows in the second half as well.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import uvloop

from shoal.base.units import MIB, S_NS
from shoal.kernel.host import HostLimits
from shoal.node import Node, Stream, Subscription
from shoal.runtime import RuntimeHost
from shoal.transport.link import AuthenticatedLink
from tests.node.network import network_of, open_tracker
from tests.system.soak_plan import Event, plan
from tests.transport.recorder import until

ROOT = Path(__file__).parents[2]

STAYING = 5  # with degree 4 each has a link to each: what is left afterwards is known exactly
LINKS = STAYING * (STAYING - 1) + 2 * STAYING  # both ends of each, and to the tracker
EVENTS = 200
NODES_PER_PROCESS = 3
LOAD_INTERVAL_S = 0.01
QUIET_MESSAGES = 20
PATIENCE_S = 60.0

RESIDENT_GROWTH_MAX = 16 * MIB  # measured: 6; messages that a node remembers, up to its bounds
OBJECTS_GROWTH_MAX = 6_000  # measured: 2,000; likewise

RESET = struct.pack("ii", 1, 0)  # close at once, and throw away what is under way


class Held(msgspec.Struct, frozen=True):
    """What this process holds, of which nothing may become more."""

    tasks: int
    descriptors: int
    links: int
    hosts: int
    nodes: int


class Soak:
    """The network, its visitors, and what those who stay have got."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.file = folder / "shoal.toml"
        self.nodes: list[Node] = []
        self.streams: list[Stream] = []
        self.got: list[Counter[str]] = [Counter() for _ in range(STAYING)]
        self.guests: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.published = 0

    async def open(self) -> None:
        """A tracker and those who stay."""
        self.tracker = await self.stack.enter_async_context(open_tracker())
        (entry,) = network_of(self.tracker).trackers
        addresses = json.dumps(entry.addresses)
        self.file.write_text(f'[[trackers]]\nid = "{entry.id}"\naddresses = {addresses}\n')
        for number in range(STAYING):
            node = await self.stack.enter_async_context(Node.open(self.file))
            stream = await node.open_stream(f"{entry.id}/soak")
            messages = await self.stack.enter_async_context(stream.subscribe())
            reading = asyncio.create_task(self._read(messages, self.got[number]))
            self.stack.callback(reading.cancel)
            self.nodes.append(node)
            self.streams.append(stream)
        for node in (self.tracker, *self.nodes):
            node.host.limits = HostLimits(parked_ns=2 * S_NS)  # it is quiet the sooner

    async def _read(self, messages: Subscription, got: Counter[str]) -> None:
        async for message in messages:
            if isinstance(message.content, str):
                got[message.content] += 1

    async def load(self) -> None:
        """Each in turn, all the time."""
        while True:
            await self.streams[self.published % STAYING].publish(f"load {self.published}")
            self.published += 1
            await asyncio.sleep(LOAD_INTERVAL_S)

    # Churn

    async def churn(self, events: list[Event]) -> None:
        """Peers come, go and crash, as planned."""
        for event in events:
            match event.kind:
                case "join":
                    leave = asyncio.Event()
                    self.guests[event.who] = asyncio.create_task(self._guest(leave)), leave
                case "leave":
                    guest, leave = self.guests.pop(event.who)
                    leave.set()
                    await guest
                case "start":
                    self._start_process(event.who)
                case "kill" | "kill early":
                    await self._kill(event.who, ready=event.kind == "kill")
                case "reset":
                    self._reset(event.who)
            await asyncio.sleep(event.pause_s)
        assert not self.guests
        assert not self.processes

    async def _guest(self, leave: asyncio.Event) -> None:
        async with Node.open(self.file) as node:
            stream = await node.open_stream(self.streams[0].id)
            async with stream.subscribe(queue_max=50):
                await stream.publish(["guest"])
                await leave.wait()

    def _start_process(self, who: int) -> None:
        arguments = [str(self.file), self.streams[0].id, str(NODES_PER_PROCESS)]
        command = [sys.executable, "-m", "tests.system.soak_peer", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self.processes[who] = process
        self.stack.callback(process.kill)  # harmless if it is dead by then

    async def _kill(self, who: int, *, ready: bool) -> None:
        """When its nodes have their place; or whatever it is doing."""
        process = self.processes.pop(who)
        assert process.stdout is not None
        with process.stdout:
            if ready:
                os.set_blocking(process.stdout.fileno(), False)
                await until(lambda: process.stdout and process.stdout.read(1), PATIENCE_S)
            process.kill()
            process.wait()

    def _reset(self, who: int) -> None:
        """Some connection of some node that stays, as a crash on the way would do it."""
        carriers = list(self._transport_of(self.nodes[who % STAYING])._links)
        if carriers:
            connection = carriers[who % len(carriers)]._socket
            sock = connection.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.abort()

    # Quiet

    async def settle(self) -> None:
        """Only those who stay are left, each linked with each, and nobody else."""
        assert self.tracker.tracker is not None
        ids = {node.id for node in self.nodes}
        tracked = self.tracker.tracker.streams[self.streams[0].id]
        await until(lambda: set(tracked.members) == ids, PATIENCE_S)
        for node in self.nodes:
            others = ids - {node.id} | {self.tracker.id}
            await until(lambda n=node, o=others: set(n.host.connections) == o, PATIENCE_S)  # type: ignore[misc]
            await until(lambda n=node: n.degree(self.streams[0].id) == STAYING - 1, PATIENCE_S)  # type: ignore[misc]

    async def check_quiet_deliveries(self, name: str) -> None:
        """Whatever one of them publishes now, all get, once."""
        wanted = Counter(
            f"{name} {node} {number}" for node in range(STAYING) for number in range(QUIET_MESSAGES)
        )
        for node, stream in enumerate(self.streams):
            for number in range(QUIET_MESSAGES):
                await stream.publish(f"{name} {node} {number}")
        for got in self.got:
            await until(lambda g=got: all(g[text] for text in wanted), PATIENCE_S)  # type: ignore[misc]
            assert all(got[text] == 1 for text in wanted)

    async def held(self) -> tuple[Held, int]:
        """What this process holds, once what is closing is closed; and how many objects."""
        for got in self.got:
            got.clear()  # ours, and not to be counted
        await until(lambda: self._open_links() == LINKS, PATIENCE_S)
        await asyncio.sleep(0.1)  # the sockets follow
        gc.collect()
        objects = gc.get_objects()
        kinds = Counter(map(type, objects))
        return Held(
            tasks=len(asyncio.all_tasks()),
            descriptors=len(os.listdir("/proc/self/fd")),
            links=kinds[AuthenticatedLink],
            hosts=kinds[RuntimeHost],
            nodes=kinds[Node],
        ), len(objects)

    def _open_links(self) -> int:
        """Connections of those who stay, whatever their hosts think of them."""
        return sum(len(self._transport_of(n)._links) for n in (self.tracker, *self.nodes))

    def _transport_of(self, node: Node) -> Any:
        return node.host._transports[0]


def resident_bytes() -> int:
    """Memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def threads() -> Counter[str]:
    """Threads by name; those of a pool differ by a number."""
    return Counter(thread.name.rpartition("_")[0] for thread in threading.enumerate())


async def soak_through(seed: int, folder: Path) -> None:
    """All of it, in one event loop."""
    rng, before = Random(seed), threads()
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    async with AsyncExitStack() as stack:
        soak = Soak(folder, stack)
        await soak.open()
        load = asyncio.create_task(soak.load())
        stack.callback(load.cancel)
        await soak.settle()
        at_first, _ = await soak.held()
        sizes: list[tuple[int, int]] = []
        happened: Counter[str] = Counter()
        for half in ("first", "second"):
            events = plan(rng, EVENTS // 2)
            happened.update(event.kind for event in events)
            await soak.churn(events)
            await soak.settle()
            await soak.check_quiet_deliveries(half)
            objects = await as_before(soak, at_first)
            sizes.append((objects, resident_bytes()))
            new = threads() - before
            assert set(new) <= {"shoal-verify"}, new
            assert new.total() <= STAYING + 1, new
        assert not load.done(), load
        growth = [then - now for now, then in zip(*sizes, strict=True)]
        print(dict(happened), f"{soak.published} published,", at_first)
        print(f"second half: {growth[0]:+} objects, {growth[1] / MIB:+.1f} MiB")
        assert growth[0] < OBJECTS_GROWTH_MAX
        assert growth[1] < RESIDENT_GROWTH_MAX
    await until(lambda: len(asyncio.all_tasks()) == 1, PATIENCE_S)
    gc.collect()
    assert threads() == before
    assert not complaints, complaints


async def as_before(soak: Soak, at_first: Held) -> int:
    """Wait until what is held is what was: a dial of somebody who is gone ends with its pause."""
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S / 2
    while True:
        held, objects = await soak.held()
        if held == at_first or asyncio.get_running_loop().time() > deadline_s:
            assert held == at_first
            return objects
        await asyncio.sleep(0.2)


def test_200_visits_leave_no_trace(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    uvloop.run(asyncio.sleep(0))  # the first loop of a process opens a pipe that libuv keeps
    descriptors = len(os.listdir("/proc/self/fd"))
    uvloop.run(soak_through(seed, tmp_path))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == descriptors
