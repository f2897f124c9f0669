"""Links over the memory transport: claims, dials, two at once, and a peer that was reborn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS
from shoal.kernel.effects import CloseLink, Effect, OpenLink, Send
from shoal.kernel.host import HostLimits
from shoal.kernel.inputs import Input, LinkClosed, LinkFailed, LinkOpened
from shoal.kernel.records import LinkDown, LinkUp, Undeliverable
from shoal.runtime import host as module
from shoal.transport.port import DialFailed
from tests.runtime.world import PURPOSE, Inhabitant, World, perform
from tests.support.machines import Note, peer_id
from tests.transport.recorder import Recorder, until

SOON = HostLimits(parked_ns=50 * MS_NS)


def connected(a: Inhabitant, b: Inhabitant) -> bool:
    return b.id in a.host.connections and a.id in b.host.connections


def open_links(inhabitant: Inhabitant) -> int:
    """Connections of a transport, whatever the host thinks of them."""
    return len(inhabitant.transport._links)


def test_every_claimant_shares_one_connection() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        alice.do(OpenLink(bob.contact, "one"), OpenLink(bob.contact, "two"))
        await until(lambda: len(alice.machine.heard(LinkOpened)) == 2)
        alice.claim(bob, "three")
        bob.claim(alice, "four")
        assert alice.machine.heard(LinkOpened) == [
            LinkOpened(bob.id, "one"),
            LinkOpened(bob.id, "two"),
            LinkOpened(bob.id, "three"),
        ]
        await until(lambda: bob.machine.heard(LinkOpened))
        assert bob.machine.heard(LinkOpened) == [LinkOpened(alice.id, "four")]
        assert open_links(alice) == open_links(bob) == 1
        alice.send(bob, 1, 2)
        bob.send(alice, 3)
        await until(lambda: bob.machine.notes() == [1, 2] and alice.machine.notes() == [3])
        assert alice.recorded(LinkUp) == [LinkUp(bob.id)]

    perform(scenario)


def test_a_link_goes_flushed_when_nobody_claims_it() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(limits=SOON)
        bob.do(CloseLink(alice.id, PURPOSE))
        alice.do(
            *[Send(Note(number), (bob.id,)) for number in range(100)],
            CloseLink(bob.id, PURPOSE),
        )
        await until(lambda: not alice.host.connections and not bob.host.connections)
        assert bob.machine.notes() == list(range(100))
        # Whoever had given its claim back hears nothing of it.
        assert not alice.machine.heard(LinkClosed)
        assert not bob.machine.heard(LinkClosed)
        await until(lambda: open_links(alice) == open_links(bob) == 0)

    perform(scenario)


def test_a_link_that_nobody_here_wants_is_parked_and_then_closed() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two(limits=SOON)
        alice.claim(bob)
        await until(lambda: alice.machine.heard(LinkClosed))
        assert alice.machine.heard(LinkOpened, LinkClosed) == [
            LinkOpened(bob.id, PURPOSE),
            LinkClosed(bob.id, PURPOSE, "closed"),
        ]
        assert bob.recorded(LinkDown) == [LinkDown(alice.id, "unclaimed")]

    perform(scenario)


def test_strangers_with_keys_of_their_own_hold_so_many_links() -> None:
    async def scenario(world: World) -> None:
        bob = await world.enter("bob", limits=HostLimits(parked_links_max=2))
        alice = await world.enter("alice")
        alice.claim(bob)
        await until(lambda: connected(alice, bob))
        bob.claim(alice)
        crowd = [await world.enter(f"key {number}") for number in range(5)]
        for stranger in crowd:
            stranger.claim(bob)
            await until(lambda: stranger.machine.heard(LinkOpened))  # noqa: B023
        await until(lambda: open_links(bob) == 3)
        assert set(bob.host.connections) == {alice.id, crowd[3].id, crowd[4].id}
        assert bob.recorded(LinkDown) == [LinkDown(one.id, "crowded-out") for one in crowd[:3]]

    perform(scenario)


def test_a_peer_whose_only_address_fails_is_reported() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        alice.do(OpenLink(Contact(peer_id(7), ("memory:nowhere",)), PURPOSE))
        await until(lambda: alice.machine.heard(LinkFailed))
        (failed,) = alice.machine.heard(LinkFailed)
        assert isinstance(failed, LinkFailed)
        assert failed.peer == peer_id(7)
        assert "nobody listens on memory:nowhere" in failed.reason
        assert alice.host.dial_problem(peer_id(7)) == failed.reason

    perform(scenario)


def test_another_at_the_address_is_not_the_peer() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        alice.do(OpenLink(Contact(peer_id(7), (bob.address,)), PURPOSE))
        await until(lambda: alice.machine.heard(LinkFailed))
        assert not alice.machine.heard(LinkOpened)
        assert not alice.host.connections

    perform(scenario)


def test_a_claim_given_back_during_the_dial_hears_nothing() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two(limits=SOON)
        alice.do(OpenLink(bob.contact, PURPOSE), CloseLink(bob.id, PURPOSE))
        await until(lambda: alice.recorded(LinkUp))
        await until(lambda: not alice.host.connections)
        assert not alice.machine.heard(LinkOpened, LinkClosed, LinkFailed)

    perform(scenario)


def test_claimed_again_during_the_dial_the_dial_answers() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        alice.do(
            OpenLink(bob.contact, PURPOSE),
            CloseLink(bob.id, PURPOSE),
            OpenLink(bob.contact, PURPOSE),
        )
        await until(lambda: alice.machine.heard(LinkOpened))
        assert alice.machine.heard(LinkOpened) == [LinkOpened(bob.id, PURPOSE)]
        assert len(bob.recorded(LinkUp)) == 1

    perform(scenario)


def test_what_is_sent_to_nobody_is_counted() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        alice.do(Send(Note(1), (peer_id(9), alice.id)))
        assert alice.recorded(Undeliverable) == [Undeliverable(peer_id(9))]
        assert alice.machine.notes() == [1], "what is for oneself arrives"

    perform(scenario)


# Two at once


@pytest.mark.parametrize("first", ["smaller", "larger", "both"])
@pytest.mark.parametrize("turns", range(8))
def test_simultaneous_dials_keep_one_connection_and_lose_nothing(first: str, turns: int) -> None:
    count = 300

    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        for one, other in ((alice, bob), (bob, alice)):
            one.machine.react = greet(other.id)
        sooner, later = (alice, bob) if first != "larger" else (bob, alice)
        sooner.claim(later)
        if first != "both":
            await asyncio.sleep(0.0005 * turns)  # somewhere within the handshake
        later.claim(sooner)
        await until(lambda: connected(alice, bob))
        for number in range(1, count):
            alice.send(bob, number)
            bob.send(alice, number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(alice.machine.notes()) == len(bob.machine.notes()) == count)
        for one in (alice, bob):
            assert one.machine.notes() == list(range(count))
            assert one.machine.heard(LinkOpened, LinkClosed, LinkFailed) == [
                LinkOpened((bob if one is alice else alice).id, PURPOSE)
            ]
        await until(lambda: open_links(alice) == open_links(bob) == 1)
        assert alice.host.connections[bob.id].dialled != bob.host.connections[alice.id].dialled

    perform(scenario)


def greet(peer: NodeId) -> Any:
    """Say something as soon as the link is there."""

    def react(event: Input) -> Sequence[Effect]:
        return [Send(Note(0), (peer,))] if isinstance(event, LinkOpened) else []

    return react


def claim_again(contact: Contact) -> Any:
    """Ask for a link whenever it goes."""

    def react(event: Input) -> Sequence[Effect]:
        gone = isinstance(event, LinkClosed | LinkFailed)
        return [OpenLink(contact, PURPOSE)] if gone else []

    return react


# A peer that was reborn


async def reborn(world: World, old: Inhabitant, *, address: str = "0") -> Inhabitant:
    """A new incarnation of a node whose old one says nothing more, not even goodbye."""
    old.host.frames_received = lambda link, frames: None  # type: ignore[method-assign]
    name = "alice" if old is world.inhabitants[0] else "bob"
    return await world.enter(name, door=address)


def test_a_peer_that_dials_again_replaces_its_stale_link() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()  # alice dialled
        stale = bob.host.connections[alice.id]
        bob.machine.react = claim_again(alice.contact)
        again = await reborn(world, alice)
        assert again.id == alice.id
        again.claim(bob)
        await until(lambda: bob.machine.heard(LinkClosed, LinkOpened)[1:])
        assert bob.machine.heard(LinkClosed, LinkOpened) == [
            LinkClosed(alice.id, PURPOSE, "replaced"),
            LinkOpened(alice.id, PURPOSE),
        ]
        assert bob.host.connections[alice.id] is not stale
        assert bob.host.connections[alice.id] not in bob.host._pairs, "not at once, but again"
        await until(lambda: again.machine.heard(LinkOpened))  # the dialler may know it later
        bob.send(again, 1)
        again.send(bob, 2)
        await until(lambda: again.machine.notes() == [1] and bob.machine.notes() == [2])

    perform(scenario)


def test_a_peer_that_dials_much_later_replaces_the_link_we_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SIMULTANEOUS_NS", 0)

    async def scenario(world: World) -> None:
        alice, bob = await world.linked()  # alice dialled
        alice.machine.react = claim_again(bob.contact)
        again = await reborn(world, bob)
        again.claim(alice)
        await until(lambda: alice.machine.heard(LinkClosed, LinkOpened)[1:])
        assert alice.machine.heard(LinkClosed, LinkOpened) == [
            LinkClosed(bob.id, PURPOSE, "replaced"),
            LinkOpened(bob.id, PURPOSE),
        ]
        alice.send(again, 1)
        await until(lambda: again.machine.notes() == [1])

    perform(scenario)


def test_an_inbound_link_ends_the_pause_before_a_dial() -> None:
    async def scenario(world: World) -> None:
        bob = await world.enter("bob")
        later = Contact(bob.id, ("memory:later",))
        alice = await world.enter("alice", react=claim_again(later))
        alice.do(OpenLink(later, PURPOSE))
        await until(lambda: len(alice.machine.heard(LinkFailed)) >= 4)  # in a long pause now
        bob.claim(alice)
        await until(lambda: alice.machine.heard(LinkOpened))
        assert not alice.host._dialler._attempts
        assert open_links(alice) == open_links(bob) == 1

    perform(scenario)


def test_who_comes_before_the_machines_have_started_is_sent_away() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        alice.host._running = False
        transport, told = bob.transport, Recorder()
        transport.handler = told
        await transport.dial(alice.address, alice.id)
        await until(lambda: told.losses)
        assert not alice.host.connections
        assert not alice.machine.heard(LinkOpened)
        alice.host._running = True

    perform(scenario)


def test_somebody_with_our_own_key_is_sent_away() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        twin = await world.enter("alice")
        told = twin.transport.handler = Recorder()
        with suppress(DialFailed):  # refused in the handshake, or closed after it
            await twin.transport.dial(alice.address, alice.id)
            await until(lambda: told.losses)
        assert not alice.host.connections
        assert not alice.recorded(LinkUp)

    perform(scenario)


def test_a_link_to_oneself_needs_no_wire() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        alice.do(OpenLink(alice.contact, PURPOSE), Send(Note(1), (alice.id,)))
        assert alice.machine.heard(LinkOpened) == [LinkOpened(alice.id, PURPOSE)]
        assert alice.machine.notes() == [1]
        assert not open_links(alice)

    perform(scenario)
