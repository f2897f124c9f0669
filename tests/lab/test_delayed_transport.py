"""Links of a given length: order, delay, both ends of a close, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from shoal.base.ids import NodeId
from shoal.base.units import ns_of_seconds
from shoal.transport.memory import MemoryNetwork, MemoryTransport
from shoal.transport.port import DialFailed, Frame, Link
from shoal.transport.websocket import WebSocketTransport
from shoal_lab.experiments.streams.sockets import LabLoop
from shoal_lab.testbed.delayed_transport import DelayedLink, DelayedTransport, Lateness
from tests.transport.recorder import Recorder, until
from tests.transport.stage import credentials, sockets

THERE_S, BACK_S = 0.05, 0.08  # from a to b, and from b to a


class Clocked(Recorder):
    """Knows also when it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.frames_s: list[float] = []
        self.lost_s = 0.0

    def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
        super().frames_received(link, frames)
        self.frames_s += [asyncio.get_running_loop().time()] * len(frames)

    def link_lost(self, link: Link, reason: str) -> None:
        super().link_lost(link, reason)
        self.lost_s = asyncio.get_running_loop().time()


class Actor(msgspec.Struct, eq=False):
    id: NodeId
    transport: DelayedTransport
    told: Clocked
    late: Lateness
    address: str = ""


class Pair(msgspec.Struct, eq=False):
    """Two nodes, far apart."""

    a: Actor
    b: Actor

    async def connected(self) -> tuple[Link, Link]:
        link = await self.a.transport.dial(self.b.address, self.b.id)
        await until(lambda: self.b.told.links)
        return link, self.b.told.links[-1]


Scenario = Callable[[Pair], Awaitable[None]]


def one_way_ns(sender: NodeId, receiver: NodeId) -> int:
    a = credentials("a").key.address
    return ns_of_seconds(THERE_S if sender == a else BACK_S)


async def make_actor(name: str, network: MemoryNetwork | None) -> Actor:
    identity, told, late = credentials(name), Clocked(), Lateness()

    def make(handler: Any) -> Any:
        if network is None:
            return WebSocketTransport(identity, handler)
        return MemoryTransport(identity, handler, network=network)

    transport = DelayedTransport(identity.key.address, make, told, one_way_ns, late)
    actor = Actor(identity.key.address, transport, told, late)
    door = await transport.listen("ws://127.0.0.1:0" if network is None else "memory:0")
    actor.address = door.address
    return actor


def far_apart(scenario: Scenario) -> Callable[[str], None]:
    """Turn a scenario into a test over memory and over sockets; nothing may be left of it."""

    @pytest.mark.parametrize("kind", ["memory", "ws"])
    def test(kind: str) -> None:
        async def main() -> None:
            loop, complaints, before = asyncio.get_running_loop(), [], sockets()
            loop.set_exception_handler(lambda _, context: complaints.append(context))
            network = MemoryNetwork() if kind == "memory" else None
            async with AsyncExitStack() as exits:
                actors = [await make_actor(name, network) for name in ("a", "b")]
                for actor in actors:
                    exits.push_async_callback(actor.transport.close)
                await scenario(Pair(*actors))
            await until(lambda: len(asyncio.all_tasks()) == 1 and sockets() <= before, 5)
            pending = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
            assert not [t for t in pending if "DelayedLink" in repr(t)], "a timer is left"
            gc.collect()
            assert not complaints, complaints

        with asyncio.Runner(loop_factory=LabLoop) as runner:
            runner.run(main())

    test.__name__ = test.__qualname__ = scenario.__name__
    return test


@far_apart
async def test_frames_come_in_order_and_after_the_delay(pair: Pair) -> None:
    near, far = await pair.connected()
    loop, sent_s = asyncio.get_running_loop(), []
    for number in range(20):
        sent_s.append(loop.time())
        near.send(7, b"%d" % number)
        await asyncio.sleep(0.002)
    far.send(9, b"back")
    back_s = loop.time()
    await until(lambda: len(pair.b.told.frames) == 20 and pair.a.told.frames)
    assert pair.b.told.frames == [(7, b"%d" % number) for number in range(20)]
    assert pair.a.told.frames == [(9, b"back")]
    waited_s = [told - sent for told, sent in zip(pair.b.told.frames_s, sent_s, strict=True)]
    assert min(waited_s) >= THERE_S
    assert min(waited_s) < THERE_S + 0.02, "the machine may be busy, but not at every frame"
    assert pair.a.told.frames_s[0] - back_s >= BACK_S - 0.001, "each way has its own delay"
    assert pair.b.late.count == 20
    assert 0 <= pair.b.late.sum_s <= 20 * pair.b.late.max_s


