"""Whom a publisher waits for: for all for a moment, and not again and again for one that stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from shoal.base.units import S_NS, seconds
from shoal.runtime.send_backpressure import LAGGARD_NS, STALLS_NS, Room
from tests.support.machines import peer_id

ALICE, BOB, EVE = (peer_id(number) for number in range(3))
PATIENCE_NS = 2 * S_NS


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes when nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 1000.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> object:
            if timeout:
                self._now_s += timeout
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s


def perform(story: Callable[[Room], Awaitable[None]], links: int = 5) -> None:
    async def main() -> None:
        await story(Room(lambda: links, asyncio.get_running_loop().time))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def wait_s(room: Room) -> float:
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await room.wait(PATIENCE_NS)
    return loop.time() - begun_s


async def limp(room: Room, cycles: int, high_s: float, low_s: float) -> float:
    """A peer whose queue stands still again and again; how long publishers waited for it."""
    waited_s = 0.0
    for _ in range(cycles):
        room.note(ALICE, high=True)
        asyncio.get_running_loop().call_later(high_s, lambda: room.note(ALICE, high=False))
        begun_s = asyncio.get_running_loop().time()
        waited_s += await wait_s(room)
        await asyncio.sleep(begun_s + high_s + low_s - asyncio.get_running_loop().time())
    return waited_s


def test_one_that_stalls_again_and_again_holds_publishers_up_for_a_second_in_thirty() -> None:
    async def story(room: Room) -> None:
        waited_s = await limp(room, 50, 1.0, 0.1)  # 55 s
        assert waited_s <= 2.5 * seconds(STALLS_NS), waited_s
        assert waited_s >= seconds(STALLS_NS)

    perform(story)


def test_short_stops_are_back_pressure_however_many_there_are() -> None:
    async def story(room: Room) -> None:
        assert await limp(room, 200, 0.2, 0.01) == pytest.approx(200 * 0.2)

    perform(story)


def test_if_many_are_slow_it_is_our_own_link_and_all_are_waited_for() -> None:
    async def story(room: Room) -> None:
        for _ in range(20):
            for peer in (ALICE, BOB, EVE):
                room.note(peer, high=True)
            assert await wait_s(room) == pytest.approx(seconds(PATIENCE_NS))
            for peer in (ALICE, BOB, EVE):
                room.note(peer, high=False)

    perform(story)


def test_the_only_peer_is_waited_for() -> None:
    async def story(room: Room) -> None:
        waited_s = await limp(room, 10, 1.0, 0.1)
        assert waited_s == pytest.approx(10.0)

    perform(story, links=1)


def test_a_laggard_is_waited_for_again_later() -> None:
    async def story(room: Room) -> None:
        room.note(ALICE, high=True)
        assert await wait_s(room) == pytest.approx(seconds(STALLS_NS))
        room.note(ALICE, high=False)
        room.note(ALICE, high=True)
        assert await wait_s(room) == 0
        room.note(ALICE, high=False)
        await asyncio.sleep(seconds(LAGGARD_NS))
        room.note(ALICE, high=True)
        assert await wait_s(room) > 0

    perform(story)


@pytest.mark.parametrize("seed", range(10))
def test_nobody_waits_longer_than_patience_whatever_queues_do(seed: int) -> None:
    print(f"seed {seed}")
    rng = Random(seed)

    async def story(room: Room) -> None:
        async def publisher() -> None:
            for _ in range(30):
                assert await wait_s(room) <= seconds(PATIENCE_NS) + 0.001
                await asyncio.sleep(rng.random())

        async def queues() -> None:
            for _ in range(300):
                room.note(rng.choice((ALICE, BOB, EVE)), high=rng.random() < 0.5)
                await asyncio.sleep(rng.random() * rng.choice((0.01, 1)))
            for peer in (ALICE, BOB, EVE):
                room.note(peer, high=False)

        await asyncio.gather(queues(), *(publisher() for _ in range(3)))
        assert await wait_s(room) == 0

    perform(story)
