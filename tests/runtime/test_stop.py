"""Stopping: flushed, at any moment, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

import pytest
import uvloop

from shoal.base.ids import Contact
from shoal.base.units import MS_NS, S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import Effect, OpenLink, PauseReading, Send, SetTimer, Store, Verify
from shoal.kernel.inputs import Input, LinkClosed, LinkFailed, LinkOpened, TimerFired, Verified
from shoal.runtime import RuntimeHost
from shoal.runtime.workers import AT_ONCE_MAX
from shoal.transport.port import Credentials, TransportLimits
from shoal.transport.websocket import WebSocketTransport
from tests.runtime.test_disk import SlowDisk
from tests.runtime.world import PURPOSE, World, left_over, perform
from tests.support.machines import Note, NoteCodec, Scripted, peer_id
from tests.transport.recorder import until

KEY = PrivateKey.generate(SeededEntropy("stop"))
SIGNATURE = KEY.sign(b"body")


def restless(event: Input) -> Sequence[Effect]:
    """Does something about everything."""
    match event:
        case TimerFired(key):
            return [SetTimer(key, 1 * MS_NS)]
        case LinkClosed(peer) | LinkFailed(peer):
            return [OpenLink(Contact(peer, ("memory:gone",)), PURPOSE), SetTimer("again", 0)]
        case Verified(token):
            return [Verify(KEY.address, SIGNATURE + b"body", token)]
        case _:
            return []


def test_stopping_in_the_middle_of_everything_leaves_nothing() -> None:
    async def scenario(world: World) -> None:
        before = left_over()
        alice = await world.enter("alice", react=restless)
        bob = await world.enter("bob", react=restless)
        alice.claim(bob)
        bob.claim(alice)
        alice.do(
            SetTimer("ticking", 1 * MS_NS),
            SetTimer("far", 3600 * S_NS),
            OpenLink(Contact(peer_id(1), ("memory:nowhere",)), PURPOSE),
            *[Verify(KEY.address, SIGNATURE + b"body", n) for n in range(AT_ONCE_MAX * 3)],
        )
        await until(lambda: alice.machine.heard(Verified))
        await until(lambda: alice.machine.heard(LinkFailed))
        await bob.host.stop()
        await until(lambda: alice.machine.heard(LinkClosed))
        alice.do(OpenLink(Contact(peer_id(2), ("memory:nowhere",)), PURPOSE))
        await alice.host.stop()
        assert left_over() == before
        heard = len(alice.machine.inputs)
        await asyncio.sleep(0.02)
        assert len(alice.machine.inputs) == heard, "not a word after the end"

    perform(scenario)


def test_stopping_flushes() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        alice.send(bob, *range(2000), padding=100)
        await alice.host.stop()
        await until(lambda: bob.machine.notes() == list(range(2000)))
        await until(lambda: bob.machine.heard(LinkClosed))

    perform(scenario)


def test_stopping_again_and_asking_a_stopped_host_do_no_harm() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        await alice.host.stop()
        before = left_over()
        alice.do(
            SetTimer("late", 0),
            OpenLink(Contact(peer_id(1), ("memory:nowhere",)), PURPOSE),
            Verify(KEY.address, SIGNATURE + b"body", 1),
            Send(Note(1), (bob.id,)),
        )
        await asyncio.sleep(0.02)
        await alice.host.stop()
        assert left_over() == before
        assert not alice.machine.heard(TimerFired, LinkFailed, Verified)

    perform(scenario)


def test_a_peer_that_does_not_read_holds_nobody_up_for_long() -> None:
    async def scenario(world: World) -> None:
        limits = TransportLimits(close_timeout_ns=200 * MS_NS)
        alice, bob = await world.linked(transport_limits=limits)
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(300), padding=10_000)
        await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            await alice.host.stop()

    perform(scenario)


def test_a_stop_that_is_cancelled_still_ends_the_disk_and_keeps_what_it_was_given() -> None:
    disk = SlowDisk()

    async def scenario(world: World) -> None:
        alice = await world.enter("alice", disk=disk)
        bob = await world.enter("bob")
        alice.claim(bob)
        await until(lambda: bob.id in alice.host.connections)
        alice.do(*[Store(b"%d" % number, b"v", number) for number in range(100)])
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(300), padding=10_000)
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(alice.host.stop())
        for _ in range(3):  # while it waits for Bob, for the disk, and once more
            await asyncio.sleep(0.02)
            stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        disk.gate.release(1_000)
        await until(lambda: disk.closed)
        assert len(disk.values) == 100
        await alice.host.stop()
        await until(lambda: "shoal-disk" not in {thread.name for thread in threading.enumerate()})

    perform(scenario)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_hosts_over_websockets_leave_no_socket(runner: Any) -> None:
    async def open_host(name: str) -> tuple[RuntimeHost, Scripted, Contact]:
        entropy, machine = SeededEntropy(name), Scripted()
        key = PrivateKey.generate(entropy)
        host = RuntimeHost(key.address, [machine], [NoteCodec()], rng=Random(name))
        transport = WebSocketTransport(Credentials(key, entropy), host)
        addresses = await host.open([transport], ["ws://127.0.0.1:0"])
        return host, machine, Contact(key.address, addresses)

    async def main() -> None:
        before = left_over()
        hosts = [await open_host(f"node {number}") for number in range(6)]
        for host, machine, _ in hosts:
            claims = [OpenLink(c, PURPOSE) for _, _, c in hosts if c.node != host.node]
            host.command(machine, claims)
        for host, _, _ in hosts:
            await until(lambda host=host: len(host.connections) == 5)  # type: ignore[misc]
        for host, machine, _ in hosts:
            host.command(machine, [Send(Note(1), tuple(host.connections))])
        for _, machine, _ in hosts:
            await until(lambda machine=machine: machine.notes() == [1] * 5)  # type: ignore[misc]
            assert len(machine.heard(LinkOpened)) == 5
        dead = Contact(peer_id(1), ("ws://127.0.0.1:9",))
        hosts[0][0].command(hosts[0][1], [OpenLink(dead, PURPOSE)])
        await asyncio.gather(*(host.stop() for host, _, _ in hosts))
        await until(lambda: left_over() == before, 5)
        gc.collect()

    main_coroutine: Coroutine[Any, Any, None] = main()
    runner(main_coroutine)
