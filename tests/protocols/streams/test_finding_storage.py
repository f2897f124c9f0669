"""Whom a tracker names when somebody asks who keeps a stream."""

from __future__ import annotations

from functools import partial
from random import Random

from shoal.base.ids import Contact
from shoal.kernel.effects import Send
from shoal.kernel.inputs import Started
from shoal.protocols.streams.config import STORAGE_NODES_MAX, TrackerConfig
from shoal.protocols.streams.messages import FindStorage, Join, StorageNodes
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.streams import (
    ALICE,
    CAROL,
    DAVE,
    EVE,
    MALLORY,
    OTHER_STREAM,
    STREAM,
    Bench,
    contact,
    node,
    of_kind,
    reasons,
    sent,
)
from tests.support.tracker_desk import Desk

CONFIG = TrackerConfig()


def test_anybody_is_told_who_keeps_a_stream() -> None:
    kept = {STREAM: (contact(CAROL), contact(DAVE))}
    bench = Bench(Tracker(lambda stream: RandomPolicy(4, Random(1)), CONFIG, kept.__getitem__))
    bench.feed(Started())
    answer = Send(StorageNodes(STREAM, kept[STREAM]), (MALLORY,))
    assert bench.receive(MALLORY, FindStorage(STREAM)) == [answer]
    assert bench.machine.streams == {}


def test_a_tracker_that_knows_of_no_storage_says_so() -> None:
    assert Desk().receive(ALICE, FindStorage(STREAM)) == [Send(StorageNodes(STREAM, ()), (ALICE,))]


def test_a_storage_node_is_where_it_says_that_it_is() -> None:
    configured = (contact(CAROL), contact(DAVE), contact(EVE))
    policy = partial(RandomPolicy, 4, Random(1))
    bench = Bench(Tracker(lambda stream: policy(), CONFIG, lambda stream: configured))
    bench.feed(Started())
    moved = Contact(CAROL, ("ws://moved:1",))
    bench.receive(CAROL, Join(STREAM, moved, 0, 0, ()))
    bench.receive(DAVE, Join(STREAM, Contact(DAVE), 0, 0, ()))  # it can only dial out, it says
    bench.receive(EVE, Join(OTHER_STREAM, Contact(EVE, ("ws://elsewhere:1",)), 0, 0, ()))
    [(answer, _)] = sent(bench.receive(ALICE, FindStorage(STREAM)), StorageNodes)
    assert answer.contacts == (moved, contact(DAVE), contact(EVE))


def test_questions_are_rate_limited_and_answers_bounded() -> None:
    everybody = tuple(contact(node(number)) for number in range(100, 200))
    bench = Bench(Tracker(lambda stream: RandomPolicy(4, Random(1)), CONFIG, lambda _: everybody))
    bench.feed(Started())
    answers = []
    for _ in range(2 * CONFIG.questions_burst):
        answers += bench.receive(MALLORY, FindStorage(STREAM))
    assert len(of_kind(answers, Send)) == CONFIG.questions_burst
    assert reasons(answers) == ["too-many-questions"] * CONFIG.questions_burst
    [(answer, _)] = sent(bench.receive(ALICE, FindStorage(STREAM)))
    assert answer.contacts == everybody[:STORAGE_NODES_MAX]
