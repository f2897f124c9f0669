"""Comparing heads with neighbours: how much of it one of them can ask for."""

from __future__ import annotations

from shoal.base.units import S_NS
from shoal.identity.topics.cid import Cid
from shoal.protocols.topics.config import HEADS_MAX, NAMED_MAX, TopicsConfig
from shoal.protocols.topics.messages import Digest, Heads, JoinTopic
from tests.protocols.topics.test_log import entry_of, id_of
from tests.support.topic_bench import STAMP, TopicBench, contact_of
from tests.support.topic_scenes import ID, TOPIC, author_of

ASKS = Digest(ID, 0, (), STAMP)  # by somebody who has nothing
CHILD = contact_of(1).node


def author(heads: int, config: TopicsConfig | None = None) -> TopicBench:
    """Has an event of everybody who began a fork."""
    bench = author_of(TOPIC, config)
    for number in range(heads):
        bench.state(ID).log.add(entry_of(f"{number}"))
    bench.rejected()
    return bench


def named(bench: TopicBench, *messages: Digest) -> list[Cid]:
    answer = bench.says(1, *messages)
    assert all(isinstance(one, Heads) and len(one.events) <= HEADS_MAX for one in answer)
    return [id for one in answer for id in one.events]


def test_one_digest_of_a_topic_is_answered_in_an_rpc() -> None:
    bench = author(3)
    assert len(named(bench, ASKS, ASKS, ASKS)) == 3
    assert bench.rejected() == ["rate-limited"] * 2
    assert len(named(bench, ASKS)) == 3


def test_whoever_has_too_much_to_read_is_not_answered() -> None:
    bench = author(3)
    bench.host.queue_changed(CHILD, high=True)
    assert named(bench, ASKS) == []
    assert bench.rejected() == []
    bench.host.queue_changed(CHILD, high=False)
    assert len(named(bench, ASKS)) == 3


def test_an_answer_is_bounded_and_the_next_one_goes_on() -> None:
    heads = 2 * NAMED_MAX + 100
    bench = author(heads)
    every = [id_of(f"{number}") for number in range(heads)]
    answers = [named(bench, ASKS) for _ in range(4)]
    newest, before, oldest, again = answers
    assert newest == every[-NAMED_MAX:], "what differs is recent, as a rule"
    assert [*oldest, *before, *newest] == every
    assert again == newest


def test_how_many_heads_a_peer_has_us_go_through_is_limited() -> None:
    config = TopicsConfig(compare_burst=100, compare_refill_ns=S_NS)
    bench = author(29, config)
    answers = [len(named(bench, ASKS)) for _ in range(5)]
    assert answers == [29, 29, 29, 0, 0]
    assert bench.says(1, JoinTopic(ID, STAMP)) == [], "it is told a digest of them then"
    assert bench.rejected() == ["rate-limited"] * 3
    bench.host.advance(30 * S_NS)
    assert len(named(bench, ASKS)) == 29


def test_more_heads_than_the_limit_are_compared_one_at_a_time() -> None:
    config = TopicsConfig(compare_burst=10, compare_refill_ns=S_NS)
    bench = author(20, config)
    bench.host.advance(10 * S_NS)
    assert [len(named(bench, ASKS)) for _ in range(2)] == [20, 0]