@far_apart
async def test_what_has_not_left_is_known_as_it_was_sent(pair: Pair) -> None:
    near, _ = await pair.connected()
    near.send(7, b"in this turn")
    assert near.unsent() == [(7, b"in this turn")]
    await until(lambda: pair.b.told.frames)
    assert near.unsent() == []


@far_apart
async def test_a_dial_takes_two_round_trips(pair: Pair) -> None:
    begin_s = asyncio.get_running_loop().time()
    near, far = await pair.connected()
    assert asyncio.get_running_loop().time() - begin_s >= 2 * (THERE_S + BACK_S)
    assert (near.peer.node, far.peer.node) == (pair.b.id, pair.a.id)
    assert (near.dialled, far.dialled) == (True, False)


@far_apart
async def test_a_close_comes_behind_what_was_sent(pair: Pair) -> None:
    near, _ = await pair.connected()
    for number in range(5):
        near.send(1, b"%d" % number)
    near.close("enough")
    begin_s = asyncio.get_running_loop().time()
    await until(lambda: pair.b.told.losses)
    assert [payload for _, payload in pair.b.told.frames] == [b"0", b"1", b"2", b"3", b"4"]
    assert pair.b.told.story[-2:] == ["frames", "lost closed"]
    assert pair.b.told.lost_s - begin_s >= THERE_S
    assert pair.a.told.losses == [], "whoever closes is told nothing"


@far_apart
async def test_whoever_closes_hears_nothing_of_what_was_on_its_way(pair: Pair) -> None:
    near, far = await pair.connected()
    assert isinstance(near, DelayedLink)
    hold, closed = near.hold, asyncio.Event()

    def hold_and_close(tell: Callable[[], None], sent_s: float | None = None) -> None:
        hold(tell, sent_s)
        near.close("enough")
        closed.set()

    near.hold = hold_and_close  # type: ignore[method-assign]
    far.send(1, b"too late")
    await until(closed.is_set)
    await asyncio.sleep(2 * BACK_S)
    assert pair.a.told.story == []


@far_apart
async def test_closing_the_transport_ends_dials_and_drops_what_is_under_way(pair: Pair) -> None:
    near, far = await pair.connected()
    far.send(1, b"too late")
    dial = asyncio.ensure_future(pair.a.transport.dial(pair.b.address, pair.b.id))
    await asyncio.sleep(0)  # it has begun
    await pair.a.transport.close()
    with pytest.raises(DialFailed, match="closed"):
        await dial
    near.send(1, b"to nobody")
    await asyncio.sleep(2 * BACK_S)
    assert pair.a.told.story == []
    assert pair.b.told.frames == []


@far_apart
async def test_a_cancelled_dial_leaves_nothing(pair: Pair) -> None:
    dial = asyncio.ensure_future(pair.a.transport.dial(pair.b.address, pair.b.id))
    await asyncio.sleep(0.01)
    dial.cancel()
    await asyncio.gather(dial, return_exceptions=True)
    assert pair.b.told.links == []


def test_a_handler_that_fails_keeps_nothing_back() -> None:
    class Failing(Clocked):
        def frames_received(self, link: Link, frames: Sequence[Frame]) -> None:
            super().frames_received(link, frames)
            if len(self.frames) == 1:
                raise ValueError("a bug")

    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        network = MemoryNetwork()
        a, b = [await make_actor(name, network) for name in ("a", "b")]
        b.told = b.transport._handler = Failing()
        link = await a.transport.dial(b.address, b.id)
        for _ in range(3):
            link.send(1, b"x")
            await asyncio.sleep(0.002)
        await until(lambda: len(b.told.frames) == 3)
        assert [str(told["exception"]) for told in complaints] == ["a bug"]
        await a.transport.close()
        await b.transport.close()

    asyncio.run(main())
