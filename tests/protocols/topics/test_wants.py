"""Answers to those who miss events: what they named, and what lies behind it."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.units import KIB
from shoal.identity.topics.cid import PAYLOAD_BYTES_MAX, Cid, cid_of
from shoal.identity.topics.descriptors import EventDescriptor
from shoal.identity.topics.event_signatures import core_cid
from shoal.kernel.effects import Effect, Send
from shoal.protocols.topics.config import MESSAGES_MAX, TopicsConfig
from shoal.protocols.topics.event_log import ENTRY_BYTES, Entry
from shoal.protocols.topics.messages import Lacks, PublishEvent, Want
from shoal.protocols.topics.peer_messages import answer_want
from shoal.protocols.topics.topic import TopicState
from shoal.protocols.topics.tree import Here, Links
from shoal.protocols.topics.wire import encode_rpc
from shoal.sim.simulation import START_NS
from tests.support.topic_bench import (
    STAMP,
    chain_by,
    contact_of,
    event_by,
    id_of,
    peer_of,
    topic_by,
)

TOPIC = topic_by(0)
ID = id_of(TOPIC)
PEER = contact_of(1).node
CONFIG = TopicsConfig()
CHAIN = chain_by(0, ID, 8)
NAMES = [id_of(event) for event in CHAIN]
LOST = cid_of(b"lost")


def state_of(events: list[EventDescriptor]) -> TopicState:
    here = Here(contact_of(0).node)
    state = TopicState(ID, TOPIC, peer_of(0), here, Links(), (), 0, Random(1), CONFIG)
    for event in events:
        state.log.add(Entry(id_of(event), event, core_cid(event), START_NS))
    return state


def answer(
    state: TopicState,
    events: list[Cid],
    known: list[Cid] | None = None,
    behind: int = 100,
    config: TopicsConfig = CONFIG,
) -> tuple[list[Cid], list[Cid]]:
    """What was sent, in order, and what is lacking; no RPC is larger than can be read."""
    want = Want(ID, tuple(events), STAMP, tuple(known or ()), behind)
    return read(answer_want(state, PEER, want, config, START_NS))


def read(effects: list[Effect]) -> tuple[list[Cid], list[Cid]]:
    sent: list[Cid] = []
    lacking: list[Cid] = []
    for effect in effects:
        assert isinstance(effect, Send)
        assert effect.peers == (PEER,)
        encode_rpc(effect.message.messages)
        for message in effect.message.messages:
            match message:
                case PublishEvent(event):
                    sent.append(id_of(event))
                case Lacks(topic, events):
                    assert topic == ID
                    lacking += events
    return sent, lacking


def test_what_lies_behind_comes_along_back_to_what_is_known() -> None:
    state = state_of(CHAIN)
    assert answer(state, [NAMES[5]], [NAMES[2]]) == (NAMES[5:2:-1], [])
    assert answer(state, [NAMES[5]], behind=2) == (NAMES[5:2:-1], [])
    assert answer(state, [NAMES[5]], behind=0) == ([NAMES[5]], [])
    assert answer(state, [NAMES[7]]) == (NAMES[::-1], [])


def test_what_is_not_here_is_said() -> None:
    state = state_of(CHAIN[4:])
    assert answer(state, [LOST, NAMES[5], NAMES[0]]) == ([NAMES[5], NAMES[4]], [LOST, NAMES[0]])
    assert answer(state_of([]), [LOST]) == ([], [LOST])
    assert answer(state, []) == ([], [])


def test_an_answer_has_bounds() -> None:
    state = state_of(CHAIN)
    few = TopicsConfig(want_batch=3)
    assert answer(state, [NAMES[7]], config=few)[0] == NAMES[7:3:-1]
    small = TopicsConfig(want_bytes=2 * (ENTRY_BYTES + 64))
    assert answer(state, [NAMES[7]], config=small)[0] == NAMES[7:4:-1]


def test_large_events_go_in_frames_of_their_own_and_not_without_end() -> None:
    large = [event_by(0, ID, b"%d" % n + bytes(PAYLOAD_BYTES_MAX - 1)) for n in range(6)]
    state = state_of(large)
    names = [id_of(event) for event in large]
    sent, lacking = answer(state, names)
    assert sent == names[: len(sent)]
    assert 1 < len(sent) < 6, "the asker asks again for the rest"
    assert lacking == []


def test_many_small_events_go_in_frames_that_can_be_read() -> None:
    forks = [event_by(0, ID, b"%d" % n) for n in range(MESSAGES_MAX)]
    middle = [event_by(0, ID, bytes(40 * KIB) + b"%d" % n) for n in range(20)]
    state = state_of([*forks, *middle])
    for some in (forks, middle):
        names = [id_of(event) for event in some]
        assert answer(state, names) == (names, [])


@given(st.data())
def test_an_answer_is_what_was_asked_for_and_nothing_twice(data: st.DataObject) -> None:
    held = data.draw(st.lists(st.sampled_from(CHAIN), unique_by=id_of))
    wanted = data.draw(st.lists(st.sampled_from([*NAMES, LOST]), max_size=6))
    known = data.draw(st.lists(st.sampled_from(NAMES), max_size=3))
    sent, lacking = answer(state_of(held), wanted, known, data.draw(st.integers(0, 10)))
    here = {id_of(event) for event in held}
    assert len(sent) == len(set(sent))
    assert set(sent) <= here
    assert {id for id in wanted if id in here} <= set(sent)
    assert set(lacking) == {id for id in wanted if id not in here}
    assert not set(sent) & (set(known) - set(wanted))
