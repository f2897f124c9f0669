"""A tracker tells storage nodes of streams that they have not joined."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.effects import CloseLink, Effect, OpenLink, SetTimer
from shoal.kernel.inputs import LinkClosed, LinkFailed, LinkOpened, Started, TimerFired
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.history.storage_node import StreamWanted
from shoal.protocols.streams.messages import (
    NOTICED_STREAMS_MAX,
    Join,
    KeepStreams,
    Leave,
    NewStream,
)
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.storage_notices import NOTICES, PURPOSE
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.storage_host import StorageHost
from tests.support.streams import ALICE, BOB, CAROL, OTHER_STREAM, STREAM, Bench, contact, sent

CONFIG = TrackerConfig()


def bench() -> Bench[Tracker]:
    """A tracker whose streams are all kept by Carol."""
    policy = partial(RandomPolicy, 4, Random(1))
    made = Bench(Tracker(lambda stream: policy(), CONFIG, lambda stream: (contact(CAROL),)))
    made.feed(Started())
    return made


def join(made: Bench[Tracker], peer: NodeId, stream: StreamId = STREAM) -> list[Effect]:
    return made.receive(peer, Join(stream, contact(peer), 0, 0, ()))


def told(effects: list[Effect]) -> list[StreamId]:
    return [new.stream for message, _ in sent(effects, KeepStreams) for new in message.streams]


def test_the_first_join_has_its_storage_node_dialled_and_told() -> None:
    made = bench()
    effects = join(made, ALICE)
    assert OpenLink(contact(CAROL), PURPOSE) in effects
    assert SetTimer(NOTICES, CONFIG.notice_ns) in effects
    assert told(effects) == []  # there is no link yet
    assert told(made.feed(LinkOpened(CAROL, PURPOSE))) == [STREAM]
    assert told(join(made, ALICE, OTHER_STREAM)) == [OTHER_STREAM]


def test_storage_is_told_who_began_a_stream() -> None:
    made = bench()
    join(made, ALICE)
    join(made, BOB)
    [(message, _)] = sent(made.feed(LinkOpened(CAROL, PURPOSE)), KeepStreams)
    assert message.streams == (NewStream(STREAM, ALICE),)


def test_what_is_not_joined_is_told_again_and_not_without_end() -> None:
    made = bench()
    join(made, ALICE)
    made.feed(LinkOpened(CAROL, PURPOSE))
    rounds = 1
    while told(made.feed(TimerFired(NOTICES))):
        rounds += 1
    assert rounds == CONFIG.notice_tries
    assert made.machine.notices.waiting_count() == 0
    assert told(join(made, BOB)) == []  # the link was given back
    assert told(made.feed(LinkOpened(CAROL, PURPOSE))) == [STREAM]  # and a Join begins anew


def test_the_link_is_given_back_when_storage_has_joined_or_the_stream_is_over() -> None:
    for has_joined in (True, False):
        made = bench()
        join(made, ALICE)
        made.feed(LinkOpened(CAROL, PURPOSE))
        if has_joined:
            join(made, CAROL)
        else:
            made.receive(ALICE, Leave(STREAM))
        assert CloseLink(CAROL, PURPOSE) in made.feed(TimerFired(NOTICES))
        assert made.feed(TimerFired(NOTICES)) == []


def test_a_storage_node_that_is_away_is_dialled_again_and_told_of_all() -> None:
    made = bench()
    names = [StreamId(f"0xowner/{number}") for number in range(NOTICED_STREAMS_MAX + 44)]
    for number, name in enumerate(names):
        made.now_ns += CONFIG.node_changes_refill_ns
        effects = join(made, ALICE, name)
        assert (OpenLink(contact(CAROL), PURPOSE) in effects) == (number == 0)
    made.feed(LinkFailed(CAROL, PURPOSE, "refused"))
    assert OpenLink(contact(CAROL), PURPOSE) in made.feed(TimerFired(NOTICES))
    first = told(made.feed(LinkOpened(CAROL, PURPOSE)))
    assert first == names[:NOTICED_STREAMS_MAX]
    assert told(made.feed(TimerFired(NOTICES)))[:44] == names[NOTICED_STREAMS_MAX:]
    made.feed(LinkClosed(CAROL, PURPOSE, "lost"))
    assert OpenLink(contact(CAROL), PURPOSE) in made.feed(TimerFired(NOTICES))


def test_one_that_has_left_is_told_when_it_is_back_while_others_are_there() -> None:
    made = bench()
    join(made, CAROL)
    join(made, ALICE)
    effects = made.receive(CAROL, Leave(STREAM))  # it is stopped
    assert SetTimer(NOTICES, CONFIG.notice_ns) in effects
    assert OpenLink(contact(CAROL), PURPOSE) in made.feed(TimerFired(NOTICES))
    assert told(made.feed(LinkOpened(CAROL, PURPOSE))) == [STREAM]
    made.receive(ALICE, Leave(STREAM))
    made.feed(TimerFired(NOTICES))
    assert made.machine.notices.waiting_count() == 0


def test_a_storage_node_believes_its_trackers_alone(tmp_path: Path) -> None:
    host = StorageHost(BOB, tmp_path / "store", streams=(STREAM,), trackers=(ALICE,))
    host.received(CAROL, KeepStreams((NewStream(STREAM),)))
    assert host.notified == []
    assert host.reasons() == ["not-my-tracker"]
    host.received(ALICE, KeepStreams((NewStream(STREAM), NewStream(OTHER_STREAM))))
    assert host.notified == [StreamWanted(STREAM)]
    host.close()
