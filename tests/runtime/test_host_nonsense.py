"""What a host does with bytes that make no sense."""

from __future__ import annotations

import asyncio

import pytest

from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import Send
from shoal.kernel.records import Rejected
from shoal.runtime.host import MALFORMED_MAX
from shoal.transport.memory import MemoryTransport
from shoal.transport.port import Credentials, Link, TransportLimits
from tests.runtime.world import PAYLOAD_BYTES_MAX, Inhabitant, World, perform, reasons
from tests.support.machines import Note, NoteCodec, Other
from tests.transport.recorder import Recorder, until

NOTES = NoteCodec.number


async def stranger(world: World, target: Inhabitant, name: str = "stranger") -> Link:
    """A peer that has a key and says what it likes."""
    entropy = SeededEntropy(name)
    credentials = Credentials(PrivateKey.generate(entropy), entropy)
    transport = MemoryTransport(credentials, Recorder(), network=world.network)
    return await transport.dial(target.address, target.id)


@pytest.mark.parametrize(
    ("protocol", "payload", "reason"),
    [
        (NOTES, b"junk", "malformed"),
        (NOTES, bytes(PAYLOAD_BYTES_MAX + 1), "oversized"),
        (77, b"", "no-such-protocol"),
    ],
)
def test_nonsense_is_counted_and_past_the_limit_costs_the_link(
    protocol: int, payload: bytes, reason: str
) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        link = await stranger(world, bob)
        for number in range(MALFORMED_MAX - 1):
            link.send(protocol, payload)
            link.send(NOTES, NoteCodec().encode(Note(number)))
            alice.send(bob, 1000 + number)
        expected = 2 * (MALFORMED_MAX - 1)
        await until(lambda: len(bob.machine.notes()) == expected)
        assert reasons(bob) == [reason] * (MALFORMED_MAX - 1)
        assert len(bob.host.connections) == 2, "not yet"
        link.send(protocol, payload)
        await until(lambda: len(bob.host.connections) == 1)
        assert reasons(bob) == [reason] * MALFORMED_MAX
        # Everybody else goes on.
        alice.send(bob, 2000)
        await until(lambda: bob.machine.notes()[-1:] == [2000])

    perform(scenario)


def test_what_stands_behind_the_last_straw_is_not_read() -> None:
    async def scenario(world: World) -> None:
        bob = await world.enter("bob")
        link = await stranger(world, bob)
        for _ in range(MALFORMED_MAX):
            link.send(NOTES, b"junk")
        link.send(NOTES, NoteCodec().encode(Note(1)))  # in the same message
        await until(lambda: len(reasons(bob)) >= MALFORMED_MAX)
        await asyncio.sleep(0.02)
        assert reasons(bob) == ["malformed"] * MALFORMED_MAX
        assert not bob.machine.notes()
        assert not bob.host.connections

    perform(scenario)


def test_a_message_for_a_role_that_this_node_has_not_is_counted() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        alice.do(Send(Other(), (bob.id,)), Send(Note(1), (bob.id,)))
        await until(lambda: bob.machine.notes() == [1])
        assert reasons(bob) == ["no-such-role"]

    perform(scenario)


def test_a_broken_frame_is_counted_and_ends_the_link() -> None:
    async def scenario(world: World) -> None:
        small = TransportLimits(frame_bytes_max=1024)
        bob = await world.enter("bob", transport_limits=small)
        link = await stranger(world, bob)
        link.send(NOTES, bytes(100_000))
        await until(lambda: reasons(bob) == ["oversized"])
        await until(lambda: not bob.host.connections)

    perform(scenario)


def test_a_failed_handshake_is_counted() -> None:
    async def scenario(world: World) -> None:
        bob = await world.enter("bob")
        bob.host.handshake_failed("memory:x", "timeout")
        assert bob.recorded(Rejected) == [Rejected(bob.id, "handshake-timeout")]

    perform(scenario)
