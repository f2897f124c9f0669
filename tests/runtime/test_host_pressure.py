"""What a host does with queues that fill."""

from __future__ import annotations

import asyncio
import time

from shoal.base.units import KIB, MS_NS, S_NS
from shoal.kernel.effects import PauseReading, ResumeReading
from shoal.kernel.inputs import LinkClosed, SendQueueHigh, SendQueueLow
from shoal.transport.port import TransportLimits
from tests.runtime.world import PURPOSE, World, perform
from tests.transport.recorder import until

SMALL = TransportLimits(
    queue_low_bytes=4 * KIB, queue_high_bytes=16 * KIB, queue_max_bytes=256 * KIB
)


def test_full_queues_reach_the_machines_and_publishers_wait() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL)
        carol = await world.enter("carol", transport_limits=SMALL)
        alice.claim(carol)
        await until(lambda: carol.id in alice.host.connections)
        await alice.host.wait_for_room(S_NS)  # there is room
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(40), padding=1024)
        await until(lambda: alice.machine.heard(SendQueueHigh))
        assert alice.machine.heard(SendQueueHigh) == [SendQueueHigh(bob.id)]
        waiting = asyncio.ensure_future(alice.host.wait_for_room(30 * S_NS))
        alice.send(carol, 1)
        await until(lambda: carol.machine.notes() == [1])
        assert not waiting.done()
        bob.do(ResumeReading(alice.id))
        await until(lambda: alice.machine.heard(SendQueueLow))
        assert alice.machine.heard(SendQueueLow) == [SendQueueLow(bob.id)]
        await waiting
        await until(lambda: bob.machine.notes() == list(range(40)))

    perform(scenario)


def test_patience_with_a_stuck_peer_ends_and_costs_once() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL)
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(40), padding=1024)
        await until(lambda: alice.machine.heard(SendQueueHigh))
        begin_s = time.monotonic()
        await asyncio.gather(*(alice.host.wait_for_room(100 * MS_NS) for _ in range(3)))
        assert time.monotonic() - begin_s >= 0.09
        async with asyncio.timeout(10):
            await alice.host.wait_for_room(3600 * S_NS)
        # At the bound the link is given up, and whoever wants it hears so.
        alice.send(bob, *range(300), padding=1024)
        await until(lambda: alice.machine.heard(LinkClosed))
        assert alice.machine.heard(LinkClosed) == [LinkClosed(bob.id, PURPOSE, "too-slow")]

    perform(scenario)


def test_a_peer_that_goes_away_takes_its_congestion_along() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL)
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(40), padding=1024)
        await until(lambda: alice.machine.heard(SendQueueHigh))
        waiting = asyncio.ensure_future(alice.host.wait_for_room(3600 * S_NS))
        await asyncio.sleep(0)
        alice.host.connections[bob.id]._carrier.abort("lost")  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            await waiting

    perform(scenario)
