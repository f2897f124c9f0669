"""Commands of the application, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shoal.base.errors import UsageError
from shoal.identity.topics.cid import cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE
from shoal.kernel.effects import Effect, Notify, Send
from shoal.kernel.inputs import CommandIssued, MessageReceived
from shoal.protocols.dht.commands import Get, GetDone, Put
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    AwaitStored,
    EventAccepted,
    EventArrived,
    EventFound,
    EventStored,
    Fetch,
    FindTopic,
    Grant,
    Pin,
    Publish,
    PublishRefused,
    Start,
    StartMissing,
    Subscribe,
    TopicFound,
    Unsubscribe,
)
from shoal.protocols.topics.config import SUBSCRIPTIONS_MAX
from shoal.protocols.topics.messages import JoinTopic, Path, PublishEvent, Want
from shoal.protocols.topics.topic import NEW_MS
from shoal.sim.simulation import START_NS
from tests.support.topic_bench import (
    STAMP,
    START_MS,
    TopicBench,
    chain_by,
    contact_of,
    event_by,
    id_of,
    meta_by,
    topic_by,
)

TOPIC = topic_by(0)
ID = id_of(TOPIC)
OTHERS = topic_by(1)
OTHERS_ID = id_of(OTHERS)


def author() -> TopicBench:
    bench = TopicBench(0)
    bench.command(AddTopic(TOPIC))
    return bench


def issue(bench: TopicBench, command: Any, token: Any = None) -> list[Effect]:
    """What a command causes at once, with nobody to answer."""
    return bench.machine.handle(CommandIssued(command, token), START_NS)


def got(bench: TopicBench, key: bytes, token: Any, *values: bytes) -> list[Effect]:
    """The DHT answers."""
    return bench.machine.handle(
        MessageReceived(bench.machine.node, GetDone(key, values, token)), START_NS
    )


def told(effects: list[Effect]) -> list[Any]:
    return [effect.event for effect in effects if isinstance(effect, Notify)]


# Topics


def test_a_topic_is_kept_stored_and_its_tree_entered() -> None:
    bench = author()
    state = bench.state(ID)
    assert (state.topic, state.tree.is_root, state.synced) == (TOPIC, True, True)
    puts = [(one.key, one.value) for one in bench.dht.asked if isinstance(one, Put)]
    assert puts == [(ID, encode_descriptor(TOPIC))]
    again = TopicBench(0, disk=bench.host.disk)
    assert again.state(ID).topic == TOPIC
    assert again.state(ID).tree.entered, "the author is the root whenever it runs"


@pytest.mark.parametrize(
    "topic",
    [OTHERS, replace(TOPIC, name="changed"), replace(meta_by(0), name="unsigned")],
    ids=["of another", "changed", "unsigned"],
)
def test_only_a_topic_of_ours_is_added(topic: Any) -> None:
    with pytest.raises(UsageError, match="not signed by this node: sign it first"):
        issue(TopicBench(0), AddTopic(topic))


def test_an_unknown_topic_is_looked_for_once_for_all_who_want_it() -> None:
    bench = TopicBench(0)
    token = ("topic", OTHERS_ID)
    ask = Send(Get(OTHERS_ID, token), (bench.machine.node,))
    assert issue(bench, FindTopic(OTHERS_ID), 1) == [ask]
    assert issue(bench, Publish(OTHERS_ID, b"x"), 2) == []
    assert issue(bench, Subscribe(OTHERS_ID), 3) == []
    effects = got(bench, OTHERS_ID, token)
    reason = f"nobody knows a topic {told(effects)[1].reason.split()[-1]}"
    assert told(effects) == [
        TopicFound(OTHERS_ID, None, 1),
        PublishRefused(OTHERS_ID, reason, 2),
        TopicFound(OTHERS_ID, None, 3),
    ]
    assert issue(bench, FindTopic(OTHERS_ID), 4) == [ask], "perhaps it is there now"
    assert told(got(bench, OTHERS_ID, token, encode_descriptor(OTHERS))) == [
        TopicFound(OTHERS_ID, OTHERS, 4)
    ]


@pytest.mark.parametrize(
    "value",
    [
        b"nonsense",
        encode_descriptor(event_by(1, OTHERS_ID)),
        encode_descriptor(replace(OTHERS, author=bytes.fromhex("1220" + "01" * 32))),
    ],
    ids=["nonsense", "event", "no key"],
)
def test_what_the_dht_has_need_not_be_a_topic(value: bytes) -> None:
    bench = TopicBench(0)
    id = cid_of(value)
    issue(bench, FindTopic(id), 1)
    assert told(got(bench, id, ("topic", id), value)) == [TopicFound(id, None, 1)]
    assert bench.machine.topics == {}


# Subscriptions


def test_a_subscription_has_a_name_of_its_own() -> None:
    bench = author()
    bench.command(Subscribe(ID), "s")
    with pytest.raises(UsageError, match="a name of its own is needed"):
        issue(bench, Subscribe(ID), "s")
    for number in range(SUBSCRIPTIONS_MAX - 1):
        issue(bench, Subscribe(ID), number)
    with pytest.raises(UsageError, match=f"at most {SUBSCRIPTIONS_MAX}"):
        issue(bench, Subscribe(ID), "one more")
    bench.command(Unsubscribe("s"))
    issue(bench, Subscribe(ID), "s")


def test_a_reader_gets_as_much_as_it_asked_for() -> None:
    bench = author()
    bench.command(Subscribe(ID, credit=1), "s")
    for number in range(4):
        bench.command(Publish(ID, b"%d" % number))
    assert bench.payloads("s") == [b"0"]
    bench.command(Grant("s", 2))
    bench.command(Grant("nobody", 2))
    assert bench.payloads("s") == [b"0", b"1", b"2"]
    bench.command(Unsubscribe("s"))
    bench.command(Grant("s", 9))
    bench.command(Unsubscribe("s"))
    assert bench.payloads("s") == [b"0", b"1", b"2"]


def test_a_subscription_that_ended_before_its_topic_was_found_does_not_begin() -> None:
    bench = TopicBench(0)
    issue(bench, Subscribe(OTHERS_ID), "s")
    issue(bench, FindTopic(OTHERS_ID), "s")
    issue(bench, Unsubscribe("s"))
    effects = got(bench, OTHERS_ID, ("topic", OTHERS_ID), encode_descriptor(OTHERS))
    assert told(effects) == [TopicFound(OTHERS_ID, OTHERS, "s")], "that was another question"
    assert len(bench.state(OTHERS_ID).cursors) == 0


def test_a_subscription_that_ended_before_its_start_was_found_does_not_begin() -> None:
    bench = author()
    start = event_by(0, ID, b"before")
    issue(bench, Subscribe(ID, id_of(start)), "s")
    issue(bench, Unsubscribe("s"))
    got(bench, id_of(start), ("get", ID, id_of(start)), encode_descriptor(start))
    bench.finish()
    assert len(bench.state(ID).cursors) == 0


@pytest.mark.parametrize("start", [BEGINNING, "event"])
def test_an_early_start_asks_for_head_records(start: Start) -> None:
    bench = author()
    bench.command(Publish(ID, b"x"))
    (event,) = bench.state(ID).log.events
    bench.dht.asked.clear()
    bench.command(Subscribe(ID, event if start == "event" else start), "s")
    assert len(bench.gets("heads")) == len(bench.dht.asked) == 1
    assert bench.payloads("s") == ([] if start == "event" else [b"x"])


def test_after_an_event_that_nobody_has_nothing_is_told() -> None:
    """What led to it is not known, so anything may have been told before."""
    bench = reader()
    gone = cid_of(b"gone")
    bench.says(1, PublishEvent(event_by(1, OTHERS_ID, b"follower", gone), STAMP))
    bench.command(Subscribe(OTHERS_ID, gone), "after")
    beats = bench.machine.config.gap_patience_ns // bench.machine.config.beat_ns + 2
    for _ in range(beats):
        bench.host.advance(bench.machine.config.beat_ns)
        bench.finish()
    assert bench.payloads("s") == [b"follower"]
    assert bench.told(EventArrived)[-1].gap_before
    assert bench.payloads("after") == []
    assert bench.told(StartMissing) == [StartMissing("after", gone)]


@pytest.mark.parametrize("held", [True, False], ids=["held", "in the DHT"])
def test_after_an_event_of_another_topic_nothing_will_ever_come(held: bool) -> None:
    bench = reader()
    elsewhere = event_by(0, ID, b"elsewhere")
    if held:
        bench.command(AddTopic(TOPIC))
        bench.command(Publish(ID, b"mine"))
        elsewhere = next(iter(bench.state(ID).log.events.values())).event
    else:
        bench.dht.keep(id_of(elsewhere), encode_descriptor(elsewhere))
    bench.command(Subscribe(OTHERS_ID, id_of(elsewhere)), "after")
    bench.host.advance(bench.machine.config.want_timeout_ns)
    assert bench.told(StartMissing)[0] == StartMissing("after", id_of(elsewhere), ID)


def test_an_event_that_came_after_it_was_given_up_closes_the_gap() -> None:
    bench = reader()
    late = event_by(1, OTHERS_ID, b"late")
    bench.says(1, PublishEvent(event_by(1, OTHERS_ID, b"follower", id_of(late)), STAMP))
    bench.finish()
    beats = bench.machine.config.gap_patience_ns // bench.machine.config.beat_ns + 2
    for _ in range(beats):
        bench.host.advance(bench.machine.config.beat_ns)
        bench.finish()
    assert bench.payloads("s") == [b"follower"]
    bench.command(Subscribe(OTHERS_ID, id_of(late)), "after")
    bench.says(1, PublishEvent(late, STAMP))
    bench.finish()
    assert bench.payloads("after") == [b"follower"]
    assert not bench.told(EventArrived)[-1].gap_before


# Events


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_payload_that_is_too_large_changes_nothing(known: bool) -> None:
    """Least of all what a publisher of an open topic knows of it."""
    topic = topic_by(1, publishers=ANYONE, created_ms=START_MS - NEW_MS)
    id = id_of(topic)
    bench = TopicBench(0)
    bench.dht.keep(id, encode_descriptor(topic))
    if known:
        bench.command(Subscribe(id), "s")
    with pytest.raises(UsageError, match="at most 524288 bytes, this one 614400"):
        issue(bench, Publish(id, bytes(600 * 1024)), "large")
    bench.command(Publish(id, b"small"), "small")
    assert [one.token for one in bench.told(EventAccepted)] == ["small"]


def reader() -> TopicBench:
    bench = TopicBench(0, contacts=[contact_of(1)])
    bench.dht.keep(OTHERS_ID, encode_descriptor(OTHERS))
    bench.meet(1)
    bench.command(Subscribe(OTHERS_ID), "s")
    bench.says(1, Path(OTHERS_ID, (contact_of(1),), STAMP))
    return bench


def test_an_event_is_found_here_or_in_the_tree_or_in_the_dht() -> None:
    bench = reader()
    here, near, far = chain_by(1, OTHERS_ID, 3)
    bench.says(1, PublishEvent(here, STAMP))
    bench.finish()
    bench.command(Fetch(id_of(here)), "here")
    before = len(bench.host.sent)
    bench.command(Fetch(id_of(near), OTHERS_ID), "near")
    (want,) = bench.sent_to(1, before)
    assert isinstance(want, Want)
    assert want.events == (id_of(near),)
    bench.says(1, PublishEvent(near, STAMP))
    bench.finish()
    bench.dht.keep(id_of(far), encode_descriptor(far))
    bench.command(Fetch(id_of(far)), "far")
    bench.command(Fetch(cid_of(b"gone")), "gone")
    assert bench.told(EventFound) == [
        EventFound(id_of(here), here, "here"),
        EventFound(id_of(near), near, "near"),
        EventFound(id_of(far), far, "far"),
        EventFound(cid_of(b"gone"), None, "gone"),
    ]
    assert bench.payloads("s") == [b"0"]


def test_what_nobody_has_is_told_after_all_were_asked() -> None:
    bench = reader()
    bench.command(Fetch(cid_of(b"gone"), OTHERS_ID), "gone")
    assert bench.told(EventFound) == []
    bench.host.advance(bench.machine.config.want_timeout_ns)
    assert bench.told(EventFound) == [EventFound(cid_of(b"gone"), None, "gone")]


def test_an_event_is_safe_when_something_leads_to_it() -> None:
    bench = author()
    bench.command(Publish(ID, b"x"))
    (event,) = bench.state(ID).log.events
    bench.dht.asked.clear()
    bench.command(AwaitStored(event, 3), "t")
    (record,) = [one.key for one in bench.dht.asked if isinstance(one, Put)]
    assert record not in (event, ID), "its head record did not wait for its time"
    assert bench.told(EventStored) == [EventStored(event, 3, "t")]
    bench.command(AwaitStored(event, 2), "again")
    puts = [one.key for one in bench.dht.asked if isinstance(one, Put)]
    assert puts == [record], "it leads there still"
    bench.command(AwaitStored(cid_of(b"not here"), 1), "u")
    assert bench.told(EventStored)[2:] == [EventStored(cid_of(b"not here"), 0, "u")]


def test_a_pin_is_kept_on_disk() -> None:
    bench = author()
    bench.command(Pin(ID))
    assert TopicBench(0, disk=bench.host.disk).state(ID).pinned
    bench.command(Pin(ID, False))
    assert not TopicBench(0, disk=bench.host.disk).state(ID).pinned


def test_what_is_no_command_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="no command of topics"):
        issue(TopicBench(0), JoinTopic(ID, STAMP))
