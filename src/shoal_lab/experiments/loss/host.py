"""One host of a lossy network: a real node, or the tracker, in a process and namespace of its own.

It does as it is told over a pipe, step by step: configure its end of the link, start (a node has
joined when it answers), publish as planned from a given time on, and report.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection
from time import time_ns

import msgspec

from shoal.base.ids import Contact, StreamId, show_node_id
from shoal.base.units import US_NS, seconds
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.message_body import BINARY
from shoal.kernel.machine import Machine
from shoal.kernel.records import Record
from shoal.node.assembly import TrackerSignalling
from shoal.protocols.streams.commands import JoinStream, Publish, StreamReady
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.member.stream_node import StreamNode
from shoal.protocols.streams.member.tracker_selection import TrackerRing
from shoal.protocols.streams.signalling import Signaller, SignalRelay
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from shoal.protocols.streams.wire import StreamsCodec
from shoal.runtime import RuntimeHost
from shoal.sim.simulation import stable_random
from shoal.transport.port import Credentials, Transport
from shoal.transport.websocket import WebSocketTransport
from shoal_lab.experiments.loss.messages import WEBRTC, HostReport, UnderlayPlan
from shoal_lab.testbed.namespaces import (
    NoUnderlay,
    address,
    configure_host,
    enter_namespace,
    read_kernel,
)
from shoal_lab.testbed.process_memory import quiet_collector

PORT = 7700
WEBRTC_ADDRESS = "webrtc:"

DONE = b"done"


def host_key(plan: UnderlayPlan, host: int) -> PrivateKey:
    """The key of a host: those that a simulated run with this seed has."""
    name = "tracker" if host == plan.tracker else f"node {host}"
    return PrivateKey.generate(SeededEntropy(plan.seed).fork(name))


def stream_of(plan: UnderlayPlan) -> StreamId:
    """The one stream of a run."""
    return StreamId(f"{show_node_id(host_key(plan, 0).address)}/lab")


def live(plan: UnderlayPlan, host: int, pipe: Connection) -> None:
    """The life of a host's process."""
    try:
        enter_namespace()
        pipe.send_bytes(DONE)
        pipe.recv_bytes()  # by now there is a link
        configure_host(host)
    except NoUnderlay as error:
        pipe.send_bytes(str(error).encode())
        return
    pipe.send_bytes(DONE)
    with quiet_collector():
        asyncio.run(_Host(plan, host, pipe).run())


class _Host:
    def __init__(self, plan: UnderlayPlan, host: int, pipe: Connection) -> None:
        self._plan = plan
        self._host = host
        self._pipe = pipe
        self._stream = stream_of(plan)
        self._records: list[tuple[int, Record]] = []
        self._node: StreamNode | None = None
        self._joined = asyncio.Event()
        self._late_us: list[int] = []

    async def run(self) -> None:
        await self._told()
        started_ns = time_ns()
        runtime = await self._start()
        self._pipe.send_bytes(DONE)
        begin_ns = int(await self._told())
        await self._publish(runtime, begin_ns)
        await _sleep_until(begin_ns + self._plan.end_ns)
        report = HostReport(
            started_ns,
            self._neighbours(),
            read_kernel(),
            tuple(self._late_us),
            msgspec.Raw(msgspec.msgpack.encode(self._records)),
        )
        self._pipe.send_bytes(msgspec.msgpack.encode(report))
        await self._told()  # nothing more: the whole network ends at once

    async def _told(self) -> bytes:
        return await asyncio.to_thread(self._pipe.recv_bytes)

    async def _start(self) -> RuntimeHost:
        plan, host = self._plan, self._host
        key = host_key(plan, host)
        entropy = SeededEntropy(plan.seed).fork(f"links of {host}")
        rng = stable_random(plan.seed, "host", host)
        machines = self._make_machines(key)
        runtime = RuntimeHost(key.address, machines, [StreamsCodec()], rng=rng)
        runtime.observers.append(lambda now_ns, record: self._records.append((now_ns, record)))
        runtime.listeners.append(self._notified)
        role = "tracker" if self._node is None else "node"
        credentials = Credentials(key, entropy, (role,))
        transports: list[Transport] = [WebSocketTransport(credentials, runtime)]
        door = f"ws://{address(host)}:{PORT}"
        for machine in machines:
            if isinstance(machine, Signaller):
                transports.append(_webrtc(credentials, runtime, machine))
                door = WEBRTC_ADDRESS  # and no other: neighbours have no choice
        await runtime.open(transports, [door])
        if self._node is not None:
            # As the overlay brings them: the source takes the age of a message when it comes, and
            # does not wait for those before it.
            feeds = plan.redundant_feeds
            join = JoinStream(self._stream, ordered=False, redundant_feeds=feeds)
            await runtime.issue(self._node, join)
            await self._joined.wait()
        return runtime

    def _make_machines(self, key: PrivateKey) -> list[Machine]:
        plan, host = self._plan, self._host
        calls = plan.transport == WEBRTC
        if host == plan.tracker:
            dice = stable_random(plan.seed, "policy", self._stream, 1)
            config = TrackerConfig(degree=plan.degree)
            tracker = Tracker(lambda stream: RandomPolicy(plan.degree, dice), config)
            return [tracker, SignalRelay(tracker.streams)] if calls else [tracker]
        contact = Contact(
            host_key(plan, plan.tracker).address, (f"ws://{address(plan.tracker)}:{PORT}",)
        )
        rng = stable_random(plan.seed, "node", host, 1)
        self._node = StreamNode(key.address, TrackerRing([contact]), key.sign, "1", rng)
        return [self._node, Signaller(self._node)] if calls else [self._node]

    def _notified(self, event: object) -> None:
        if isinstance(event, StreamReady):
            self._joined.set()

    async def _publish(self, runtime: RuntimeHost, begin_ns: int) -> None:
        if self._node is None:
            return
        rng = stable_random(self._plan.seed, "content", self._host)
        for offset_ns in self._plan.offsets_ns[self._host]:
            await _sleep_until(begin_ns + offset_ns)
            self._late_us.append((time_ns() - begin_ns - offset_ns) // US_NS)
            content = rng.randbytes(self._plan.size_bytes)
            await runtime.issue(self._node, Publish(self._stream, content, BINARY))

    def _neighbours(self) -> tuple[bytes, ...]:
        state = None if self._node is None else self._node.streams.get(self._stream)
        return () if state is None else state.channel.active


def load_transport(plan: UnderlayPlan) -> None:
    """Load what hosts need, once for all that are forked afterwards."""
    if plan.transport == WEBRTC:
        import shoal.transport.webrtc  # noqa: F401


def _webrtc(credentials: Credentials, runtime: RuntimeHost, machine: Signaller) -> Transport:
    """Without servers: the candidates of a host are its addresses, and all hosts reach them."""
    from shoal.transport.webrtc import WebRTCTransport

    return WebRTCTransport(credentials, runtime, signalling=TrackerSignalling(runtime, machine))


async def _sleep_until(when_ns: int) -> None:
    await asyncio.sleep(max(0.0, seconds(when_ns - time_ns())))
