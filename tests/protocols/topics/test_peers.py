"""What peers say: strangers, joins, heads and wants, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.base.units import S_NS
from shoal.identity.topics.cid import cid_of
from shoal.kernel.effects import Verify
from shoal.protocols.topics.commands import AddTopic
from shoal.protocols.topics.config import HEADS_MAX, NAMED_MAX, TopicsConfig
from shoal.protocols.topics.messages import (
    Digest,
    Heads,
    JoinTopic,
    Lacks,
    LeaveTopic,
    Message,
    NewTopic,
    Path,
    PublishAnswer,
    PublishEvent,
    Redirect,
    RequestToPublish,
    Want,
)
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TopicBench,
    contact_of,
    event_by,
    id_of,
    request_by,
)
from tests.support.topic_scenes import ID, TOPIC, reader

UNKNOWN = cid_of(b"unknown")
EVENT = event_by(0, ID, b"news")


# Strangers

FROM_STRANGERS: dict[str, Message] = {
    "event": PublishEvent(EVENT, STAMP),
    "digest": Digest(ID, 0, (), STAMP),
    "heads": Heads(ID, (UNKNOWN,), STAMP),
    "path": Path(ID, (contact_of(4),), STAMP),
    "request": RequestToPublish(request_by(4, ID, b"x"), STAMP),
}


@pytest.mark.parametrize("name", FROM_STRANGERS)
def test_a_stranger_is_told_that_it_is_one(name: str) -> None:
    bench = reader()
    answer = bench.says(4, FROM_STRANGERS[name])
    assert [type(one) for one in answer] == [LeaveTopic]
    assert bench.rejected() == ["no-neighbour"]
    assert not bench.host.slow_work
    assert len(bench.state(ID).fetches) == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Redirect(ID, (contact_of(5),), STAMP), "unasked-answer"),
        (PublishAnswer(ID, UNKNOWN, None, STAMP, "no"), "not-a-parent"),
        (RequestToPublish(EVENT, STAMP), "not-allowed"),
    ],
)
def test_what_nobody_asked_for_is_counted(message: Message, reason: str) -> None:
    bench = reader()
    assert bench.says(4, message) == []
    assert bench.rejected() == [reason]


def test_a_request_comes_from_neighbours_only() -> None:
    bench = reader()
    bench.says(0, RequestToPublish(request_by(4, ID, b"x"), STAMP))
    assert bench.rejected() == []
    bench.says(4, RequestToPublish(request_by(4, ID, b"x"), STAMP))
    assert bench.rejected() == ["no-neighbour"]


@pytest.mark.parametrize(
    ("message", "answer", "reasons"),
    [
        (Want(UNKNOWN, (ID,), STAMP), Lacks, []),
        (Digest(UNKNOWN, 0, (), STAMP), LeaveTopic, []),
        (Path(UNKNOWN, (), STAMP), LeaveTopic, []),
        (JoinTopic(UNKNOWN, STAMP), LeaveTopic, []),
        (PublishEvent(event_by(4, UNKNOWN), STAMP), LeaveTopic, []),
        (Heads(UNKNOWN, (), STAMP), None, ["unknown-topic"]),
        (LeaveTopic(UNKNOWN, STAMP), None, ["unknown-topic"]),
        (Lacks(UNKNOWN, (), STAMP), None, ["unknown-topic"]),
        (Redirect(UNKNOWN, (), STAMP), None, ["unknown-topic"]),
    ],
)
def test_of_an_unknown_topic(message: Message, answer: type | None, reasons: list[str]) -> None:
    bench = reader()
    before = dict(bench.machine.topics)
    assert [type(one) for one in bench.says(4, message)] == ([answer] if answer else [])
    assert bench.rejected() == reasons
    assert bench.machine.topics == before


# Topics that come along with a join


def test_a_join_brings_its_topic_along() -> None:
    bench = TopicBench(2, contacts=[contact_of(0)])
    bench.meet(3, 4)
    for number in (3, 4):
        assert bench.says(number, NewTopic(TOPIC, STAMP), JoinTopic(ID, STAMP)) == []
    assert bench.machine.topics == {}
    bench.finish()
    assert set(bench.state(ID).tree.children) == {contact_of(3).node, contact_of(4).node}
    assert bench.state(ID).tree.asked == contact_of(0).node, "it joins, too"
    assert bench.rejected() == []


def test_a_topic_is_carried_only_for_those_who_join_and_sign() -> None:
    bench = TopicBench(2)
    bench.meet(3)
    bench.says(3, NewTopic(TOPIC, STAMP))
    bench.finish()
    assert bench.machine.topics == {}
    bench.says(3, NewTopic(TOPIC, STAMP), JoinTopic(ID, STAMP))
    bench.finish(valid=False)
    assert bench.machine.topics == {}
    assert bench.rejected() == ["bad-signature"]
    keyless = replace(TOPIC, author=bytes.fromhex("1220" + "01" * 32))
    bench.says(3, NewTopic(keyless, STAMP))
    assert bench.rejected() == ["bad-signature"]


def test_any_number_of_joins_during_a_check() -> None:
    bench = TopicBench(2)
    bench.meet(3)
    for _ in range(8):
        bench.says(3, NewTopic(TOPIC, STAMP), *[JoinTopic(ID, STAMP)] * 255)
    bench.finish()
    assert list(bench.state(ID).tree.children) == [contact_of(3).node]


# Heads and wants


def test_heads_that_differ_are_named_and_asked_for() -> None:
    bench = TopicBench(0)
    bench.command(AddTopic(TOPIC))
    bench.meet(1)
    bench.says(1, JoinTopic(ID, STAMP))
    span = START_MS // 60_000 * 60_000
    assert bench.says(1, Digest(ID, 0, ((span, 1),), STAMP)) == [], "there is nothing to name"
    asked = bench.says(1, Heads(ID, (UNKNOWN,), STAMP))
    assert [(one.events, one.known) for one in asked] == [((UNKNOWN,), ())]
    bench.says(1, PublishEvent(EVENT, STAMP))
    bench.finish()
    (named,) = bench.says(1, Digest(ID, 0, (), STAMP))
    assert named == Heads(ID, (id_of(EVENT),), named.stamp)
    same = bench.state(ID).greet(bench.host.time_ns)
    assert bench.says(1, same) == []


def test_a_neighbour_that_names_heads_without_end_is_not_believed() -> None:
    bench = reader()
    for number in range(40):
        names = tuple(cid_of(b"%d %d" % (number, n)) for n in range(HEADS_MAX))
        bench.says(3, Heads(ID, names, STAMP))
    assert len(bench.state(ID).fetches) == NAMED_MAX
    # What others name is looked for.
    (want,) = bench.says(0, Heads(ID, (UNKNOWN,), STAMP))
    assert want.events == (UNKNOWN,)


def test_questions_have_a_limit() -> None:
    bench = reader(TopicsConfig(want_burst=2, want_refill_ns=S_NS))
    answers = [bench.says(4, Want(ID, (UNKNOWN,), STAMP)) for _ in range(3)]
    assert [len(answer) for answer in answers] == [1, 1, 0]
    assert bench.rejected() == ["rate-limited"]


def test_strangers_leave_nothing_behind() -> None:
    bench = reader()
    tree: Any = bench.state(ID).tree
    for number in range(20, 40):
        bench.meet(number)
        bench.says(number, Want(ID, (UNKNOWN,), STAMP), LeaveTopic(ID, STAMP))
    assert set(tree._heard) <= {contact_of(0).node, contact_of(3).node}


def test_verification_names_who_signed() -> None:
    bench = reader()
    bench.says(0, PublishEvent(event_by(4, ID, b"x", publisher=0), STAMP))
    signers = [work.signer for _, work in bench.host.slow_work if isinstance(work, Verify)]
    assert signers == [contact_of(4).node, contact_of(0).node]
