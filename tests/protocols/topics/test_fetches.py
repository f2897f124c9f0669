"""Looking for events: neighbours first, then the DHT, then again."""

from __future__ import annotations

from typing import Any

from shoal.base.ids import NodeId
from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid, cid_of
from shoal.kernel.effects import Effect, Send, SetTimer
from shoal.protocols.dht.commands import Get
from shoal.protocols.topics.config import NAMED_MAX, TopicsConfig
from shoal.protocols.topics.event_log import TopicLog
from shoal.protocols.topics.fetching import (
    BEHIND_MIN,
    DHT_QUESTIONS_MAX,
    GET,
    KNOWN_MAX,
    PAUSE_MAX_NS,
    PAUSE_NS,
    WANT,
    Fetches,
)
from shoal.protocols.topics.messages import Want
from tests.protocols.topics.test_log import entry_of, id_of
from tests.support.machines import peer_id
from tests.support.topics import TOPIC_CID

ME, A, B, C = (peer_id(n) for n in range(4))
CONFIG = TopicsConfig()
TIMER = SetTimer((WANT, TOPIC_CID), CONFIG.want_timeout_ns)
X, Y = cid_of(b"x"), cid_of(b"y")


class Bench:
    def __init__(self, *neighbours: NodeId, config: TopicsConfig = CONFIG) -> None:
        self.log = TopicLog()
        self.neighbours = list(neighbours)
        self.checking: set[Cid] = set()
        self.fetches = Fetches(
            TOPIC_CID, ME, self.log, lambda: self.neighbours, self.checking, config
        )
        self.now_ns = 0

    def need(self, *ids: Cid, source: NodeId | None = None, token: Any = None) -> None:
        for id in ids:
            self.fetches.need(id, source, self.now_ns, token)

    def asks(self) -> list[tuple[NodeId | None, tuple[Cid, ...]]]:
        """Who is asked for what now; None is the DHT."""
        return asked(self.fetches.ask(self.now_ns))

    def tick(self, after_ns: int) -> dict[Cid, tuple[Any, ...]]:
        self.now_ns += after_ns
        hopeless, self.effects = self.fetches.tick(self.now_ns)
        return hopeless


def asked(effects: list[Effect]) -> list[tuple[NodeId | None, tuple[Cid, ...]]]:
    found: list[tuple[NodeId | None, tuple[Cid, ...]]] = []
    for effect in effects:
        match effect:
            case Send(Get(key, (kind, topic, id)), peers):
                assert (kind, topic, id, peers) == (GET, TOPIC_CID, key, (ME,))
                found.append((None, (Cid(key),)))
            case Send(rpc, (peer,)):
                (want,) = rpc.messages
                assert isinstance(want, Want)
                found.append((peer, want.events))
    return found


def test_whoever_named_it_is_asked_then_neighbours_then_the_dht() -> None:
    bench = Bench(A, B)
    bench.need(X, source=C)
    assert bench.asks() == [(C, (X,))]
    assert bench.asks() == [], "it is under way"
    for peer, after in ((C, A), (A, B)):
        bench.fetches.lacked(peer, [X, Y], 0)
        assert bench.asks() == [(after, (X,))]
    bench.fetches.lacked(A, [X], 0)
    assert bench.asks() == [], "somebody else is asked now"
    bench.fetches.lacked(B, [X], 0)
    assert bench.asks() == [(None, (X,))]
    assert bench.asks() == []


def test_several_go_into_one_question_with_what_is_known() -> None:
    bench = Bench(A)
    for number in range(KNOWN_MAX + 3):
        bench.log.add(entry_of(f"{number}"))
    bench.need(X, Y)
    send, timer = bench.fetches.ask(0)
    assert timer == TIMER
    assert isinstance(send, Send)
    (want,) = send.message.messages
    assert (want.topic, want.events, want.behind) == (TOPIC_CID, (X, Y), BEHIND_MIN)
    assert want.known == tuple(id_of(f"{n}") for n in range(3, KNOWN_MAX + 3))


def test_answers_may_go_further_back_each_time_until_they_overlap() -> None:
    bench = Bench(A)
    reach = []
    for number in range(8):
        if number == 6:
            bench.fetches.overlapped()
        bench.need(cid_of(b"%d" % number))
        (send, *_) = bench.fetches.ask(0)
        assert isinstance(send, Send)
        reach.append(send.message.messages[0].behind)
    assert reach == [4, 8, 16, 32, 64, 64, 4, 8]


def test_one_neighbour_is_asked_for_so_much_at_once() -> None:
    bench = Bench(A, config=TopicsConfig(want_batch=2))
    first, second, third = (cid_of(b"%d" % n) for n in range(3))
    bench.need(first, second, third)
    assert bench.asks() == [(A, (first, second))]
    assert bench.asks() == []
    assert bench.fetches.came(first) == ()
    assert bench.asks() == [(A, (third,))]


def test_a_neighbour_that_does_not_answer_is_made_up_for() -> None:
    bench = Bench(A, B)
    bench.need(X)
    assert bench.asks() == [(A, (X,))]
    assert bench.tick(CONFIG.want_timeout_ns) == {}
    assert asked(bench.effects) == [(B, (X,))]
    assert TIMER in bench.effects


