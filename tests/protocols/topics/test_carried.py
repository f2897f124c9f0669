"""Topics that are carried for others take so much memory, and each peer's so much of that."""

from __future__ import annotations

from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import PeerList, TopicDescriptor
from shoal.protocols.topics.commands import Subscribe
from shoal.protocols.topics.config import (
    CARRIED_BYTES_MAX,
    CARRIED_SHARES,
    SUBSCRIPTIONS_MAX,
)
from shoal.protocols.topics.messages import JoinTopic, NewTopic
from shoal.protocols.topics.topic import Carried, size_of
from tests.support.machines import peer_id
from tests.support.topic_bench import STAMP, TopicBench, contact_of, id_of, peer_of, topic_by

SHARE = CARRIED_BYTES_MAX // CARRIED_SHARES
PEERS = [peer_id(number) for number in range(CARRIED_SHARES + 1)]


def name(number: int) -> Cid:
    return cid_of(b"%d" % number)


def test_a_peer_has_its_share() -> None:
    carried = Carried()
    assert carried.add(name(0), PEERS[0], SHARE - 1)
    assert not carried.add(name(1), PEERS[0], 2)
    assert carried.add(name(1), PEERS[0], 1)
    assert carried.bytes == SHARE


def test_all_together_have_no_more_than_there_is() -> None:
    carried = Carried()
    taken = [carried.add(name(number), peer, SHARE) for number, peer in enumerate(PEERS)]
    assert taken == [True] * CARRIED_SHARES + [False]
    carried.remove(name(0))
    carried.remove(name(0))
    assert carried.bytes == CARRIED_BYTES_MAX - SHARE
    assert carried.add(name(9), PEERS[-1], SHARE)


def test_a_peer_that_listens_to_all_it_can_finds_nearly_all_of_it_carried() -> None:
    assert SHARE // size_of(topic_by(0)) > 0.9 * SUBSCRIPTIONS_MAX


def large(number: int) -> TopicDescriptor:
    """A topic of 200 KB in memory."""
    peers = tuple(b"\x12\x20" + cid_of(b"%d" % each)[-32:] for each in range(1023))
    return topic_by(3, f"{number}", publishers=PeerList(True, (peer_of(3), *peers)))


def join(bench: TopicBench, number: int, topic: TopicDescriptor) -> None:
    bench.says(number, NewTopic(topic, STAMP), JoinTopic(id_of(topic), STAMP))
    bench.finish()


def test_large_topics_of_one_peer_do_not_fill_a_node() -> None:
    bench = TopicBench(2)
    bench.meet(3, 4)
    room = SHARE // size_of(large(0))
    for number in range(room + 2):
        join(bench, 3, large(number))
    assert bench.rejected() == ["too-many-topics"] * 2
    assert len(bench.machine.topics) == room
    assert room * size_of(large(0)) <= bench.machine.state_bytes() <= SHARE
    assert size_of(large(0)) > 4 * len(encode_descriptor(large(0))), "as measured"
    join(bench, 4, topic_by(4))
    assert bench.rejected() == [], "others' topics are carried"
    # Who says nothing is no child any more, and what nobody needs is let go of.
    bench.host.advance(12 * bench.machine.config.beat_ns)
    assert (bench.machine.topics, bench.machine.state_bytes()) == ({}, 0)
    join(bench, 3, large(room))
    assert bench.rejected() == []


def test_what_is_read_here_as_well_is_nobodys_share() -> None:
    bench = TopicBench(2, contacts=[contact_of(0)])
    bench.meet(3)
    room = SHARE // size_of(large(0))
    for number in range(room):
        join(bench, 3, large(number))
    bench.command(Subscribe(id_of(large(0))), "s")
    join(bench, 3, large(room))
    assert bench.rejected() == []
    assert len(bench.machine.topics) == room + 1
