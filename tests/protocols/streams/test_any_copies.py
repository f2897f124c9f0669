"""Copies, forgeries and contradictions in any order: nothing is delivered twice, all is bounded."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.base.ids import MessageId, NodeId
from shoal.base.units import KIB, MS_NS
from shoal.identity.message_body import Position
from shoal.kernel.effects import Effect, Notify, PauseReading, ResumeReading, Verify
from shoal.kernel.records import Delivered, Equivocation, ReceivedFirst
from shoal.protocols.streams.config import NodeConfig
from shoal.protocols.streams.messages import Flood
from tests.support.flooding_floor import Floor
from tests.support.streams import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    EVE,
    MALLORY,
    body_of,
    flood_of,
    is_signed,
    message_id,
    node,
    of_kind,
    reasons,
)

SMALL = NodeConfig(
    pending_bytes_low=4 * KIB,
    pending_bytes_high=8 * KIB,
    pending_bytes_max=12 * KIB,
    chains_per_publisher_max=1,
    chains_per_stream_max=2,
    ranges_per_chain_max=3,
    freshness_ns=10 * MS_NS,
    future_ns=3 * MS_NS,
)
PUBLISHERS = (CAROL, EVE, node(99))


class AnyCopies(RuleBasedStateMachine):
    """Copies, forgeries and contradictions from several neighbours, checks that take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.floor = Floor(SMALL, subscribed=True)
        self.waiting: list[Verify] = []
        self.paused: set[NodeId] = set()
        self.taken: set[MessageId] = set()
        self.delivered: set[MessageId] = set()
        self.contradicted: set[MessageId] = set()
        self.made: list[Flood] = []

    @rule(
        peer=st.sampled_from([ALICE, BOB, DAVE, MALLORY]),
        publisher=st.sampled_from(PUBLISHERS),
        chain=st.sampled_from("abc"),
        age_ms=st.integers(-4, 12),
        sequence=st.integers(0, 1),
        back=st.none() | st.integers(-2, 6),
        content=st.sampled_from([b"one", b"two"]),
        honest=st.booleans(),
    )
    def new_copy(
        self,
        peer: NodeId,
        publisher: NodeId,
        chain: str,
        age_ms: int,
        sequence: int,
        back: int | None,
        content: bytes,
        honest: bool,
    ) -> None:
        timestamp_ms = self.floor.now_ns // MS_NS - age_ms
        id = message_id(sequence, publisher=publisher, chain=chain, timestamp_ms=timestamp_ms)
        previous = None if back is None else Position(timestamp_ms - back, sequence)
        flood = flood_of(body_of(id, content, previous), signer=None if honest else MALLORY)
        self.made.append(flood)
        self.arrives(peer, flood)

    @rule(peer=st.sampled_from([ALICE, BOB, DAVE]), data=st.data())
    def old_copy(self, peer: NodeId, data: st.DataObject) -> None:
        if self.made:
            self.arrives(peer, data.draw(st.sampled_from(self.made)))

    def arrives(self, peer: NodeId, flood: Flood) -> None:
        effects = self.floor.receive(peer, flood)
        self.waiting += of_kind(effects, Verify)
        self.reads(effects)

    def reads(self, effects: list[Effect]) -> None:
        """Links are paused and resumed in turn."""
        for pause in of_kind(effects, PauseReading):
            assert pause.peer not in self.paused
            self.paused.add(pause.peer)
        for resume in of_kind(effects, ResumeReading):
            self.paused.remove(resume.peer)

    @rule(count=st.integers(1, 4))
    def checks_return(self, count: int) -> None:
        for check in self.waiting[:count]:
            token: object = check.token
            assert isinstance(token, bytes)
            valid = is_signed(check)
            effects = self.floor.flooding.verified(token, valid, self.floor.now_ns)
            self.reads(effects)
            effects = [effect for effect in effects if type(effect) is not ResumeReading]
            self.taken.update(record.message for record in of_kind(effects, ReceivedFirst))
            for record in of_kind(effects, Delivered):
                assert valid
                assert record.message not in self.delivered
                self.delivered.add(record.message)
            assert not valid or "bad-signature" not in reasons(effects)
            for found in of_kind(effects, Equivocation):
                assert valid
                assert effects == [found, of_kind(effects, Notify)[0]]  # goes nowhere else
                assert found.message in self.taken  # and delivered, when its turn comes
                assert found.message not in self.contradicted
                self.contradicted.add(found.message)
        del self.waiting[:count]

    @rule(ms=st.integers(1, 8) | st.just(1000))
    def time_passes(self, ms: int) -> None:
        self.floor.now_ns += ms * MS_NS

    @invariant()
    def bounded(self) -> None:
        assert self.floor.flooding.pending_count() == len(self.waiting) <= 3 * 3
        assert self.floor.channel.seen.chain_count() <= 1 * 2
        assert self.waiting or not self.paused


def test_whatever_comes_nothing_is_delivered_twice_and_all_is_bounded() -> None:
    run_state_machine_as_test(
        AnyCopies, settings=settings(max_examples=200, stateful_step_count=50)
    )
