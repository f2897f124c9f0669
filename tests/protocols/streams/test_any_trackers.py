"""Trackers that come, go, speak and are silent in any order: in the end all is with the best."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shoal.base.ids import NodeId, StreamId
from shoal.base.units import S_NS
from shoal.kernel.effects import Effect, Send
from shoal.protocols.streams.commands import JoinStream, LeaveStream
from shoal.protocols.streams.messages import Instruction, Join, Leave, Left
from tests.support.streams import STREAM, of_kind
from tests.support.tracker_guest import FIRST, RING, SECOND, THIRD, Guest

STREAMS = [STREAM, StreamId("x"), StreamId("y")]
trackers = st.sampled_from([FIRST, SECOND, THIRD])


class AnyTrackers(RuleBasedStateMachine):
    """Trackers come and go, speak and are silent, in any order.

    The node's own invariants are checked after each step. Here: it says Join only over a link
    that is up, and moves only to whoever instructs it; in the end, when some trackers are there and
    answer and the others stay dead, every stream is with its best one that lives, and all other
    links are gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guest = Guest()
        self.epoch = 1
        self.joined: dict[tuple[NodeId, StreamId], None] = {}
        self.dead: frozenset[NodeId] = frozenset()

    @initialize(dead=st.frozensets(trackers, max_size=2))
    def choose(self, dead: frozenset[NodeId]) -> None:
        self.dead = dead

    def do(self, effects: list[Effect]) -> None:
        for effect in of_kind(effects, Send):
            message: Any = effect.message
            for peer in effect.peers:
                if isinstance(message, Join):
                    assert self.guest.claims.get((peer, ""))
                    self.joined[peer, message.stream] = None
                    self.epoch = max(self.epoch, message.epoch)
                elif isinstance(message, Leave):
                    self.joined.pop((peer, message.stream), None)
                    if self.guest.claims.get((peer, "")):
                        self.do(self.guest.receive(peer, Left(message.stream)))

    @rule(stream=st.sampled_from(STREAMS))
    def toggle(self, stream: StreamId) -> None:
        inside = stream in self.guest.machine.streams
        self.do(self.guest.command(LeaveStream(stream) if inside else JoinStream(stream)))

    @rule(tracker=trackers)
    def comes(self, tracker: NodeId) -> None:
        self.do(self.guest.link_up(tracker))

    @rule(tracker=trackers)
    def goes(self, tracker: NodeId) -> None:
        self.joined = {key: None for key in self.joined if key[0] != tracker}
        self.do(self.guest.link_down(tracker))

    @rule(tracker=trackers, stream=st.sampled_from(STREAMS), newer=st.integers(-1, 2))
    def instructs(self, tracker: NodeId, stream: StreamId, newer: int) -> None:
        if self.guest.claims.get((tracker, "")):
            epoch = max(1, self.epoch + newer)
            self.epoch = max(self.epoch, epoch)  # the highest that anybody has named
            before = self.guest.machine.trackers.at(stream)
            self.do(self.guest.receive(tracker, Instruction(stream, epoch, 1, ())))
            after = self.guest.machine.trackers.at(stream)
            assert after in (before, tracker)

    @rule(tracker=trackers, stream=st.sampled_from(STREAMS))
    def denies(self, tracker: NodeId, stream: StreamId) -> None:
        if self.guest.claims.get((tracker, "")):
            self.do(self.guest.receive(tracker, Left(stream)))

    @precondition(lambda self: self.guest.timers)
    @rule(wait_ns=st.sampled_from([S_NS // 4, S_NS, 4 * S_NS, 20 * S_NS]))
    def wait(self, wait_ns: int) -> None:
        self.do(self.guest.advance(wait_ns))

    @invariant()
    def no_version_is_higher_than_what_trackers_named(self) -> None:
        for state in self.guest.machine.streams.values():
            assert state.overlay.epoch <= self.epoch

    def teardown(self) -> None:
        for _ in range(12):
            self.do(self.guest.advance(2 * S_NS))
            for tracker in RING.trackers:
                if tracker in self.dead:
                    self.goes(tracker)
                else:
                    self.do(self.guest.link_up(tracker))
            for tracker, stream in list(self.joined):
                self.epoch += 1  # as trackers do that are told of a later one
                order = Instruction(stream, self.epoch, 1, ())
                self.do(self.guest.receive(tracker, order))
        machine = self.guest.machine
        best = {
            stream: next(c.node for c in RING.order(stream) if c.node not in self.dead)
            for stream in machine.streams
        }
        assert {stream: machine.trackers.at(stream) for stream in machine.streams} == best
        held = {peer for (peer, purpose), up in self.guest.claims.items() if purpose == "" and up}
        assert held == set(best.values())


def test_any_order_of_deaths_and_returns() -> None:
    run_state_machine_as_test(
        AnyTrackers, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
