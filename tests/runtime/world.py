"""A few hosts with one scripted machine each, over the memory transport."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, TypeVar

from shoal.base.errors import MalformedMessage, OversizedMessage
from shoal.base.ids import Contact, NodeId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.session_record import NO_SESSION, begin_session
from shoal.kernel.disk import Disk
from shoal.kernel.effects import Effect, OpenLink, Send
from shoal.kernel.host import HostLimits
from shoal.kernel.machine import Machine
from shoal.kernel.records import Record, Rejected
from shoal.runtime import RuntimeHost
from shoal.transport.endpoint import Endpoint
from shoal.transport.memory import MemoryNetwork, MemoryTransport
from shoal.transport.port import Credentials, TransportLimits
from tests.support.machines import Note, NoteCodec, React, Scripted
from tests.transport.recorder import until
from tests.transport.stage import sockets

R = TypeVar("R", bound=Record)

PURPOSE = "test"
PAYLOAD_BYTES_MAX = 20_000


class LimitedCodec(NoteCodec):
    """Tells too long from too strange."""

    def decode(self, frame: bytes) -> Any:
        if len(frame) > PAYLOAD_BYTES_MAX:
            raise OversizedMessage(f"{len(frame)} bytes")
        if frame.startswith(b"junk"):
            raise MalformedMessage("junk")
        return super().decode(frame)


class Inhabitant:
    """A host, its machine, and everything that it recorded."""

    def __init__(self, credentials: Credentials, host: RuntimeHost, transport: Endpoint) -> None:
        self.credentials = credentials
        self.host = host
        self.transport = transport
        self.address = ""
        self.records: list[Record] = []
        host.observers.append(lambda now_ns, record: self.records.append(record))

    @property
    def id(self) -> NodeId:
        return self.host.node

    @property
    def contact(self) -> Contact:
        return Contact(self.id, (self.address,))

    @property
    def machine(self) -> Scripted:
        machine = self.host.machines[0]
        assert isinstance(machine, Scripted)
        return machine

    def do(self, *effects: Effect) -> None:
        """The machine carries out effects."""
        self.host.command(self.machine, effects)

    def claim(self, other: Inhabitant, purpose: str = PURPOSE) -> None:
        self.do(OpenLink(other.contact, purpose))

    def send(self, other: Inhabitant, *numbers: int, padding: int = 0) -> None:
        self.do(*[Send(Note(number, bytes(padding)), (other.id,)) for number in numbers])

    def recorded(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]


class World:
    """One memory network."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.inhabitants: list[Inhabitant] = []

    async def enter(
        self,
        name: str,
        *,
        react: React | None = None,
        machines: Sequence[Machine] = (),
        limits: HostLimits | None = None,
        transport_limits: TransportLimits | None = None,
        disk: Disk | None = None,
        wanted_back: Sequence[type] = (),
        door: str = "0",
        session_ms: int = 0,
    ) -> Inhabitant:
        """A host with a key made of its name, which listens; its session began at that time."""
        entropy = SeededEntropy(name)
        key = PrivateKey.generate(entropy)
        session = begin_session(key, entropy, session_ms) if session_ms else NO_SESSION
        credentials = Credentials(key, entropy, ("node",), session=session)
        node = credentials.key.address
        machines = machines or [Scripted(react=react)]
        host = RuntimeHost(
            node,
            machines,
            [LimitedCodec()],
            rng=Random(name),
            limits=limits,
            disk=disk,
            wanted_back=dict.fromkeys(wanted_back, machines[0]),
            session=session,
        )
        transport = MemoryTransport(credentials, host, transport_limits, network=self.network)
        inhabitant = Inhabitant(credentials, host, transport)
        self.inhabitants.append(inhabitant)
        (inhabitant.address,) = await host.open([transport], [f"memory:{door}"])
        return inhabitant

    async def two(self, **options: Any) -> tuple[Inhabitant, Inhabitant]:
        """Alice and Bob; the smaller id comes first."""
        both = [await self.enter(name, **options) for name in ("alice", "bob")]
        smaller, larger = sorted(both, key=lambda inhabitant: inhabitant.id)
        return smaller, larger

    async def linked(self, **options: Any) -> tuple[Inhabitant, Inhabitant]:
        """Alice and Bob, who share a link that both claim."""
        alice, bob = await self.two(**options)
        alice.claim(bob)
        await until(lambda: bob.id in alice.host.connections)
        await until(lambda: alice.id in bob.host.connections)
        bob.claim(alice)
        for one in (alice, bob):
            one.machine.forget()
        return alice, bob


def perform(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run a scenario, stop everybody, and look for what is left."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        before = left_over()
        world = World()
        try:
            await scenario(world)
        finally:
            for inhabitant in world.inhabitants:
                await inhabitant.host.stop()
        assert left_over() == before
        gc.collect()
        assert not complaints, complaints

    asyncio.run(main())


def left_over() -> tuple[int, list[str], int]:
    """Tasks, threads and sockets of this process."""
    threads = sorted(thread.name for thread in threading.enumerate())
    return len(asyncio.all_tasks()), threads, sockets()


def reasons(inhabitant: Inhabitant) -> list[str]:
    """Why things were rejected."""
    return [record.reason for record in inhabitant.recorded(Rejected)]
