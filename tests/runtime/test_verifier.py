"""Signature checks: at once or in a thread, first in first out in any mixture."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable

import pytest

from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import Verify
from shoal.runtime import workers as module
from shoal.runtime.workers import AT_ONCE_MAX, BATCH_MAX, THREAD_MIN, Verifier
from tests.transport.recorder import until

KEY = PrivateKey.generate(SeededEntropy("verifier"))
SIGNATURE = KEY.sign(b"body")
SLOT = 3


def good(token: Hashable = None) -> Verify:
    return Verify(KEY.address, SIGNATURE + b"body", token)


def bad(token: Hashable) -> Verify:
    return Verify(KEY.address, SIGNATURE + b"other", token)


class Log:
    """What came back, in which order, and from which thread."""

    def __init__(self) -> None:
        self.verifier = Verifier(self._done)
        self.results: list[tuple[Hashable, bool]] = []
        self.asked = 0
        self.expected: list[tuple[Hashable, bool]] = []

    def ask(self, count: int) -> None:
        for _ in range(count):
            number, valid = self.asked, self.asked % 3 != 0
            self.asked += 1
            self.expected.append((number, valid))
            self.verifier.check(SLOT, good(number) if valid else bad(number))

    def _done(self, slot: int, token: Hashable, valid: bool) -> None:
        assert slot == SLOT
        assert threading.current_thread() is threading.main_thread()
        self.results.append((token, valid))

    async def complete(self) -> None:
        await until(lambda: len(self.results) == self.asked)
        assert self.results == self.expected


@pytest.mark.parametrize("count", [1, AT_ONCE_MAX, AT_ONCE_MAX + 1, THREAD_MIN + 2 * BATCH_MAX + 5])
def test_results_come_in_order(count: int) -> None:
    async def main() -> None:
        log = Log()
        log.ask(count)
        assert not log.results, "never from within"
        await log.complete()
        await log.verifier.close()

    asyncio.run(main())


def test_few_and_many_in_any_mixture_come_in_order() -> None:
    async def main() -> None:
        log = Log()
        for round in range(12):
            log.ask([1, THREAD_MIN + 3, 2, AT_ONCE_MAX * 3][round % 4])
            await asyncio.sleep(0 if round % 3 else 0.002)
        await log.complete()
        log.ask(3)  # back on the loop
        await log.complete()
        await log.verifier.close()

    asyncio.run(main())


def test_what_a_result_brings_about_waits_its_turn() -> None:
    async def main() -> None:
        order: list[Hashable] = []

        def done(slot: int, token: Hashable, valid: bool) -> None:
            order.append(token)
            if token == "first":
                verifier.check(SLOT, good("third"))

        verifier = Verifier(done)
        verifier.check(SLOT, good("first"))
        verifier.check(SLOT, good("second"))
        await until(lambda: len(order) == 3)
        assert order == ["first", "second", "third"]
        await verifier.close()

    asyncio.run(main())


def test_a_backlog_is_checked_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    monkeypatch.setattr(module, "verify_signed", _noting(threads, lambda: True))

    async def main() -> None:
        log = Log()
        log.ask(THREAD_MIN)
        slices = 0
        while len(log.results) < THREAD_MIN:
            before = len(log.results)
            await asyncio.sleep(0)  # one turn of the loop: others get theirs
            assert len(log.results) - before <= AT_ONCE_MAX
            slices += 1
        assert slices >= THREAD_MIN // AT_ONCE_MAX
        await log.verifier.close()

    asyncio.run(main())
    assert threads == {"MainThread"}


def test_the_loop_goes_on_while_very_many_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    gate = threading.Event()
    monkeypatch.setattr(module, "verify_signed", _noting(threads, lambda: gate.wait(10)))

    async def main() -> None:
        log = Log()
        log.ask(THREAD_MIN + 1)
        await asyncio.sleep(0.05)
        assert not log.results
        gate.set()
        await until(lambda: len(log.results) == THREAD_MIN + 1)
        await log.verifier.close()

    asyncio.run(main())
    assert len(threads) == 1
    assert threads.pop().startswith("shoal-verify")


def _noting(threads: set[str], answer: Callable[[], bool]) -> Callable[..., bool]:
    def verify_signed(signer: bytes, signed: bytes) -> bool:
        threads.add(threading.current_thread().name)
        return answer()

    return verify_signed


@pytest.mark.parametrize("count", [1, THREAD_MIN * 2])
def test_closing_forgets_what_waits_and_leaves_no_thread(count: int) -> None:
    async def main() -> None:
        before = threading.active_count()
        log = Log()
        log.ask(count)
        if count > 1:
            await asyncio.sleep(0.001)  # a thread may be at it
        known = len(log.results)
        await log.verifier.close()
        log.ask(count)
        await asyncio.sleep(0.01)
        assert len(log.results) == known
        assert threading.active_count() == before
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
