"""What a host does with bytes that make no sense, machines that fail, and queues that fill."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from shoal.base.errors import UsageError
from shoal.base.units import KIB, MS_NS, S_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.kernel.effects import (
    CancelTimer,
    Effect,
    Load,
    Notify,
    PauseReading,
    ResumeReading,
    Send,
    SetTimer,
    Store,
    Verify,
)
from shoal.kernel.inputs import (
    CommandIssued,
    Input,
    LinkClosed,
    MessageReceived,
    SendQueueHigh,
    SendQueueLow,
    Started,
    TimerFired,
    Verified,
)
from shoal.kernel.records import Record, Rejected, Undeliverable
from shoal.runtime import RuntimeHost
from shoal.runtime import clock as clock_module
from shoal.runtime.host import MALFORMED_MAX
from shoal.runtime.verifier import THREAD_MIN
from shoal.transport.memory import MemoryTransport
from shoal.transport.port import Credentials, Link, TransportLimits
from tests.runtime.world import PAYLOAD_BYTES_MAX, PURPOSE, Inhabitant, World, perform
from tests.support.machines import Note, NoteCodec, Other, Scripted, echo, peer_id
from tests.transport.recorder import Recorder, until

NOTES = NoteCodec.number
SMALL = TransportLimits(
    queue_low_bytes=4 * KIB, queue_high_bytes=16 * KIB, queue_max_bytes=256 * KIB
)


def reasons(inhabitant: Inhabitant) -> list[str]:
    return [record.reason for record in inhabitant.recorded(Rejected)]


async def stranger(world: World, target: Inhabitant, name: str = "stranger") -> Link:
    """A peer that has a key and says what it likes."""
    entropy = SeededEntropy(name)
    credentials = Credentials(PrivateKey.generate(entropy), entropy)
    transport = MemoryTransport(credentials, Recorder(), network=world.network)
    return await transport.dial(target.address, target.id)


# Bytes that make no sense


@pytest.mark.parametrize(
    ("protocol", "payload", "reason"),
    [
        (NOTES, b"junk", "malformed"),
        (NOTES, bytes(PAYLOAD_BYTES_MAX + 1), "oversized"),
        (77, b"", "no-such-protocol"),
    ],
)
def test_nonsense_is_counted_and_past_the_limit_costs_the_link(
    protocol: int, payload: bytes, reason: str
) -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        link = await stranger(world, bob)
        for number in range(MALFORMED_MAX - 1):
            link.send(protocol, payload)
            link.send(NOTES, NoteCodec().encode(Note(number)))
            alice.send(bob, 1000 + number)
        expected = 2 * (MALFORMED_MAX - 1)
        await until(lambda: len(bob.machine.notes()) == expected)
        assert reasons(bob) == [reason] * (MALFORMED_MAX - 1)
        assert len(bob.host.connections) == 2, "not yet"
        link.send(protocol, payload)
        await until(lambda: len(bob.host.connections) == 1)
        assert reasons(bob) == [reason] * MALFORMED_MAX
        # Everybody else goes on.
        alice.send(bob, 2000)
        await until(lambda: bob.machine.notes()[-1:] == [2000])

    perform(scenario)


def test_what_stands_behind_the_last_straw_is_not_read() -> None:
    async def scenario(world: World) -> None:
        bob = await world.enter("bob")
        link = await stranger(world, bob)
        for _ in range(MALFORMED_MAX):
            link.send(NOTES, b"junk")
        link.send(NOTES, NoteCodec().encode(Note(1)))  # in the same message
        await until(lambda: len(reasons(bob)) >= MALFORMED_MAX)
        await asyncio.sleep(0.02)
        assert reasons(bob) == ["malformed"] * MALFORMED_MAX
        assert not bob.machine.notes()
        assert not bob.host.connections

    perform(scenario)


def test_a_message_for_a_role_that_this_node_has_not_is_counted() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked()
        alice.do(Send(Other(), (bob.id,)), Send(Note(1), (bob.id,)))
        await until(lambda: bob.machine.notes() == [1])
        assert reasons(bob) == ["no-such-role"]

    perform(scenario)


def test_a_broken_frame_is_counted_and_ends_the_link() -> None:
    async def scenario(world: World) -> None:
        small = TransportLimits(frame_bytes_max=1024)
        bob = await world.enter("bob", transport_limits=small)
        link = await stranger(world, bob)
        link.send(NOTES, bytes(100_000))
        await until(lambda: reasons(bob) == ["oversized"])
        await until(lambda: not bob.host.connections)

    perform(scenario)


def test_a_failed_handshake_is_counted() -> None:
    async def scenario(world: World) -> None:
        bob = await world.enter("bob")
        bob.host.handshake_failed("memory:x", "timeout")
        assert bob.recorded(Rejected) == [Rejected(bob.id, "handshake-timeout")]

    perform(scenario)


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


# Back-pressure


def test_full_queues_reach_the_machines_and_publishers_wait() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL)
        carol = await world.enter("carol", transport_limits=SMALL)
        alice.claim(carol)
        await until(lambda: carol.id in alice.host.connections)
        await alice.host.wait_for_room(S_NS)  # there is room
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(40), padding=1024)
        await until(lambda: alice.machine.heard(SendQueueHigh))
        assert alice.machine.heard(SendQueueHigh) == [SendQueueHigh(bob.id)]
        waiting = asyncio.ensure_future(alice.host.wait_for_room(30 * S_NS))
        alice.send(carol, 1)
        await until(lambda: carol.machine.notes() == [1])
        assert not waiting.done()
        bob.do(ResumeReading(alice.id))
        await until(lambda: alice.machine.heard(SendQueueLow))
        assert alice.machine.heard(SendQueueLow) == [SendQueueLow(bob.id)]
        await waiting
        await until(lambda: bob.machine.notes() == list(range(40)))

    perform(scenario)


def test_patience_with_a_stuck_peer_ends_and_costs_once() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL)
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(40), padding=1024)
        await until(lambda: alice.machine.heard(SendQueueHigh))
        begin_s = time.monotonic()
        await asyncio.gather(*(alice.host.wait_for_room(100 * MS_NS) for _ in range(3)))
        assert time.monotonic() - begin_s >= 0.09
        async with asyncio.timeout(10):
            await alice.host.wait_for_room(3600 * S_NS)
        # At the bound the link is given up, and whoever wants it hears so.
        alice.send(bob, *range(300), padding=1024)
        await until(lambda: alice.machine.heard(LinkClosed))
        assert alice.machine.heard(LinkClosed) == [LinkClosed(bob.id, PURPOSE, "too-slow")]

    perform(scenario)


def test_a_peer_that_goes_away_takes_its_congestion_along() -> None:
    async def scenario(world: World) -> None:
        alice, bob = await world.linked(transport_limits=SMALL)
        bob.do(PauseReading(alice.id))
        alice.send(bob, *range(40), padding=1024)
        await until(lambda: alice.machine.heard(SendQueueHigh))
        waiting = asyncio.ensure_future(alice.host.wait_for_room(3600 * S_NS))
        await asyncio.sleep(0)
        alice.host.connections[bob.id]._carrier.abort("lost")  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            await waiting

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
