"""A stage for every kind of transport: who is on it, and what must be gone afterwards."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import ssl
import stat
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.base.ids import NodeId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.transport.endpoint import Endpoint
from shoal.transport.memory import MemoryNetwork, MemoryTransport
from shoal.transport.port import Credentials, Link, TransportLimits
from shoal.transport.websocket import WebSocketTransport
from tests.transport.exchange import Exchange
from tests.transport.recorder import Recorder, until
from tests.transport.wires import MemoryWire, WebSocketWire, Wire

KINDS = ("memory", "ws", "wss", "ws-uvloop", "wss-uvloop", "webrtc-uvloop")


def credentials(name: str, **changes: Any) -> Credentials:
    """An identity of a test, the same in every run; its nonces differ within one."""
    entropy = SeededEntropy(name)
    return msgspec.structs.replace(
        Credentials(PrivateKey.generate(entropy), entropy, roles=("node",)), **changes
    )


class Actor(msgspec.Struct, eq=False):
    """A node on the stage."""

    credentials: Credentials
    transport: Endpoint
    told: Recorder
    address: str = ""

    @property
    def id(self) -> NodeId:
        return self.credentials.key.address

    async def dial(self, other: Actor) -> tuple[Link, Link]:
        """Both ends of a new link."""
        known = len(other.told.links)
        link = await self.transport.dial(other.address, other.id)
        await until(lambda: len(other.told.links) > known)
        return link, other.told.links[-1]


class Stage:
    """Makes actors of one kind of transport."""

    def __init__(self, kind: str, exits: AsyncExitStack) -> None:
        self.scheme = _scheme(kind)
        self.network = MemoryNetwork()
        self.exchange = Exchange()
        self._exits = exits

    @property
    def is_memory(self) -> bool:
        return self.scheme == "memory"

    @property
    def any_address(self) -> str:
        """Whichever is free."""
        addresses = {"memory": "memory:0", "webrtc": "webrtc:"}
        return addresses.get(self.scheme, f"{self.scheme}://127.0.0.1:0")

    @property
    def authenticates_messages(self) -> bool:
        """Whether the link does; else TLS or DTLS does."""
        return _authenticates_messages(self.scheme)

    async def actor(
        self,
        name: str,
        *,
        listens: bool = True,
        limits: TransportLimits | None = None,
        told: Recorder | None = None,
        **who: Any,
    ) -> Actor:
        """A node, which listens unless told otherwise."""
        told, identity = told or Recorder(), credentials(name, **who)
        transport: Endpoint
        if self.is_memory:
            transport = MemoryTransport(identity, told, limits, network=self.network)
        elif self.scheme == "webrtc":
            from tests.transport.signals import webrtc_transport  # it loads a large engine

            transport = webrtc_transport(identity, told, limits, self.exchange)
        else:
            tls = serving_context() if self.scheme == "wss" else None
            transport = WebSocketTransport(identity, told, limits, tls=tls)
        await self._exits.enter_async_context(transport)
        actor = Actor(identity, transport, told)
        if listens:
            actor.address = (await transport.listen(self.any_address)).address
        if self.scheme == "webrtc":
            actor.address += actor.id.hex()  # where strangers find it, of whom nobody knows the id
        return actor

    async def stranger(self, address: str, name: str = "stranger") -> Wire:
        """A bare connection to somebody; where calls have a caller, it claims to be this one."""
        if self.scheme == "webrtc":
            from tests.transport.signals import WebRTCWire

            target, caller = NodeId(bytes.fromhex(address[7:])), credentials(name).key.address
            call = await WebRTCWire.open(self.exchange, target, caller)
            self._exits.callback(call.hang_up)
            return call
        wire: Wire = (
            MemoryWire(self.network, address)
            if self.is_memory
            else await WebSocketWire.open(address)
        )
        self._exits.callback(wire.hang_up)
        return wire


Scenario = Callable[[Stage], Awaitable[None]]


def perform(kind: str, scenario: Scenario) -> None:
    """Run a scenario, and look for what it leaves behind."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        open_sockets = sockets()
        async with AsyncExitStack() as exits:
            await scenario(Stage(kind, exits))
        await until(lambda: len(asyncio.all_tasks()) == 1, 5)
        await until(lambda: sockets() <= open_sockets, 5)
        gc.collect()
        assert not complaints, complaints

    runner = uvloop.run if kind.endswith("uvloop") else asyncio.run
    runner(main())


def on_every_transport(scenario: Scenario) -> Callable[[str], None]:
    """Turn a scenario into a test for each kind of transport."""
    return _test_of(scenario, KINDS)


def where_addresses_lead(scenario: Scenario) -> Callable[[str], None]:
    """The same for those that dial an address. A signal goes to an id; how calls go wrong
    instead is in test_webrtc.py."""
    return _test_of(scenario, tuple(kind for kind in KINDS if not kind.startswith("webrtc")))


def where_links_authenticate_messages(scenario: Scenario) -> Callable[[str], None]:
    """The same for those whose links do it themselves."""
    kinds = tuple(kind for kind in KINDS if _authenticates_messages(_scheme(kind)))
    return _test_of(scenario, kinds)


def _authenticates_messages(scheme: str) -> bool:
    return scheme not in ("wss", "webrtc")


def _scheme(kind: str) -> str:
    return kind.partition("-")[0]


def on(*kinds: str) -> Callable[[Scenario], Callable[[str], None]]:
    """Turn a scenario into a test for some kinds of transport."""
    return lambda scenario: _test_of(scenario, kinds)


def _test_of(scenario: Scenario, kinds: tuple[str, ...]) -> Callable[[str], None]:
    @pytest.mark.parametrize("kind", kinds)
    def test(kind: str) -> None:
        perform(kind, scenario)

    test.__name__ = test.__qualname__ = scenario.__name__
    return test


def sockets() -> int:
    """Open sockets of this process. (Other files are not counted: libuv keeps a few in reserve.)"""
    found = 0
    for descriptor in os.listdir("/dev/fd"):
        with suppress(OSError):
            found += stat.S_ISSOCK(os.fstat(int(descriptor)).st_mode)
    return found


@functools.cache
def serving_context(name: str = "shoal") -> ssl.SSLContext:
    """A TLS context with a certificate that it has signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "certificate.pem")
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
    return context


async def gathered(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of several at once; the first error ends all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in coroutines]
    return [task.result() for task in tasks]
