"""What a publisher seals with while the registry changes, is away, or says that it is public."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from shoal.base.errors import HistoryUnavailable, RegistryUnavailable
from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.identity import PrivateKey, PublicKey, SeededEntropy
from shoal.identity.group_key import GroupKey, decode_announcement
from shoal.node.keys import key_distribution
from shoal.node.keys.key_distribution import KeyPublisher
from shoal.registry.contract_registry import Audience, StreamReader
from shoal.registry.port import FOREVER, Change
from tests.node.network import run

STREAM = StreamId("0x" + "11" * 20 + "/private")
ME = NodeId(b"m" * 20)
READERS = [PrivateKey.generate(SeededEntropy(n)) for n in range(3)]


class Bench:
    """A registry that says what a test wants, and what was announced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_distribution, "audience", self._audience)
        monkeypatch.setattr(key_distribution, "OUTAGE_S", 0.05)
        self.answer: Audience | Exception = _private(0, 1)
        self.asked = 0
        self.announced: list[tuple[bytes, NodeId]] = []
        self.made: list[GroupKey] = []
        self.met: dict[NodeId, PublicKey] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.problem: Exception | None = None
        self._changes: asyncio.Queue[Change] = asyncio.Queue()
        self.publisher = KeyPublisher(
            ME,
            self,  # type: ignore[arg-type]
            SeededEntropy("bench"),
            self._announce,
            self.made.append,
            self.met,
        )
        self.publisher.start()

    async def refresh(self) -> None:
        if isinstance(self.answer, Exception):
            raise self.answer

    async def watch(self) -> AsyncIterator[Change]:
        while True:
            yield await self._changes.get()

    async def _audience(self, registry: object, stream: StreamId) -> Audience:
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _announce(self, stream: StreamId, content: bytes) -> bytes:
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        self.announced += [(wrap.key, wrap.reader) for wrap in decode_announcement(content).wraps]
        return b"signed"

    def change(self, answer: Audience | Exception, change: Change | None = None) -> None:
        self.answer = answer
        self._changes.put_nowait(change or Change("permissions", 1, STREAM, ME))

    async def key(self) -> bytes | None:
        sealer = await self.publisher.sealer(STREAM)
        return None if sealer is None else sealer.key.id

    def given(self, key: bytes) -> list[int]:
        """Who was given a key."""
        numbers = {reader.address: number for number, reader in enumerate(READERS)}
        return [numbers[reader] for announced, reader in self.announced if announced == key]


def _private(*numbers: int) -> Audience:
    readers = (StreamReader(READERS[n].address, FOREVER, READERS[n].public) for n in numbers)
    return Audience(False, FOREVER, tuple(readers))


PUBLIC = Audience(True, FOREVER)


def on_bench(monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch)
        await scenario(bench)
        await bench.publisher.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_key_is_announced_before_anybody_gets_to_seal_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.gate.clear()
        first, second = (asyncio.ensure_future(bench.key()) for _ in range(2))
        await asyncio.wait([first, second], timeout=0.1)
        assert not first.done()
        assert not second.done()
        bench.gate.set()
        key = await first
        assert key == await second
        assert key is not None
        assert bench.given(key) == [0, 1]
        asked = bench.asked
        for _ in range(5):
            assert await bench.key() == key
        assert bench.asked == asked  # the registry is not asked for each message

    on_bench(monkeypatch, scenario)


def test_a_revocation_is_followed_by_a_new_key_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.key()
        bench.gate.clear()
        bench.change(_private(0))
        await until(lambda: bench.asked >= 2)
        waiting = asyncio.ensure_future(bench.key())  # published meanwhile: not with the old key
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        bench.gate.set()
        second = await waiting
        assert second not in (first, None)
        assert bench.given(second or b"") == [0]
        assert [key.id for key in bench.made] == [first, second]

    on_bench(monkeypatch, scenario)


