"""Dialling: ever longer pauses, one attempt at a time, and an answer in every case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast

import pytest

from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS, S_NS, seconds
from shoal.protocols.streams.config import NodeConfig
from shoal.runtime.dialler import Dialler, DialLimits
from shoal.transport.port import DialFailed, Link, Listener, Transport
from tests.support.machines import peer_id
from tests.transport.recorder import until

PEER = peer_id(1)
LIMITS = DialLimits(
    backoff_min_ns=100 * MS_NS,
    backoff_max_ns=2 * S_NS,
    unreachable_wait_ns=50 * MS_NS,
    remembered_max=3,
)


class FakeTransport:
    """Dials nobody: a test says what comes of it."""

    schemes: tuple[str, ...] = ("fake",)

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.answer: Callable[[str], Awaitable[Link]] = self.refuse
        self.at_once = self.most_at_once = 0

    async def dial(self, address: str, peer: NodeId) -> Link:
        self.dialled.append(address)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.answer(address)
        finally:
            self.at_once -= 1

    async def refuse(self, address: str) -> Link:
        raise DialFailed("nobody there")

    async def accept(self, address: str) -> Link:
        return cast(Link, address)  # the dialler only hands it on

    async def wait(self, address: str) -> Link:
        await asyncio.Event().wait()
        raise AssertionError("never reached")

    async def listen(self, address: str) -> Listener:
        raise NotImplementedError

    async def close(self) -> None:
        """There is nothing to close."""


class Bench:
    """A dialler, and what it said."""

    def __init__(self, limits: DialLimits = LIMITS) -> None:
        self.transport = FakeTransport()
        transport: Transport = self.transport
        self.dialler = Dialler([transport], Random(1), limits)
        self.opened: list[Any] = []
        self.failed: list[str] = []

    def dial(self, *addresses: str, peer: NodeId = PEER) -> None:
        contact = Contact(peer, addresses or ("fake:1",))
        self.dialler.dial(contact, self.opened.append, self.failed.append)

    async def fail(self, *addresses: str, peer: NodeId = PEER) -> None:
        """One dial that fails."""
        known = len(self.failed)
        self.dial(*addresses, peer=peer)
        await until(lambda: len(self.failed) > known)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that diallers make; they take no time."""
    asked: list[float] = []
    sleep = asyncio.sleep

    async def remember(delay: float) -> None:
        asked.append(delay)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", remember)
    return asked


