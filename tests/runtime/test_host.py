"""What a host does with commands, timers and signatures, and with machines that fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import MS_NS, S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import CancelTimer, Effect, Load, Notify, Send, SetTimer, Store, Verify
from shoal.kernel.inputs import CommandIssued, Input, MessageReceived, Started, TimerFired, Verified
from shoal.kernel.records import Record, Rejected, Undeliverable
from shoal.runtime import RuntimeHost
from shoal.runtime import clock as clock_module
from shoal.runtime.workers import THREAD_MIN
from shoal.transport.memory import MemoryTransport
from tests.runtime.world import World, perform, reasons
from tests.support.machines import Note, Scripted, echo, peer_id
from tests.transport.recorder import until

# Machines that fail


def fail_on_13(event: Input) -> Sequence[Effect]:
    match event:
        case MessageReceived(_, Note(13)):
            raise RuntimeError("planted")
        case _:
            return echo(event)


def test_a_machine_that_fails_is_counted_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        bob.machine.react = fail_on_13
        alice.send(bob, 12, 13, 14)
        await until(lambda: alice.machine.notes() == [12, 14])
        assert reasons(bob) == ["machine-failed"]
        assert alice.id in bob.host.connections

    with caplog.at_level(logging.CRITICAL):
        perform(scenario)


def test_inputs_behind_the_one_that_a_machine_failed_on_are_handled() -> None:
    class Failing(Scripted):
        def handle(self, event: Input, now_ns: int) -> Sequence[Effect]:
            if isinstance(event, TimerFired):
                self.inputs.append(event)
                return [Send(Note(13), (own,)), Send(Note(14), (own,))]
            return super().handle(event, now_ns)

    own = PrivateKey.generate(SeededEntropy("alice")).address

    async def scenario(world: World) -> None:
        machine = Failing(react=fail_on_13)
        alice = await world.enter("alice", machines=[machine])
        alice.do(SetTimer("go", 0))
        await until(lambda: machine.notes() == [13, 14, 14])
        assert reasons(alice) == ["machine-failed"]

    perform(scenario)


def test_observers_and_listeners_that_fail_disturb_nobody() -> None:
    def planted(*given: Any) -> None:
        raise RuntimeError("planted")

    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        heard: list[Any] = []
        alice.host.observers.insert(0, planted)
        alice.host.listeners.extend([planted, heard.append])
        alice.do(Notify("news"), Send(Note(1), (bob.id, peer_id(9))))
        await until(lambda: bob.machine.notes() == [1])
        assert heard == ["news"]
        assert alice.recorded(Undeliverable) == [Undeliverable(peer_id(9))]

    perform(scenario)


def test_a_node_without_a_disk_says_so() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        with pytest.raises(UsageError, match="no disk"):
            alice.do(Store(b"key", b"value", 1))
        with pytest.raises(UsageError, match="no disk"):
            alice.do(Load(b"key", 1))

    perform(scenario)


# Commands


def test_what_a_command_says_at_once_is_said_when_issue_returns() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        heard: list[Any] = []
        alice.host.listeners.append(heard.append)
        await alice.host.issue(alice.machine, [Notify("said")], "token")
        assert heard == ["said"]
        assert alice.machine.inputs[-1] == CommandIssued([Notify("said")], "token")
        with pytest.raises(UsageError, match="in the past"):
            await alice.host.issue(alice.machine, [SetTimer("x", -1)])

    perform(scenario)


def test_a_command_from_within_a_step_waits_for_its_end() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        story: list[str] = []

        def listener(event: Any) -> None:
            story.append(event)
            if event == "outer":
                step_by_hand()

        def step_by_hand() -> None:
            """A task that starts eagerly runs within whatever starts it."""
            coroutine = alice.host.issue(alice.machine, [Notify("inner")])
            coroutine.send(None)
            story.append("waits")
            waiting.append(coroutine)

        waiting: list[Any] = []
        alice.host.listeners.append(listener)
        await alice.host.issue(alice.machine, [Notify("outer"), Notify("rest")])
        with pytest.raises(StopIteration):
            waiting[0].send(None)
        assert story == ["outer", "waits", "rest", "inner"]

    perform(scenario)


def test_a_fault_of_another_machine_is_not_the_caller_s() -> None:
    async def scenario(world: World) -> None:
        machine, other = Scripted(accepts=()), Scripted(react=fail_on_13)
        alice = await world.enter("alice", machines=[machine, other])
        to_both = [Send(Note(13), (alice.id,)), Send(Note(14), (alice.id,))]
        await alice.host.issue(machine, to_both)
        assert other.notes() == [13, 14, 14]
        assert reasons(alice) == ["machine-failed"]

    perform(scenario)


# Timers


def test_timers_fire_once_and_may_be_replaced_and_cancelled() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        alice.do(
            SetTimer("late", 60 * MS_NS),
            SetTimer("early", 20 * MS_NS),
            SetTimer("at once", 0),
            SetTimer("replaced", 1 * MS_NS),
            SetTimer("replaced", 40 * MS_NS),
            SetTimer("cancelled", 10 * MS_NS),
            CancelTimer("cancelled"),
            CancelTimer("never set"),
        )
        begin_s = time.monotonic()
        await until(lambda: len(alice.machine.heard(TimerFired)) == 4)
        assert time.monotonic() - begin_s >= 0.055
        await asyncio.sleep(0.05)
        keys = [e.key for e in alice.machine.inputs if isinstance(e, TimerFired)]
        assert keys == ["at once", "early", "replaced", "late"]
        assert not alice.host._timers
        alice.do(SetTimer("never", 3600 * S_NS))

    perform(scenario)


def test_time_goes_on_when_the_system_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        first_ns = alice.host.now_ns()
        monkeypatch.setattr(clock_module, "time_ns", lambda: first_ns - 3600 * S_NS)
        await asyncio.sleep(0.01)
        assert first_ns + 5 * MS_NS <= alice.host.now_ns() <= first_ns + 5 * S_NS

    perform(scenario)


# Signatures


@pytest.mark.parametrize("count", [3, THREAD_MIN + 1])
def test_checks_come_back_in_order(count: int) -> None:
    key = PrivateKey.generate(SeededEntropy("signer"))
    good, bad = key.sign(b"body"), key.sign(b"other")

    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        alice.do(
            *[Verify(key.address, (bad if n % 3 else good) + b"body", n) for n in range(count)],
        )
        assert not alice.machine.heard(Verified), "not from within"
        await until(lambda: len(alice.machine.heard(Verified)) == count)
        expected = [Verified(number, number % 3 == 0) for number in range(count)]
        assert alice.machine.heard(Verified) == expected

    perform(scenario)


# Opening


def test_an_address_that_nobody_serves_is_refused() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        host = RuntimeHost(peer_id(3), [], [], rng=Random(1))
        transport = MemoryTransport(alice.credentials, host, network=world.network)
        with pytest.raises(UsageError, match=r"cannot listen on 'http://x': use memory"):
            await host.open([transport], ["http://x"])

    perform(scenario)


def test_every_machine_starts_with_the_addresses_first() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        assert alice.machine.inputs == [Started((alice.address,))]
        assert alice.address.startswith("memory:")

    perform(scenario)


def test_records_are_stamped_with_the_time() -> None:
    async def scenario(world: World) -> None:
        alice = await world.enter("alice")
        seen: list[tuple[int, Record]] = []
        alice.host.observers.append(lambda now_ns, record: seen.append((now_ns, record)))
        before_ns = alice.host.now_ns()
        alice.host.rejected(peer_id(1), "test")
        assert [record for _, record in seen] == [Rejected(peer_id(1), "test")]
        assert before_ns <= seen[0][0] <= alice.host.now_ns()

    perform(scenario)
