"""Two connections between two nodes, which dialled each other at once: what is said keeps its
order over both, also if one of them is slow, or cut, or one node leaves."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from shoal.kernel.effects import PauseReading, ResumeReading
from shoal.kernel.inputs import LinkClosed, LinkOpened, MessageReceived
from shoal.kernel.records import LinkDown, LinkUp, Rejected
from shoal.runtime import duplicate_links
from tests.runtime.slow_wire import HANDSHAKE, HELLO, Crossing, all_that_can
from tests.runtime.world import PURPOSE, Inhabitant, World, perform
from tests.transport.recorder import until


@pytest.fixture
def crossing(monkeypatch: pytest.MonkeyPatch) -> Crossing:
    return Crossing(monkeypatch)


@pytest.fixture(params=["the smaller", "the larger"])
def speaker(request: pytest.FixtureRequest) -> int:
    """Which of the two ids speaks; the other one listens."""
    return ["the smaller", "the larger"].index(request.param)


@pytest.fixture(params=["the speaker", "the listener"])
def first(request: pytest.FixtureRequest) -> int:
    """Who dialled the connection that is up first, and that the speaker takes."""
    return ["the speaker", "the listener"].index(request.param)


async def two(world: World, speaker: int) -> tuple[Inhabitant, Inhabitant]:
    both = await world.two()
    return both[speaker], both[1 - speaker]


async def dial_both(alice: Inhabitant, bob: Inhabitant, first: int) -> None:
    """One after the other, as far as both get; alice begins to talk over the first one."""
    diallers = [(alice, bob), (bob, alice)]
    for number in (first, 1 - first):
        one, other = diallers[number]
        one.host.dial(other.contact)
        await all_that_can()
        if number == first:
            alice.claim(bob)
            alice.send(bob, 1)
            await all_that_can()
    assert alice.recorded(LinkUp) == [LinkUp(bob.id)]


def open_links(inhabitant: Inhabitant) -> int:
    return len(inhabitant.transport._links)


def said_and_gone(bob: Inhabitant, alice: Inhabitant, *numbers: int) -> bool:
    """All notes in order, and then the end of the link, once."""
    heard = bob.machine.heard(MessageReceived, LinkClosed)
    closed = LinkClosed(alice.id, PURPOSE, "closed")
    return bob.machine.notes() == list(numbers) and heard[len(numbers) :] == [closed]


def test_what_is_said_later_does_not_overtake(crossing: Crossing, speaker: int, first: int) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await two(world, speaker)
        crossing.plan(alice, HANDSHAKE, None)
        await dial_both(alice, bob, first)
        alice.send(bob, 2)
        await all_that_can()
        assert bob.machine.notes() == [], "the first one is on its way"
        crossing.wires(alice)[0].go_on()
        alice.send(bob, 3)
        await until(lambda: bob.machine.notes() == [1, 2, 3])
        # One is left, at both: the one that the smaller id dialled.
        await until(lambda: open_links(alice) == open_links(bob) == 1)
        assert alice.host.connections[bob.id].dialled == (alice.id < bob.id)
        assert bob.host.connections[alice.id].dialled == (bob.id < alice.id)
        bob.send(alice, 4)
        alice.send(bob, 5)
        await until(lambda: alice.machine.notes() == [4] and bob.machine.notes() == [1, 2, 3, 5])
        for one in (alice, bob):
            assert not one.recorded(LinkDown)
            assert not one.recorded(Rejected)

    perform(scenario)


def test_a_pause_holds_over_both_and_ends_for_the_one_that_is_left(
    crossing: Crossing, speaker: int, first: int
) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await two(world, speaker)
        crossing.plan(alice, HANDSHAKE, None)
        await dial_both(alice, bob, first)
        bob.do(PauseReading(alice.id))
        crossing.wires(alice)[0].go_on()
        alice.send(bob, 2)
        await all_that_can()
        assert bob.machine.notes() == []
        bob.do(ResumeReading(alice.id))
        await until(lambda: bob.machine.notes() == [1, 2])
        await until(lambda: open_links(alice) == open_links(bob) == 1)
        bob.do(PauseReading(alice.id))
        alice.send(bob, 3)
        await all_that_can()
        assert bob.machine.notes() == [1, 2]
        bob.do(ResumeReading(alice.id))
        await until(lambda: bob.machine.notes() == [1, 2, 3])

    perform(scenario)


def test_who_leaves_is_heard_though_the_listener_does_not_know_that_connection_yet(
    crossing: Crossing, speaker: int, first: int
) -> None:
    """The last message of a publisher that leaves at once lies in a connection whose handshake the
    other end has not read."""

    async def scenario(world: World) -> None:
        alice, bob = await two(world, speaker)
        crossing.plan(alice, HELLO, None)
        await dial_both(alice, bob, first)
        bob.claim(alice)
        assert bob.machine.heard(LinkOpened) == [LinkOpened(alice.id, PURPOSE)]
        (slow, _), (_, quick) = crossing.wires(alice), crossing.wires(bob)
        assert bob.host.connections[alice.id] is quick.link, "the only one that bob knows"
        alice.send(bob, 2)
        leaving = asyncio.create_task(alice.host.stop())
        await all_that_can()
        assert not bob.machine.heard(LinkClosed), "there is more to come"
        slow.go_on()
        await leaving
        await until(lambda: said_and_gone(bob, alice, 1, 2))

    perform(scenario)


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("leaves", ["stops", "hangs up"])
def test_who_leaves_is_heard_whichever_connection_is_slow(
    crossing: Crossing, speaker: int, first: int, slow: int, leaves: str
) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await two(world, speaker)
        crossing.plan(alice, *[HANDSHAKE if slow == number else None for number in range(2)])
        await dial_both(alice, bob, first)
        bob.claim(alice)
        alice.send(bob, 2)
        if leaves == "stops":
            leaving = asyncio.create_task(alice.host.stop())
        else:
            alice.host.drop_link(bob.id, "enough")
        await all_that_can()
        assert not bob.machine.heard(LinkClosed), "there is more to come"
        crossing.wires(alice)[slow].go_on()
        await until(lambda: said_and_gone(bob, alice, 1, 2))
        if leaves == "stops":
            await leaving
        await until(lambda: open_links(alice) == open_links(bob) == 0)

    perform(scenario)


def test_nothing_goes_over_a_connection_that_the_peer_may_never_know(
    crossing: Crossing, speaker: int, first: int
) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await two(world, speaker)
        crossing.plan(alice, None, HELLO)
        await dial_both(alice, bob, first)
        bob.claim(alice)
        alice.send(bob, 2)
        await until(lambda: bob.machine.notes() == [1, 2])
        crossing.wires(alice)[1].abort("lost")
        alice.send(bob, 3)
        await until(lambda: bob.machine.notes() == [1, 2, 3])
        await until(lambda: open_links(alice) == open_links(bob) == 1)
        for one in (alice, bob):
            assert not one.recorded(LinkDown)

    perform(scenario)


def test_what_a_cut_spare_may_have_lost_is_no_secret(crossing: Crossing) -> None:
    """Something was on its way over it when alice had moved to the other one: the machines of both
    hear of it, as of any link that is lost."""

    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        crossing.plan(alice, HANDSHAKE, None)
        bob.host.dial(alice.contact)  # the spare
        await all_that_can()
        for one, other in ((alice, bob), (bob, alice)):
            one.claim(other)
        alice.send(bob, 1)
        alice.host.dial(bob.contact)
        await all_that_can()
        alice.send(bob, 2)
        await all_that_can()
        crossing.wires(alice)[0].abort("lost")
        await until(lambda: alice.machine.heard(LinkClosed) and bob.machine.heard(LinkClosed))
        assert bob.machine.heard(LinkClosed) == [LinkClosed(alice.id, PURPOSE, "lost")]
        await until(lambda: open_links(alice) == open_links(bob) == 0)

    perform(scenario)


def test_a_spare_is_read_for_as_long_as_the_peer_may_speak_on_it(crossing: Crossing) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        crossing.plan(alice, None, HELLO)
        bob.host.dial(alice.contact)  # the spare
        await all_that_can()
        alice.host.dial(bob.contact)  # up at alice only
        await all_that_can()
        assert (open_links(alice), len(bob.host.connections)) == (2, 1)
        for number in range(3):
            bob.send(alice, number)
            await all_that_can()
            assert alice.machine.notes() == list(range(number + 1))
        crossing.wires(alice)[1].go_on()
        bob.send(alice, 3)
        await until(lambda: open_links(alice) == open_links(bob) == 1)
        assert alice.machine.notes() == [0, 1, 2, 3]

    perform(scenario)


def test_one_takes_the_place_of_the_other_when_that_is_lost(crossing: Crossing) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        for one in (alice, bob):
            crossing.plan(one, None, HANDSHAKE)
        alice.host.dial(bob.contact)
        await all_that_can()
        for one, other in ((alice, bob), (bob, alice)):
            one.claim(other)
        bob.host.dial(alice.contact)
        await all_that_can()
        kept, spare = crossing.wires(alice)
        assert alice.host.connections[bob.id] is kept.link
        kept.abort("lost")
        await until(lambda: alice.recorded(LinkDown))
        assert alice.host.connections[bob.id] is spare.link
        for one in (alice, bob):
            crossing.wires(one)[1].go_on()
        await until(lambda: bob.recorded(LinkDown))
        for one, other in ((alice, bob), (bob, alice)):
            one.claim(other)
            one.send(other, 1)
        await until(lambda: bob.machine.notes() == [1] and alice.machine.notes() == [1])
        assert alice.machine.heard(LinkOpened, LinkClosed) == [
            LinkOpened(bob.id, PURPOSE),
            LinkClosed(bob.id, PURPOSE, "lost"),
            LinkOpened(bob.id, PURPOSE),
        ]

    perform(scenario)


def test_a_third_connection_takes_the_place_of_the_one_that_it_repeats(crossing: Crossing) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.two()
        crossing.plan(alice, None, HELLO, None)
        bob.host.dial(alice.contact)
        await all_that_can()
        alice.claim(bob)
        alice.host.dial(bob.contact)
        await all_that_can()
        alice.host.dial(bob.contact)  # it has lost patience with the one before
        alice.send(bob, 1)
        await until(lambda: bob.machine.notes() == [1])
        crossing.wires(alice)[1].abort("lost")
        await until(lambda: open_links(alice) == open_links(bob) == 1)
        alice.send(bob, 2)
        await until(lambda: bob.machine.notes() == [1, 2])

    perform(scenario)


def test_words_that_mean_nothing_do_no_harm(crossing: Crossing) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        link = alice.host.connections[bob.id]
        for word in duplicate_links.WORDS:
            link.send(duplicate_links.NUMBER, word)
        link.send(duplicate_links.NUMBER, b"?")
        alice.send(bob, 1)
        await until(lambda: bob.machine.notes() == [1])
        assert bob.recorded(Rejected) == [Rejected(alice.id, "malformed")]

    perform(scenario)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_slow_order_is_kept_and_one_connection_is_left(
    crossing: Crossing, seed: int
) -> None:
    async def scenario(world: World) -> None:
        rng = Random(seed)
        alice, bob = await world.two()
        for one in (alice, bob):
            crossing.plan(one, *[rng.choice([HELLO, HANDSHAKE, 3, 4, None]) for _ in range(2)])
        alice.host.dial(bob.contact)
        if rng.random() < 0.5:
            await all_that_can()
        bob.host.dial(alice.contact)
        await all_that_can()
        said = {alice.id: 0, bob.id: 0}
        slow = [wire for one in (alice, bob) for wire in crossing.wires(one)]
        rng.shuffle(slow)
        while slow:
            for one, other in ((alice, bob), (bob, alice)):
                for _ in range(rng.randrange(3)):
                    if other.id in one.host.connections:
                        one.send(other, said[one.id])
                        said[one.id] += 1
            if rng.random() < 0.5:
                await all_that_can()
            slow.pop().go_on()
            if rng.random() < 0.5:
                await all_that_can()
        await until(lambda: len(alice.machine.notes()) == said[bob.id])
        await until(lambda: len(bob.machine.notes()) == said[alice.id])
        await until(lambda: open_links(alice) == open_links(bob) == 1)
        for one, other in ((alice, bob), (bob, alice)):
            assert one.machine.notes() == list(range(said[other.id]))
            assert not one.recorded(LinkDown)

    print(f"seed {seed}")
    perform(scenario)
