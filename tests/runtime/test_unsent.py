"""What never left goes back to whoever wants it back, when a link is lost."""

from __future__ import annotations

import asyncio

from shoal.base.units import KIB
from shoal.kernel.effects import PauseReading, Send
from shoal.kernel.inputs import LinkClosed, LinkFailed
from shoal.transport.port import TransportLimits
from tests.runtime.world import PURPOSE, Inhabitant, World, perform
from tests.support.machines import Note, Other
from tests.transport.recorder import until

SMALL = TransportLimits(
    queue_low_bytes=4 * KIB, queue_high_bytes=16 * KIB, queue_max_bytes=256 * KIB
)


async def send_until_lost(alice: Inhabitant, bob: Inhabitant) -> int:
    """Notes to a peer that does not read, a few a turn, until its link is given up."""
    bob.do(PauseReading(alice.id))
    sent = 0
    while bob.id in alice.host.connections:
        alice.send(bob, sent, padding=1_000)
        alice.do(Send(Other(), (bob.id,)))
        sent += 1
        await asyncio.sleep(0)
    return sent


def test_a_machine_gets_back_what_it_wants_back_oldest_first() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL, wanted_back=(Note,))
        sent = await send_until_lost(alice, bob)
        (failed,) = alice.machine.heard(LinkFailed, LinkClosed)
        assert isinstance(failed, LinkFailed)
        assert (failed.peer, failed.purpose, failed.reason) == (bob.id, PURPOSE, "too-slow")
        numbers = [message.number for message in failed.unsent]
        assert len(numbers) > 100
        assert numbers == list(range(sent - len(numbers), sent)), "and nothing but notes"
        bob.host.pause_reading(alice.id, paused=False)
        await until(lambda: bob.machine.heard(LinkClosed))
        assert set(bob.machine.notes()).isdisjoint(numbers), "what never left never came"

    perform(scenario)


def test_who_wants_nothing_back_is_told_that_the_link_is_closed() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL)
        await send_until_lost(alice, bob)
        told = alice.machine.heard(LinkFailed, LinkClosed)
        assert told == [LinkClosed(bob.id, PURPOSE, "too-slow")]

    perform(scenario)


def test_a_link_that_had_sent_everything_gives_nothing_back() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(wanted_back=(Note,))
        alice.send(bob, *range(10))
        await until(lambda: len(bob.machine.notes()) == 10)
        await bob.host.stop()
        await until(lambda: alice.machine.heard(LinkFailed, LinkClosed))
        told = alice.machine.heard(LinkFailed, LinkClosed)
        assert told == [LinkClosed(bob.id, PURPOSE, "closed")]

    perform(scenario)
