"""Blocks on their way into the DHT: tried again, and told about."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.identity.topics.cid import Cid, cid_of
from shoal.kernel.effects import Effect, Notify, Send, SetTimer
from shoal.protocols.dht.commands import Put
from shoal.protocols.topics import replication as module
from shoal.protocols.topics.commands import EventStored
from shoal.protocols.topics.replication import PUT, RETRY_NS, TRIES_MAX, Storing
from tests.support.machines import peer_id

ME = peer_id(0)
BLOCK = b"block"
ID, OTHER = cid_of(BLOCK), cid_of(b"other")


class Dht:
    """Answers for the DHT; knows which put it was asked for last."""

    def __init__(self) -> None:
        self.dropped: list[Cid] = []
        self.storing = Storing(ME, self.dropped.append)
        self.asked: dict[Cid, Any] = {}

    def tries(self, effects: list[Effect]) -> list[bytes]:
        """The blocks that are put."""
        puts = [one.message for one in effects if isinstance(one, Send)]
        for put in puts:
            assert isinstance(put, Put)
            assert put.token[:2] == (PUT, put.key)  # type: ignore[index]
            self.asked[Cid(put.key)] = put.token
        return [put.value for put in puts]

    def answers(self, id: Cid, replicas: int) -> list[Effect]:
        """So many nodes took it."""
        return self.storing.done(id, self.asked[id][2], replicas)


def told(effects: list[Effect]) -> list[tuple[int, object]]:
    """Replicas and token of each answer."""
    events = [one.event for one in effects if isinstance(one, Notify)]
    return [(one.replicas, one.token) for one in events if isinstance(one, EventStored)]


def test_a_block_is_put_and_that_is_that() -> None:
    dht = Dht()
    assert dht.tries(dht.storing.put(ID, BLOCK)) == [BLOCK]
    assert dht.answers(ID, 1) == []
    assert dht.storing.again(ID) == []
    assert dht.answers(ID, 5) == [], "nobody waits"


def test_what_nobody_took_is_tried_again_for_a_minute() -> None:
    dht = Dht()
    dht.tries(dht.storing.put(ID, BLOCK))
    delays = []
    for _ in range(TRIES_MAX - 1):
        (timer,) = dht.answers(ID, 0)
        assert isinstance(timer, SetTimer)
        assert timer.key == (PUT, ID)
        delays.append(timer.delay_ns)
        assert dht.tries(dht.storing.again(ID)) == [BLOCK]
    assert delays == [RETRY_NS << n for n in range(TRIES_MAX - 1)]
    assert dht.answers(ID, 0) == []
    assert dht.storing.again(ID) == []


def test_whoever_waits_is_told_when_enough_nodes_have_it() -> None:
    dht = Dht()
    dht.tries(dht.storing.put(ID, BLOCK))
    assert dht.storing.wait(ID, {ID: BLOCK}, 3, "three") == []
    assert told(dht.answers(ID, 2)) == []
    assert dht.tries(dht.storing.again(ID)) == [BLOCK]
    assert told(dht.answers(ID, 3)) == [(3, "three")]
    # Later ones are told at once, or cause another try.
    assert told(dht.storing.wait(ID, {ID: BLOCK}, 2, "two")) == [(3, "two")]
    assert dht.tries(dht.storing.wait(ID, {ID: BLOCK}, 9, "nine")) == [BLOCK]


def test_several_blocks_are_waited_for_together() -> None:
    dht = Dht()
    dht.tries(dht.storing.put(ID, BLOCK))
    dht.answers(ID, 5)
    wait = dht.storing.wait(ID, {ID: BLOCK, OTHER: b"other"}, 3, "both")
    assert (dht.tries(wait), told(wait)) == ([b"other"], [])
    assert told(dht.answers(OTHER, 4)) == [(4, "both")], "the fewer of the two"


def test_in_the_end_everybody_is_told_how_many_there_are() -> None:
    dht = Dht()
    assert dht.tries(dht.storing.wait(ID, {ID: BLOCK}, 9, "nine")) == [BLOCK]
    effects: list[Effect] = []
    for _ in range(TRIES_MAX):
        effects += dht.answers(ID, 4)
        dht.tries(dht.storing.again(ID))
    assert told(effects) == [(4, "nine")]


def test_whoever_waits_for_a_record_waits_for_the_newer_one() -> None:
    dht = Dht()
    dht.tries(dht.storing.wait(ID, {OTHER: b"record 1"}, 2, "t"))
    old = dht.asked[OTHER][2]
    assert dht.tries(dht.storing.put(OTHER, b"record 2")) == [b"record 2"]
    assert dht.storing.done(OTHER, old, 5) == [], "that was the one before"
    assert told(dht.answers(OTHER, 2)) == [(2, "t")]


def test_a_record_that_is_waited_for_is_replaced_by_a_newer_one() -> None:
    dht = Dht()
    assert not dht.storing.awaits(OTHER)
    dht.tries(dht.storing.wait(ID, {OTHER: b"record 1"}, 2, "t"))
    assert dht.storing.awaits(OTHER)
    assert dht.storing.replace(OTHER, b"record 1") == [], "it is under way"
    assert dht.tries(dht.storing.replace(OTHER, b"record 2")) == [b"record 2"]
    assert told(dht.answers(OTHER, 2)) == [(2, "t")]
    assert not dht.storing.awaits(OTHER)


def test_answers_about_what_was_never_put_mean_nothing() -> None:
    storing = Dht().storing
    assert storing.done(ID, 1, 3) == []
    assert storing.again(ID) == []


def test_of_too_many_those_that_are_done_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 2)
    dht = Dht()
    first, second, third = (cid_of(b"%d" % n) for n in range(3))
    dht.tries(dht.storing.put(first, b"0"))
    dht.tries(dht.storing.put(second, b"1"))
    dht.answers(second, 1)
    dht.tries(dht.storing.put(third, b"2"))
    assert dht.answers(first, 0) != [], "it is under way still"
    assert dht.tries(dht.storing.wait(second, {second: b"1"}, 1, "t")) == [b"1"]


def test_whoever_waits_for_what_is_dropped_is_told_what_was_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 1)
    dht = Dht()
    dht.tries(dht.storing.wait(ID, {ID: BLOCK}, 3, "t"))
    dht.answers(ID, 2)
    assert told(dht.storing.put(OTHER, b"other")) == [(2, "t")]
    assert dht.dropped == [ID]


def test_what_nodes_have_of_an_older_record_does_not_count_for_the_next_one() -> None:
    dht, key = Dht(), Cid(b"key of records")
    blocks = {ID: BLOCK, key: b"older"}
    dht.tries(dht.storing.wait(ID, blocks, 2, "first"))
    assert told([*dht.answers(ID, 3), *dht.answers(key, 3)]) == [(3, "first")]
    effects = dht.storing.wait(ID, {ID: BLOCK, key: b"newer"}, 2, "second")
    assert dht.tries(effects) == [b"newer"]
    assert told(effects) == []
    assert told(dht.answers(key, 2)) == [(2, "second")]