def test_a_new_reader_gets_the_key_in_use_though_nothing_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        key = await bench.key()
        assert key is not None
        bench.change(_private(0, 1, 2), Change("key", 1, who=READERS[2].address))
        await until(lambda: bench.given(key) == [0, 1, 2])
        assert await bench.key() == key
        bench.change(_private(0), Change("permissions", 2, StreamId("0x/other"), ME))
        await asyncio.sleep(0.05)
        assert await bench.key() == key  # another stream's

    on_bench(monkeypatch, scenario)


def test_many_changes_are_taken_into_account_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.key()
        for _ in range(100):
            bench.change(_private(0, 1))
        await until(lambda: bench._changes.empty())
        await bench.key()
        assert bench.asked <= 5

    on_bench(monkeypatch, scenario)


def test_what_becomes_public_is_in_the_clear_and_a_new_key_follows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.key()
        bench.change(PUBLIC)
        await until(lambda: bench.asked >= 2)
        assert await bench.key() is None
        bench.change(_private(0, 1))
        await until(lambda: bench._changes.empty())
        assert await bench.key() not in (first, None)  # anybody could have asked for the first

    on_bench(monkeypatch, scenario)


def test_a_registry_that_is_away_stops_nobody_who_was_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.answer = RegistryUnavailable("away")
        with pytest.raises(RegistryUnavailable):
            await bench.key()  # nobody knows who may read
        bench.answer = _private(0, 1)
        key = await bench.key()
        bench.change(RegistryUnavailable("away"))
        await until(lambda: bench.asked == 3)
        await asyncio.sleep(3 * key_distribution.OUTAGE_S)
        assert await bench.key() == key
        assert bench.asked == 3, "a message waited for an answer that does not come"
        bench.answer = _private(1)  # it is back, and is found to be
        await until(lambda: len(bench.made) == 2)
        assert await bench.key() == bench.made[1].id
        assert bench.given(bench.made[1].id) == [1]

    on_bench(monkeypatch, scenario)


def test_an_announcement_that_fails_is_made_again_with_another_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.problem = HistoryUnavailable("no")
        with pytest.raises(HistoryUnavailable):
            await bench.key()
        bench.problem = None
        key = await bench.key()
        assert key is not None
        assert bench.given(key) == [0, 1]
        assert bench.publisher.unkept(STREAM) == [b"signed"]
        assert bench.publisher.unkept(STREAM) == []

    on_bench(monkeypatch, scenario)


def test_a_reader_that_asked_once_is_given_the_next_key_though_the_registry_lacks_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        asker = READERS[2]
        listed = _private(0, 1).readers
        bench.answer = Audience(False, FOREVER, (*listed, StreamReader(asker.address, FOREVER)))
        first = await bench.key()
        assert bench.given(first or b"") == [0, 1]
        bench.met[asker.address] = asker.public
        bench.change(Audience(False, FOREVER, (listed[0], StreamReader(asker.address, FOREVER))))
        await until(lambda: len(bench.made) == 2)
        assert bench.given(bench.made[1].id) == [0, 2]

    on_bench(monkeypatch, scenario)


def test_while_the_next_key_is_announced_nobody_seals_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 1_700_000_000 * S_NS
    monkeypatch.setattr(key_distribution, "time_ns", lambda: now_ns)

    async def scenario(bench: Bench) -> None:
        nonlocal now_ns
        first = await bench.key()
        now_ns += 25 * 3600 * S_NS  # it has grown old
        bench.gate.clear()
        calls = [asyncio.ensure_future(bench.key())]
        await until(lambda: bench.asked == 2)
        calls += [asyncio.ensure_future(bench.key()) for _ in range(5)]
        await asyncio.wait(calls, timeout=0.1)
        assert not any(call.done() for call in calls)
        bench.gate.set()
        assert len({await call for call in calls} - {first}) == 1
        assert bench.asked == 2  # for all of them

    on_bench(monkeypatch, scenario)
