"""Looking for keys: bounded for each publisher, given up for a while, and found in storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.base.errors import HistoryUnavailable
from shoal.base.ids import KEYS_PARTITION, MessageId, NodeId, StreamId
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.group_key import GroupKey, Sealer
from shoal.identity.message_body import Position
from shoal.node.keys import group_keys
from shoal.node.keys.group_keys import FINDS_MAX, PUBLISHER_FINDS_MAX, KeyFinder
from shoal.protocols.streams.commands import FindKey, ReadHistory
from shoal.protocols.streams.keys.key_exchange import KeyExchange
from shoal.protocols.streams.keys.key_ring import KeyRing
from shoal.protocols.streams.member.stream_node import FixedVicinity
from shoal.protocols.streams.signed_message import VerifiedMessage
from tests.node.network import run

STREAM = StreamId("0x" + "11" * 20 + "/private")
DAY_MS = 24 * 3600 * 1000


class Bench:
    """A network in which nobody has a key, unless a test brings it."""

    def __init__(self) -> None:
        self.ring = KeyRing()
        owner = PrivateKey.generate(SeededEntropy("me"))
        exchange = KeyExchange(owner, self.ring, FixedVicinity(), SeededEntropy(1))
        self.asked: list[tuple[FindKey, Any]] = []
        self.reads: list[ReadHistory] = []
        self.finder = KeyFinder(self, exchange, self, lambda message: None)  # type: ignore[arg-type]

    async def issue(self, machine: object, command: FindKey, token: Any) -> None:
        self.asked.append((command, token))

    @asynccontextmanager
    async def open(self, commands: Sequence[ReadHistory]) -> AsyncIterator[list[Any]]:
        self.reads += commands
        raise HistoryUnavailable("nobody keeps it")
        yield []

    def nobody_has_it(self) -> None:
        for _, token in self.asked:
            token.heard(None)


def message(publisher: str, number: int) -> VerifiedMessage:
    node = NodeId(publisher.encode() * 20)
    sealer = Sealer(GroupKey(STREAM, node, number.to_bytes(32)))
    id = MessageId(STREAM, 0, 3 * DAY_MS, number, node, "c")
    kind, content = sealer.seal(id, 0, b"")
    return VerifiedMessage(id, None, kind, content, b"")


def on_bench(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await scenario(bench)
        await bench.finder.close()

    run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_publisher_that_names_many_keys_keeps_nobody_elses_from_us() -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(3 * FINDS_MAX):
            bench.finder.want(message("a", number), 0.0)
        bench.finder.want(message("b", 0), 0.0)
        await until(lambda: len(bench.asked) == PUBLISHER_FINDS_MAX + 1)
        assert bench.asked[-1][0].publisher == b"b" * 20
        await until(lambda: bench.reads)

    on_bench(scenario)


def test_announcements_are_read_near_the_message_and_then_a_key_s_age_back() -> None:
    async def scenario(bench: Bench) -> None:
        bench.finder.want(message("a", 1), 0.0)
        await until(lambda: len(bench.reads) == 2)
        assert {read.partition for read in bench.reads} == {KEYS_PARTITION}
        near, far = (read.what for read in bench.reads)
        assert near.begin == Position(3 * DAY_MS - 60_000, 0)  # type: ignore[union-attr]
        assert near.end is None  # type: ignore[union-attr]
        assert far.begin == Position(2 * DAY_MS - 3_600_000, 0)  # type: ignore[union-attr]

    on_bench(scenario)


def test_a_key_that_nobody_has_is_not_looked_for_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "WITHOUT_S", 0.2)

    async def scenario(bench: Bench) -> None:
        one = message("a", 1)
        bench.finder.want(one, 0.0)
        await until(lambda: bench.asked)
        bench.nobody_has_it()
        await until(lambda: bench.finder.is_given_up(one.content[:16]))
        bench.finder.want(one, 0.0)
        assert len(bench.asked) == 1
        await until(lambda: not bench.finder.is_given_up(one.content[:16]))
        bench.finder.want(one, 0.0)
        await until(lambda: len(bench.asked) == 2)

    on_bench(scenario)


def test_a_reader_of_history_waits_once_for_a_publisher_whose_keys_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "PATIENCE_S", 0.05)

    async def scenario(bench: Bench) -> None:
        now_s = asyncio.get_running_loop().time
        begin_s = now_s()
        await bench.finder.obtain(message("a", 1))
        waited_s = now_s() - begin_s
        assert waited_s >= 0.05
        for number in range(2, 500):
            await bench.finder.obtain(message("a", number))
        assert bench.finder.is_given_up(NodeId(b"a" * 20))
        assert len(bench.asked) <= PUBLISHER_FINDS_MAX
        key = GroupKey(STREAM, NodeId(b"b" * 20), (7).to_bytes(32))
        asyncio.get_running_loop().call_later(0.01, bench.ring.add, key)
        asyncio.get_running_loop().call_later(0.02, bench.nobody_has_it)
        await bench.finder.obtain(message("b", 7))
        assert not bench.finder.is_given_up(NodeId(b"b" * 20))

    on_bench(scenario)
