"""A simulation as a whole: failures that can be seen again, checkers, traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shoal.base.errors import InvariantViolated, UsageError
from shoal.base.ids import MessageId, StreamId
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.kernel.inputs import Input, TimerFired
from shoal.kernel.records import Delivered, LinkUp, Published, Rejected
from shoal.sim import ConstantDelay, SimNode, Simulation, SimulationFailure
from shoal.sim.checkers import DeliveredOnce, MachineInvariants
from shoal.sim.trace import BATCH_ROWS, Trace, TraceHash
from tests.support.machines import Note, Scripted, peer_id
from tests.support.tiny_network import TinyNetwork

MESSAGE = MessageId(StreamId("s"), 0, 1, 0, peer_id(0), "1")
REPLAY = "shoal lab run streams-smoke --seed 42"


# Failures


class Broken(Scripted):
    """Its state becomes impossible with the first timer."""

    def check_invariants(self) -> None:
        if any(isinstance(event, TimerFired) for event in self.inputs):
            raise InvariantViolated("two plus two is five")


def broken(checkers: Sequence[Any]) -> Simulation:
    simulation = Simulation(42, ConstantDelay(), checkers=checkers, replay=REPLAY)
    node = simulation.add_node(peer_id(0), lambda _: [Broken()])
    node.start()
    node.command(0, [SetTimer("tick", 1_500_000_000)])
    return simulation


def test_a_failure_names_seed_time_and_the_command_that_replays_it() -> None:
    with pytest.raises(SimulationFailure) as failure:
        broken([MachineInvariants()]).run_for(5)
    assert str(failure.value) == (
        "seed 42, t = 1.500000 s: InvariantViolated: two plus two is five\n"
        "replay: shoal lab run streams-smoke --seed 42"
    )
    assert isinstance(failure.value.__cause__, InvariantViolated)


def test_liveness_is_checked_when_all_is_quiet() -> None:
    simulation = broken([])
    simulation.run_for(5)
    simulation.checkers.append(MachineInvariants())
    with pytest.raises(
        SimulationFailure, match=r"seed 42, t = 5\.000000 s: .*two plus two is five"
    ):
        simulation.check_quiet()


def test_a_machine_that_raises_is_a_failure_too() -> None:
    def react(event: Input) -> Sequence[Effect]:
        if isinstance(event, TimerFired):
            raise ZeroDivisionError("oops")
        return ()

    net = TinyNetwork(1, react=react)
    net.do(0, SetTimer("tick", 1))
    with pytest.raises(SimulationFailure, match=r"seed 1, .*ZeroDivisionError: oops$"):
        net.run(1)


def test_the_trace_is_complete_up_to_the_failure() -> None:
    last_words = Rejected(peer_id(0), "last words")
    net = TinyNetwork(1)
    net.at(1, 0, last_words)
    net.at(2, 0, SetTimer("before now", -1))
    with pytest.raises(SimulationFailure, match=r"t = 2\.000000 s: UsageError"):
        net.run(3)
    assert [row[2] for row in net.rows] == [last_words]


def test_a_message_without_codec_is_refused_by_name() -> None:
    net = TinyNetwork(wire=True, codecs=[])
    net.link()
    with pytest.raises(UsageError, match="no codec for Note: pass it in codecs="):
        net.do(0, Send(Note(1), (peer_id(1),)))


def test_one_id_is_one_node() -> None:
    net = TinyNetwork()
    with pytest.raises(UsageError, match="exists already"):
        net.simulation.add_node(peer_id(0), lambda _: [])


# Checkers


def watched(*checkers: Any) -> TinyNetwork:
    return TinyNetwork(2, checkers=checkers)


def test_delivered_once_takes_each_message_once_per_node_and_incarnation() -> None:
    checker = DeliveredOnce()
    net = watched(checker)
    net.do(0, Published(MESSAGE, 1), Delivered(MESSAGE, 0, 0))
    net.do(1, Delivered(MESSAGE, 1, 0))
    net.nodes[1].crash()
    net.nodes[1].start()
    net.do(1, Delivered(MESSAGE, 1, 0))
    assert checker.delivered(net.nodes[1]) == {MESSAGE}
    with pytest.raises(InvariantViolated, match="twice"):
        net.do(1, Delivered(MESSAGE, 1, 0))


def test_delivered_once_knows_what_was_published() -> None:
    net = watched(DeliveredOnce())
    with pytest.raises(InvariantViolated, match="unpublished"):
        net.do(1, Delivered(MESSAGE, 1, 0))


def test_checkers_see_every_step_with_its_effects() -> None:
    seen: list[tuple[int, Input, Sequence[Effect]]] = []

    class Log:
        def step(self, node: SimNode, event: Input, effects: Sequence[Effect]) -> None:
            seen.append((node.index, event, effects))

        def quiet(self, simulation: Simulation) -> None:
            seen.append((-1, TimerFired("quiet"), ()))

    net = watched(Log())
    net.do(0, SetTimer("tick", 5))
    net.run(1)
    net.simulation.check_quiet()
    assert [(index, effects) for index, _, effects in seen] == [
        (0, ()),
        (1, ()),
        (0, (SetTimer("tick", 5),)),
        (0, ()),
        (-1, ()),
    ]


# Applications and progress


def test_applications_hear_what_machines_notify() -> None:
    net = TinyNetwork()
    heard: list[Any] = []
    net.nodes[0].listeners.append(heard.append)
    net.do(0, Notify("hello"))
    net.do(1, Notify("not for you"))
    assert heard == ["hello"]


def test_long_runs_show_progress() -> None:
    def again(event: Input) -> Sequence[Effect]:
        return [SetTimer("tick", 1000)]

    net = TinyNetwork(1, react=again)
    calls: list[float] = []
    net.simulation.progress = lambda simulation: calls.append(simulation.time_s)
    net.run(0.05)
    assert len(calls) == 2
    assert calls == sorted(calls)
    assert net.simulation.scheduler.happened == 50_000


# Traces


def test_a_trace_hands_on_every_record_in_order_and_in_batches() -> None:
    trace = Trace()
    batches: list[int] = []
    numbers: list[int] = []
    trace.to(lambda rows: batches.append(len(rows)))
    trace.to(lambda rows: numbers.extend(row[0] for row in rows))
    for number in range(BATCH_ROWS + 3):
        trace.add(number, peer_id(0), LinkUp(peer_id(1)))
    trace.flush()
    assert batches == [BATCH_ROWS, 3]
    assert numbers == list(range(BATCH_ROWS + 3))
    assert trace.rows == BATCH_ROWS + 3


def test_a_hash_depends_on_content_and_order_and_not_on_batches() -> None:
    a = (1, peer_id(0), LinkUp(peer_id(1)))
    b = (1, peer_id(0), LinkUp(peer_id(2)))
    rejected = (1, peer_id(0), Rejected(peer_id(1), ""))

    def digest(*batches: list[Any]) -> str:
        hashed = TraceHash()
        for batch in batches:
            hashed(batch)
        return hashed.hexdigest()

    assert digest([a, b]) == digest([a], [b]) == digest([], [a, b])
    assert len({digest([a, b]), digest([b, a]), digest([a]), digest([rejected])}) == 4
