"""Signature checks: at once or in a thread, first in first out in any mixture."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from shoal.identity import PrivateKey, SeededEntropy
from shoal.runtime import verifier as module
from shoal.runtime.verifier import AT_ONCE_MAX, BATCH_MAX, Check, Verifier
from tests.transport.recorder import until

KEY = PrivateKey.generate(SeededEntropy("verifier"))
GOOD: Check = (KEY.address, b"body", KEY.sign(b"body"))
BAD: Check = (KEY.address, b"other", KEY.sign(b"body"))


class Log:
    """What came back, in which order, and from which thread."""

    def __init__(self) -> None:
        self.results: list[tuple[int, bool]] = []
        self.asked = 0
        self.expected: list[tuple[int, bool]] = []

    def ask(self, verifier: Verifier, count: int) -> None:
        for _ in range(count):
            number, good = self.asked, self.asked % 3 != 0
            self.asked += 1
            self.expected.append((number, good))
            verifier.check(GOOD if good else BAD, partial(self._done, number))

    def _done(self, number: int, valid: bool) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.results.append((number, valid))

    async def complete(self) -> None:
        await until(lambda: len(self.results) == self.asked)
        assert self.results == self.expected


@pytest.mark.parametrize("count", [1, AT_ONCE_MAX, AT_ONCE_MAX + 1, 2 * BATCH_MAX + 5])
def test_results_come_in_order(count: int) -> None:
    async def main() -> None:
        verifier, log = Verifier(), Log()
        log.ask(verifier, count)
        assert not log.results, "never from within"
        await log.complete()
        await verifier.close()

    asyncio.run(main())


def test_few_and_many_in_any_mixture_come_in_order() -> None:
    async def main() -> None:
        verifier, log = Verifier(), Log()
        for round in range(12):
            log.ask(verifier, [1, AT_ONCE_MAX * 3, 2, 5][round % 4])
            await asyncio.sleep(0 if round % 3 else 0.002)
        await log.complete()
        log.ask(verifier, 3)  # back on the loop
        await log.complete()
        await verifier.close()

    asyncio.run(main())


def test_what_a_result_brings_about_waits_its_turn() -> None:
    async def main() -> None:
        verifier, order = Verifier(), list[str]()

        def first(valid: bool) -> None:
            order.append("first")
            verifier.check(GOOD, lambda valid: order.append("third"))

        verifier.check(GOOD, first)
        verifier.check(GOOD, lambda valid: order.append("second"))
        await until(lambda: len(order) == 3)
        assert order == ["first", "second", "third"]
        await verifier.close()

    asyncio.run(main())


def test_the_loop_goes_on_while_many_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()

    def slow(signer: bytes, body: bytes, signature: bytes) -> bool:
        threads.add(threading.current_thread().name)
        gate.wait(10)
        return True

    gate = threading.Event()
    monkeypatch.setattr(module, "verify", slow)

    async def main() -> None:
        verifier, results = Verifier(), list[bool]()
        for _ in range(AT_ONCE_MAX + 1):
            verifier.check(GOOD, results.append)
        await asyncio.sleep(0.05)
        assert not results
        gate.set()
        await until(lambda: len(results) == AT_ONCE_MAX + 1)
        await verifier.close()

    asyncio.run(main())
    assert len(threads) == 1
    assert threads.pop().startswith("shoal-verify")


@pytest.mark.parametrize("count", [1, AT_ONCE_MAX * 4])
def test_closing_forgets_what_waits_and_leaves_no_thread(count: int) -> None:
    async def main() -> None:
        before = threading.active_count()
        verifier, log = Verifier(), Log()
        log.ask(verifier, count)
        if count > 1:
            await asyncio.sleep(0.001)  # a thread may be at it
        known = len(log.results)
        await verifier.close()
        log.ask(verifier, count)
        await asyncio.sleep(0.01)
        assert len(log.results) == known
        assert threading.active_count() == before
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
