"""Questions under way: each ends once, whatever becomes of links and peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.base.ids import Contact, NodeId
from shoal.kernel.effects import Effect, OpenLink, Send, SetTimer
from shoal.kernel.records import Rejected
from shoal.protocols.dht.config import DhtConfig
from shoal.protocols.dht.messages import Nodes, Ping, Pong
from shoal.protocols.dht.request_tracker import CALLS, SLOW, Calls
from tests.support.dht import contact

CONFIG = DhtConfig(call_timeout_ns=10, slow_ns=6)
BOB, EVE = contact(1), contact(2)


class Asking:
    """Calls, and what came of them."""

    def __init__(self) -> None:
        self.heard: list[NodeId] = []
        self.lost: list[NodeId] = []
        self.answers: list[Any] = []
        self.calls = Calls(CONFIG, self._heard, self.lost.append)

    def _heard(self, peer: Contact, now_ns: int) -> list[Effect]:
        self.heard.append(peer.node)
        return []

    def then(self, answer: Any, now_ns: int) -> list[Effect]:
        self.answers.append(answer)
        return []

    def ping(self, peer: Contact = BOB, now_ns: int = 0) -> list[Effect]:
        return self.calls.ask(peer, Ping, (), self.then, now_ns)


def test_a_question_waits_for_its_link_and_asks_softly() -> None:
    asking = Asking()
    assert asking.ping() == [SetTimer(CALLS, 10), OpenLink(BOB, "dht", soft=True)]
    assert asking.ping() == []
    assert asking.calls.link_opened(BOB.node) == [
        Send(Ping(1, ()), (BOB.node,)),
        Send(Ping(2, ()), (BOB.node,)),
    ]
    assert asking.ping() == [Send(Ping(3, ()), (BOB.node,))]


def test_answers_that_nobody_asked_for_are_counted_and_ignored() -> None:
    asking = Asking()
    asking.ping()
    asking.calls.link_opened(BOB.node)
    unasked = [Rejected(EVE.node, "unasked-answer")]
    assert asking.calls.answered(EVE.node, Pong(1), 1) == unasked
    assert asking.calls.answered(BOB.node, Pong(2), 1) == [Rejected(BOB.node, "unasked-answer")]
    assert asking.calls.answered(BOB.node, Nodes(1, ()), 1) == [Rejected(BOB.node, "wrong-answer")]
    assert asking.answers == []
    asking.calls.answered(BOB.node, Pong(1), 1)
    assert asking.answers == [Pong(1)]
    assert asking.heard == [BOB.node]
    # A second time it is not asked for any more.
    assert asking.calls.answered(BOB.node, Pong(1), 1) == [Rejected(BOB.node, "unasked-answer")]


def test_silence_is_a_failure_and_an_answer_after_it_is_late() -> None:
    asking = Asking()
    asking.ping()
    asking.ping(EVE, now_ns=4)
    asking.calls.link_opened(BOB.node)
    assert asking.calls.tick(10) == [SetTimer(CALLS, 4)]
    assert asking.answers == [None]
    assert asking.lost == [BOB.node]
    assert asking.calls.answered(BOB.node, Pong(1), 11) == [Rejected(BOB.node, "unasked-answer")]


def test_who_lets_a_question_wait_is_slow_until_it_answers() -> None:
    asking, gone_on = Asking(), list[int]()

    def go_on(now_ns: int) -> list[Effect]:
        gone_on.append(now_ns)
        return []

    def ask(peer: Contact, now_ns: int) -> list[Effect]:
        return asking.calls.ask(peer, Ping, (), asking.then, now_ns, go_on)

    assert SetTimer(SLOW, 6) in ask(BOB, 0)
    ask(EVE, 2)
    asking.calls.link_opened(BOB.node)
    asking.calls.link_opened(EVE.node)
    assert asking.calls.slow_tick(6) == [SetTimer(SLOW, 2)]
    assert (gone_on, asking.answers) == ([6], []), "its answer still counts"
    asking.calls.answered(EVE.node, Pong(2), 7)
    assert asking.calls.slow_tick(8) == []
    assert [asking.calls.is_slow(one.node) for one in (BOB, EVE)] == [True, False]
    asking.calls.tick(10)
    assert asking.answers == [Pong(2), None]
    assert asking.calls.is_slow(BOB.node)
    ask(BOB, 11)
    asking.calls.answered(BOB.node, Pong(3), 12)
    assert not asking.calls.is_slow(BOB.node)
    assert gone_on == [6]


def test_a_link_that_goes_is_opened_once_more() -> None:
    asking = Asking()
    asking.ping()
    asking.calls.link_opened(BOB.node)
    assert asking.calls.link_lost(BOB.node, 1) == [OpenLink(BOB, "dht", soft=True)]
    assert asking.calls.link_opened(BOB.node) == [Send(Ping(1, ()), (BOB.node,))]
    assert asking.calls.link_lost(BOB.node, 2) == []
    assert asking.answers == [None]
    assert asking.lost == [BOB.node]


def test_who_cannot_be_dialled_has_failed() -> None:
    asking = Asking()
    asking.ping()
    asking.calls.link_lost(BOB.node, 1)
    assert asking.answers == [None]
    assert asking.calls.tick(10) == []


def test_a_link_without_questions_goes_without_a_word() -> None:
    asking = Asking()
    assert asking.calls.claim(BOB) == [OpenLink(BOB, "dht", soft=True)]
    asking.calls.link_opened(BOB.node)
    assert asking.calls.claim(BOB) == []
    assert asking.calls.link_lost(BOB.node, 1) == []
    assert asking.lost == []


class CallStory(RuleBasedStateMachine):
    """The test is driver and peers; follow-up questions are asked from within answers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls(CONFIG, lambda peer, now_ns: [], lambda node: None)
        self.now_ns = 0
        self.timers_ns: dict[str, int] = {}
        self.gone_on: list[int] = []
        self.up: dict[NodeId, None] = {}
        self.dialling: dict[NodeId, None] = {}
        self.asked = 0
        self.ended: list[int] = []
        self.unanswered: dict[tuple[NodeId, int], None] = {}

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                assert isinstance(effect.key, str)
                self.timers_ns[effect.key] = self.now_ns + effect.delay_ns
            elif isinstance(effect, OpenLink):
                assert effect.contact.node not in self.up
                assert effect.contact.node not in self.dialling
                self.dialling[effect.contact.node] = None
            elif isinstance(effect, Send):
                assert effect.peers[0] in self.up, "sent without a link"
                self.unanswered[effect.peers[0], effect.message.request] = None

    def then(self, number: int, again: bool) -> Callable[[Any, int], list[Effect]]:
        def ended(answer: Any, now_ns: int) -> list[Effect]:
            self.ended.append(number)
            return self.begin(contact(1 + number % 3), False) if again else []

        return ended

    def begin(self, peer: Contact, again: bool, impatient: bool = False) -> list[Effect]:
        self.asked += 1
        number = self.asked

        def go_on(now_ns: int) -> list[Effect]:
            assert number not in self.ended
            assert self.calls.is_slow(peer.node)
            self.gone_on.append(number)
            return self.begin(contact(1 + number % 3), False)

        then = self.then(number, again)
        args = (peer, Ping, (), then, self.now_ns)
        return self.calls.ask(*args, go_on) if impatient else self.calls.ask(*args)

    @rule(number=st.integers(1, 3), again=st.booleans(), impatient=st.booleans())
    def ask(self, number: int, again: bool, impatient: bool) -> None:
        self.do(self.begin(contact(number), again, impatient))

    @precondition(lambda self: self.dialling)
    @rule(data=st.data(), success=st.booleans())
    def dial_ends(self, data: st.DataObject, success: bool) -> None:
        peer = data.draw(st.sampled_from(list(self.dialling)))
        del self.dialling[peer]
        if success:
            self.up[peer] = None
            self.do(self.calls.link_opened(peer))
        else:
            self.do(self.calls.link_lost(peer, self.now_ns))

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def link_breaks(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(list(self.up)))
        del self.up[peer]
        self.do(self.calls.link_lost(peer, self.now_ns))

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        peer, request = data.draw(st.sampled_from(list(self.unanswered)))
        del self.unanswered[peer, request]
        self.do(self.calls.answered(peer, Pong(request), self.now_ns))

    @rule(passed_ns=st.integers(1, 12))
    def time_passes(self, passed_ns: int) -> None:
        end_ns = self.now_ns + passed_ns
        while due := [(at, key) for key, at in self.timers_ns.items() if at <= end_ns]:
            self.now_ns, key = min(due)
            del self.timers_ns[key]
            tick = self.calls.tick if key == CALLS else self.calls.slow_tick
            self.do(tick(self.now_ns))
        self.now_ns = end_ns

    @invariant()
    def every_question_ends_once(self) -> None:
        self.calls.check_invariants()
        assert len(set(self.ended)) == len(self.ended)
        assert len(set(self.gone_on)) == len(self.gone_on)
        assert len(self.ended) + len(self.calls) == self.asked

    def teardown(self) -> None:
        self.time_passes(100)
        assert len(self.calls) == 0, "a question hangs"


TestCallStory = CallStory.TestCase
TestCallStory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
