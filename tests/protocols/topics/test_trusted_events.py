"""What follows from a signature: which events are believed because others name them, and which have
to be signed themselves."""

from __future__ import annotations

import pytest

from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import (
    EventDescriptor,
    EventMetadata,
    PeerList,
    Signatures,
    TopicDescriptor,
)
from shoal.kernel.effects import Verify
from shoal.protocols.topics.commands import EventArrived
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.messages import Heads, Lacks, PublishEvent, Want
from tests.support.topic_bench import STAMP, START_MS, event_by, id_of, peer_of, topic_by
from tests.support.topic_scenes import ID, TOPIC, reader, reader_of

EVENT = event_by(0, ID, b"news")


def test_what_the_only_publisher_says_that_it_made_needs_no_signature() -> None:
    bench = reader()
    first = EventDescriptor(ID, EVENT.author, b"first", EVENT.metadata, EVENT.publisher)
    second = event_by(0, ID, b"second", id_of(first))
    bench.says(0, PublishEvent(second, STAMP))
    bench.finish()
    assert bench.payloads("s") == []
    (want,) = [one for one in bench.sent_to(0) if isinstance(one, Want)]
    assert want.events == (id_of(first),)
    bench.says(0, PublishEvent(first, STAMP))
    assert not any(isinstance(work, Verify) for _, work in bench.host.slow_work)
    assert bench.payloads("s") == [b"first", b"second"]


WALL = topic_by(0, "wall", publishers=PeerList(False))
PAIR = topic_by(0, "pair", publishers=PeerList(True, (peer_of(0), peer_of(4))))
# The topic, who publishes in it, and in whose name.
FORGERIES = {
    "open": (WALL, 4, 0, 0),
    "two publishers": (PAIR, 4, 0, 0),
    "asked to publish": (TOPIC, 0, 3, 0),
}


@pytest.mark.parametrize("by_dht", [False, True])
@pytest.mark.parametrize(
    ("topic", "forger", "author", "publisher"), FORGERIES.values(), ids=FORGERIES
)
def test_nobody_speaks_for_others_by_naming_what_they_never_said(
    topic: TopicDescriptor, forger: int, author: int, publisher: int, by_dht: bool
) -> None:
    bench = reader_of(topic)
    id = id_of(topic)
    never_said = EventDescriptor(
        id,
        peer_of(author),
        b"I resign",
        EventMetadata(START_MS, signatures=Signatures(bytes(64), bytes(64))),
        publisher=peer_of(publisher),
    )
    bench.says(0, PublishEvent(event_by(forger, id, b"mine", id_of(never_said)), STAMP))
    bench.finish()
    assert id_of(never_said) in bench.state(id).fetches
    if by_dht:
        bench.dht.keep(id_of(never_said), encode_descriptor(never_said))
        for number in (0, 3):
            bench.says(number, Lacks(id, (id_of(never_said),), STAMP))
    else:
        bench.says(0, PublishEvent(never_said, STAMP))
    assert bench.payloads("s") == []
    bench.finish(valid=False)
    assert bench.rejected() == ["bad-signature"]
    # The name stands for these bytes: nobody has better ones, and nothing waits for them.
    (told,) = bench.told(EventArrived)
    assert (told.event.payload, told.gap_before) == (b"mine", True)
    assert len(bench.state(id).fetches) == 0


def test_what_others_follow_is_told_in_order_once_it_is_checked() -> None:
    bench = reader_of(WALL)
    first = event_by(4, id_of(WALL), b"first")
    second = event_by(3, id_of(WALL), b"second", id_of(first))
    bench.says(0, PublishEvent(second, STAMP))
    bench.finish()
    bench.says(0, PublishEvent(first, STAMP))
    before = len(bench.host.sent)
    bench.host.advance(2 * bench.machine.config.want_timeout_ns)
    asked = [one for number in (0, 3) for one in bench.sent_to(number, before)]
    assert not [one for one in asked if isinstance(one, Want)], "it is here"
    bench.finish()
    assert bench.payloads("s") == [b"first", b"second"]


def test_what_the_dht_gave_while_too_many_were_checked_is_looked_for_again() -> None:
    bench = reader(TopicsConfig(checks_max=1))
    bench.dht.keep(id_of(EVENT), encode_descriptor(EVENT))
    bench.says(0, Heads(ID, (id_of(EVENT),), STAMP), PublishEvent(event_by(0, ID, b"x"), STAMP))
    for number in (0, 3):
        bench.says(number, Lacks(ID, (id_of(EVENT),), STAMP))
    assert bench.rejected() == ["busy"]
    bench.finish()
    for _ in range(3):
        bench.host.advance(bench.machine.config.want_timeout_ns)
    bench.finish()
    assert bench.payloads("s") == [b"x", b"news"]