def test_what_came_and_is_being_checked_is_not_asked_for_again() -> None:
    bench = Bench(A, B)
    bench.need(X)
    bench.asks()
    bench.checking.add(X)
    bench.tick(CONFIG.want_timeout_ns)
    assert asked(bench.effects) == []
    bench.fetches.lost(A, bench.now_ns)
    bench.fetches.not_in_dht(X, bench.now_ns)
    assert bench.tick(CONFIG.gap_patience_ns) == {}
    bench.checking.clear()
    bench.tick(CONFIG.want_timeout_ns - 1)
    assert X not in bench.fetches, "that took too long"


def test_a_neighbour_that_is_gone_is_not_waited_for() -> None:
    bench = Bench(A)
    bench.need(X, source=B)
    assert bench.asks() == [(B, (X,))]
    bench.fetches.lost(B, 0)
    assert bench.asks() == [(A, (X,))]


def test_what_nobody_has_is_looked_for_again_after_longer_and_longer_pauses() -> None:
    bench = Bench(A)
    bench.need(X)
    for number in range(6):
        assert bench.asks() == [(A, (X,))]
        bench.fetches.lacked(A, [X], bench.now_ns)
        assert bench.asks() == [(None, (X,))]
        assert bench.fetches.not_in_dht(X, bench.now_ns) == ()
        pause_ns = min(PAUSE_NS << number, PAUSE_MAX_NS)
        bench.now_ns += pause_ns - 1
        assert bench.asks() == []
        bench.now_ns += 1


def test_a_pause_ends_when_somebody_has_it() -> None:
    bench = Bench()
    bench.need(X)
    bench.asks()
    bench.fetches.not_in_dht(X, 0)
    assert bench.asks() == []
    bench.need(X, source=B)
    assert bench.asks() == [(B, (X,))]


def test_what_was_looked_for_long_enough_is_given_up_and_all_who_wait_are_told() -> None:
    bench = Bench()
    bench.need(X)
    bench.asks()
    assert bench.tick(CONFIG.gap_patience_ns + 1) == {}, "the DHT has not answered yet"
    bench.fetches.not_in_dht(X, bench.now_ns)
    bench.need(X, token="app")
    assert bench.tick(S_NS) == {X: ("app",)}
    assert len(bench.fetches) == 0


def test_applications_are_told_once_and_what_only_they_want_is_not_looked_for_again() -> None:
    bench = Bench()
    bench.need(X, token="one")
    bench.need(X, token="two")
    assert not bench.fetches.for_log(X)
    assert bench.asks() == [(None, (X,))]
    assert bench.fetches.not_in_dht(X, 0) == ("one", "two")
    assert X not in bench.fetches
    assert bench.fetches.not_in_dht(X, 0) == ()
    bench.need(Y, token="one")
    bench.need(Y)
    assert bench.fetches.for_log(Y)
    assert bench.fetches.came(Y) == ("one",)
    assert bench.fetches.came(Y) == ()
    assert bench.asks() == []


def test_the_dht_is_asked_for_a_few_at_once() -> None:
    bench = Bench()
    ids = [cid_of(b"%d" % n) for n in range(DHT_QUESTIONS_MAX + 5)]
    bench.need(*ids)
    assert len(bench.asks()) == DHT_QUESTIONS_MAX
    bench.fetches.came(ids[0])
    assert bench.asks() == [(None, (ids[DHT_QUESTIONS_MAX],))]


def test_so_much_is_looked_for_and_no_more_but_for_what_matters() -> None:
    bench = Bench(A)
    names = [cid_of(b"%d" % n) for n in range(NAMED_MAX + 10)]
    bench.need(*names, source=A)
    assert len(bench.fetches) == NAMED_MAX
    assert names[-1] not in bench.fetches
    bench.log.add(entry_of("child", X))
    bench.need(X)
    assert X in bench.fetches, "others follow it"
    bench.need(Y, token="app")
    assert Y in bench.fetches, "an application waits for it"
    start = cid_of(b"start")
    bench.fetches.need(start, None, 0, vital=True)
    assert bench.fetches.for_log(start), "a subscription begins after it"
    bench.need(names[0], token="app")
    bench.need(names[-1], source=A)
    assert names[-1] in bench.fetches, "the first one is not looked for on a neighbour's word only"


def test_what_is_not_looked_for_any_more_makes_room() -> None:
    names = [cid_of(b"%d" % n) for n in range(NAMED_MAX)]
    bench = Bench(A)
    bench.need(*names, source=A)
    bench.fetches.came(names[0])
    bench.need(X, source=A)
    assert X in bench.fetches
    for each in names:
        bench.fetches.not_in_dht(each, 0)
    assert set(bench.tick(CONFIG.gap_patience_ns + 1)) == set(names[1:])
    bench.need(Y, source=A)
    assert Y in bench.fetches


def test_what_was_pushed_out_is_not_looked_for() -> None:
    bench = Bench()
    bench.need(X)
    bench.need(*[cid_of(b"%d" % n) for n in range(NAMED_MAX)])
    assert (len(bench.fetches), X in bench.fetches) == (NAMED_MAX, False)