async def turns(count: int = 10) -> None:
    """Let the event loop take some turns, without a sleep that a test may have replaced."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def failures(bench: Bench, count: int) -> None:
    for _ in range(count):
        known = len(bench.failed)
        bench.dial()
        while len(bench.failed) == known:
            await turns(1)


def test_pauses_grow_up_to_a_bound(pauses: list[float]) -> None:
    async def main() -> None:
        bench = Bench(DialLimits(backoff_min_ns=1 * S_NS, backoff_max_ns=20 * S_NS))
        await failures(bench, 12)
        assert len(bench.transport.dialled) == 12

    asyncio.run(main())
    assert pauses[0] == 0
    for number, pause_s in enumerate(pauses[1:], 1):
        longest_s = min(2**number, 20)
        # What the machine took for it counts as pause.
        assert longest_s / 2 - 0.5 < pause_s <= longest_s, number


def test_no_pause_is_longer_than_the_time_between_two_looks_for_a_tracker(
    pauses: list[float],
) -> None:
    async def main() -> None:
        await failures(Bench(DialLimits()), 30)

    asyncio.run(main())
    assert 1 < max(pauses) <= seconds(NodeConfig().seek_ns)


def test_a_peer_that_is_down_is_not_hammered() -> None:
    async def main() -> None:
        bench = Bench(DialLimits(backoff_min_ns=20 * MS_NS, backoff_max_ns=200 * MS_NS))

        def again(reason: str) -> None:
            bench.dialler.dial(Contact(PEER, ("fake:1",)), bench.opened.append, again)

        again("")
        await asyncio.sleep(1)
        await bench.dialler.close()
        # 20 + 40 + 80 + 100 + 100 ... ms at the shortest.
        assert 2 <= len(bench.transport.dialled) <= 14

    asyncio.run(main())


def test_a_failure_of_long_ago_costs_no_pause(pauses: list[float]) -> None:
    async def main() -> None:
        bench = Bench(DialLimits(backoff_min_ns=MS_NS, backoff_max_ns=10 * MS_NS))
        await failures(bench, 5)
        loop = asyncio.get_running_loop()
        later = loop.create_future()
        loop.call_later(0.02, later.set_result, None)
        await later
        await failures(bench, 1)

    asyncio.run(main())
    assert pauses[-1] == 0
    assert pauses[-2] > 0


def test_new_addresses_are_tried_at_once(pauses: list[float]) -> None:
    async def main() -> None:
        bench = Bench()
        await failures(bench, 3)
        bench.transport.answer = bench.transport.accept
        bench.dial("fake:2")
        await turns()
        assert bench.opened == ["fake:2"]

    asyncio.run(main())
    assert pauses[-1] == 0


def test_a_link_that_comes_up_ends_the_series(pauses: list[float]) -> None:
    async def main() -> None:
        bench = Bench()
        await failures(bench, 3)
        assert bench.dialler.problem(PEER) == "fake:1: nobody there"
        bench.dialler.connected(PEER)
        assert bench.dialler.problem(PEER) is None
        await failures(bench, 1)

    asyncio.run(main())
    assert pauses[-1] == 0


def test_asked_again_the_attempt_under_way_answers() -> None:
    async def main() -> None:
        bench = Bench()
        bench.transport.answer = bench.transport.wait
        bench.dial()
        await until(lambda: bench.transport.dialled)
        bench.dial("fake:2")
        bench.dial("fake:3")
        await asyncio.sleep(0.02)
        assert bench.transport.dialled == ["fake:1"]
        assert not bench.opened
        assert not bench.failed
        await bench.dialler.close()

    asyncio.run(main())


def test_asked_again_during_a_pause_the_newest_addresses_count() -> None:
    async def main() -> None:
        bench = Bench(DialLimits(backoff_min_ns=30 * MS_NS))
        await bench.fail()
        bench.transport.answer = bench.transport.accept
        bench.dial()
        await asyncio.sleep(0)
        bench.dial("fake:2")
        await until(lambda: bench.opened)
        assert bench.opened == ["fake:2"]
        assert bench.transport.most_at_once == 1

    asyncio.run(main())


def test_a_peer_that_connected_meanwhile_is_not_dialled_after_the_pause() -> None:
    async def main() -> None:
        bench = Bench(DialLimits(backoff_min_ns=20 * MS_NS))
        await bench.fail()
        bench.dial()
        await asyncio.sleep(0)
        bench.dialler.connected(PEER)
        await asyncio.sleep(0.1)
        assert len(bench.transport.dialled) == 1
        assert len(bench.failed) == 1
        # And it can be dialled anew.
        await bench.fail()
        assert len(bench.transport.dialled) == 2

    asyncio.run(main())


def test_a_dial_that_has_begun_goes_on_when_the_peer_connects() -> None:
    async def main() -> None:
        bench = Bench()
        go = asyncio.Event()

        async def later(address: str) -> Link:
            await go.wait()
            return cast(Link, address)

        bench.transport.answer = later
        bench.dial()
        await until(lambda: bench.transport.dialled)
        bench.dialler.connected(PEER)
        go.set()
        await until(lambda: bench.opened)

    asyncio.run(main())


def test_addresses_are_tried_in_turn_whatever_they_bring_about() -> None:
    async def main() -> None:
        bench = Bench()

        async def mixed(address: str) -> Link:
            match address:
                case "fake:value":
                    raise ValueError("Invalid IPv6 URL")
                case "fake:os":
                    raise OSError("no route")
                case "fake:refused":
                    raise DialFailed("refused")
                case _:
                    return cast(Link, address)

        bench.transport.answer = mixed
        bench.dial("other:1", "fake:value", "fake:os", "fake:refused", "fake:good", "fake:unused")
        await until(lambda: bench.opened)
        assert bench.opened == ["fake:good"]
        assert bench.transport.dialled == ["fake:value", "fake:os", "fake:refused", "fake:good"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("addresses", "reason"),
    [
        ((), "it gives no address"),
        (("other:1",), "other:1: no transport for it"),
        (("fake:1",), "fake:1: nobody there"),
        (("fake:1", "fake:2"), "fake:2: nobody there"),
    ],
)
def test_who_asked_hears_why_it_failed(addresses: tuple[str, ...], reason: str) -> None:
    async def main() -> None:
        bench = Bench()
        bench.dialler.dial(Contact(PEER, addresses), bench.opened.append, bench.failed.append)
        await until(lambda: bench.failed)
        assert bench.failed == [reason]
        assert bench.dialler.problem(PEER) == reason

    asyncio.run(main())


def test_who_cannot_be_dialled_is_waited_for() -> None:
    """It has our address, and dials us."""

    async def main() -> None:
        bench = Bench()
        bench.dial("other:1")
        await asyncio.sleep(0)
        bench.dialler.connected(PEER)
        await asyncio.sleep(0.1)
        assert (bench.opened, bench.failed) == ([], [])
        assert bench.dialler.problem(PEER) is None

    asyncio.run(main())


def test_what_costs_least_is_dialled_first() -> None:
    async def main() -> None:
        costly, cheap = FakeTransport(), FakeTransport()
        costly.schemes = ("costly",)
        order: list[str] = []
        for transport in (costly, cheap):
            transport.dialled = order
        dialler = Dialler([cheap, costly], Random(1), LIMITS)
        failed: list[str] = []
        contact = Contact(PEER, ("costly:1", "fake:2", "fake:1"))
        dialler.dial(contact, lambda link: None, failed.append)
        await until(lambda: failed)
        assert order == ["fake:2", "fake:1", "costly:1"]

    asyncio.run(main())


def test_only_so_many_failures_are_remembered() -> None:
    async def main() -> None:
        bench = Bench()
        for number in range(5):
            await bench.fail(peer=peer_id(number))
        known = [bench.dialler.problem(peer_id(number)) is not None for number in range(5)]
        assert known == [False, False, True, True, True]

    asyncio.run(main())


def test_after_the_end_nothing_is_dialled() -> None:
    async def main() -> None:
        bench = Bench()
        bench.transport.answer = bench.transport.wait
        bench.dial()
        await until(lambda: bench.transport.dialled)
        await bench.dialler.close()
        bench.dial(peer=peer_id(2))
        await asyncio.sleep(0.01)
        assert bench.transport.dialled == ["fake:1"]
        assert bench.transport.at_once == 0
        assert not bench.failed
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
