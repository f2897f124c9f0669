"""Whatever peers say, in whatever order, a topics machine does not raise, and stays consistent."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.units import MS_NS, S_NS
from shoal.identity import verify_signed
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE, EventDescriptor, EventLinking, is_allowed
from shoal.identity.topics.event_signatures import core_cid, signatures_hold
from shoal.kernel.effects import Verify
from shoal.kernel.records import Rejected
from shoal.protocols.topics.commands import (
    BEGINNING,
    AddTopic,
    EventArrived,
    Fetch,
    Publish,
    Subscribe,
    Unsubscribe,
)
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.event_log import ENTRY_BYTES
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
    Rpc,
    Stamp,
    Want,
)
from shoal.protocols.topics.wire import decode_rpc, encode_rpc
from tests.support.topic_bench import (
    START_MS,
    TopicBench,
    chain_by,
    contact_of,
    event_by,
    id_of,
    meta_by,
    request_by,
    topic_by,
)
from tests.support.topics import messages as any_messages

PEERS = (1, 2, 3, 4)
OWN = topic_by(0, "own")
READ = topic_by(1, "read")
OPEN = topic_by(2, "open", publishers=ANYONE, linking=EventLinking.CUSTOM)
KNOWN = {id_of(topic): topic for topic in (OWN, READ, OPEN)}
TOPICS = [*KNOWN.values(), topic_by(3, "unknown"), meta_by(4)]
TOPIC_IDS = [*map(id_of, TOPICS), cid_of(b"no topic")]


@lru_cache
def made() -> list[EventDescriptor]:
    """Good events of each topic, and wrong ones."""
    some: list[EventDescriptor] = []
    for author, topic in ((0, OWN), (1, READ), (2, OPEN), (3, OPEN)):
        id = id_of(topic)
        some += chain_by(author, id, 4, 50_000)
        some.append(event_by(author, id, b"fork", id_of(some[-4])))
        some.append(event_by(author, id, b"lost", cid_of(b"lost")))
        some.append(event_by(4, id, b"asked for", id_of(some[-2]), publisher=author))
        some.append(event_by(4, id, b"not allowed", id_of(some[-2])))
        some.append(request_by(4, id, b"asked for"))
    good = some[0]
    some.append(EventDescriptor(good.topic, good.author, b"x", good.metadata, good.publisher))
    return some


events = st.deferred(lambda: st.sampled_from(made()))
event_ids = events.map(id_of) | st.sampled_from([cid_of(b"lost"), cid_of(b"never")])
some_ids = st.lists(event_ids, max_size=5).map(tuple)
topic_ids = st.sampled_from(TOPIC_IDS)
contacts = st.lists(st.integers(0, 8).map(contact_of), max_size=4).map(tuple)
stamps = st.sampled_from([START_MS, 0, START_MS + 10**9, -(10**12), 10**14]).map(Stamp)
numbers = st.sampled_from([0, 1, START_MS - START_MS % 60_000, 2**64 - 1])
spans = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
likely: st.SearchStrategy[Message] = st.one_of(
    st.builds(PublishEvent, events, stamps),
    st.builds(PublishEvent, events, stamps),
    st.builds(JoinTopic, topic_ids, stamps, st.sampled_from([(), ("ws://a:1",)])),
    st.builds(LeaveTopic, topic_ids, stamps),
    st.builds(NewTopic, st.sampled_from(TOPICS), stamps),
    st.builds(RequestToPublish, events, stamps, st.none() | event_ids),
    st.builds(Heads, topic_ids, some_ids, stamps),
    st.builds(Redirect, topic_ids, contacts, stamps),
    st.builds(PublishAnswer, topic_ids, events.map(core_cid), event_ids, stamps),
    st.builds(PublishAnswer, topic_ids, events.map(core_cid), st.none(), stamps, st.just("no")),
    st.builds(Path, topic_ids, contacts, stamps),
    st.builds(
        lambda id, n, at: Path(id, (contact_of(n),), at), topic_ids, st.integers(1, 4), stamps
    ),
    st.builds(Want, topic_ids, some_ids, stamps, some_ids),
    st.builds(Lacks, topic_ids, some_ids, stamps),
    st.builds(Digest, topic_ids, numbers, spans, stamps),
)
rpcs = st.lists(likely | any_messages, min_size=1, max_size=4)
commands = st.sampled_from(
    [
        Publish(id_of(OWN), b"mine"),
        Publish(id_of(READ), b"please"),
        Publish(id_of(OPEN), b"open"),
        Subscribe(id_of(READ), BEGINNING),
        Subscribe(id_of(OPEN), cid_of(b"lost")),
        Unsubscribe("s1"),
        Fetch(cid_of(b"never"), id_of(READ)),
    ]
)


CONFIG = TopicsConfig(
    children_max=2, events_bytes_max=8 * (ENTRY_BYTES + 64), gap_patience_ns=30 * S_NS
)


def bench() -> TopicBench:
    one = TopicBench(0, CONFIG, contacts=[contact_of(n) for n in range(5)])
    for event in made()[::2]:
        one.dht.keep(id_of(event), encode_descriptor(event))
    for id, topic in KNOWN.items():
        one.dht.keep(id, encode_descriptor(topic))
    one.command(AddTopic(OWN))
    for number, id in enumerate(KNOWN):
        one.command(Subscribe(id), f"s{number}")
    one.meet(*PEERS)
    return one


@settings(max_examples=40)
@given(st.data())
def test_nothing_that_peers_say_makes_a_machine_raise(data: st.DataObject) -> None:
    node = bench()
    for number in range(data.draw(st.integers(1, 25))):
        peer = contact_of(data.draw(st.sampled_from(PEERS))).node
        match data.draw(st.sampled_from("mmmmmmvvvtlcd")):
            case "m":
                node.host.received(peer, Rpc(tuple(data.draw(rpcs))))
            case "v" if node.host.slow_work:
                node.host.finish_one(valid=data.draw(st.booleans()))
            case "t":
                node.host.advance(data.draw(st.integers(0, 40_000)) * MS_NS)
            case "l" if node.host.links.is_up(peer):
                node.host.link_closed(peer, "gone")
            case "l":
                node.host.link_opened(peer)
            case "c":
                node.host.command(node.machine, data.draw(commands), f"c{number}")
            case "d" if node.host.dialled:
                contact = node.host.dialled.pop()
                if contact.node in node.host.links and not node.host.links.is_up(contact.node):
                    node.host.dial_failed(contact.node, "refused")
        node.machine.check_invariants()
    for _, rpc in node.host.sent:
        assert decode_rpc(encode_rpc(rpc.messages)) == rpc.messages, "peers can read it"
    node.finish()
    node.host.advance(400 * S_NS)
    node.finish()
    again = TopicBench(0, CONFIG, disk=node.host.disk, now_ns=node.host.time_ns)
    again.machine.check_invariants()
    for id in KNOWN:
        assert set(again.state(id).log.events) == set(node.state(id).log.events)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(PEERS), rpcs), max_size=20))
def test_only_what_is_signed_and_allowed_is_told(said: list[tuple[int, list[Message]]]) -> None:
    node = bench()
    verify = {id_of(event): signatures_hold(event) for event in made()}
    for peer, rpc in said:
        node.says(peer, *rpc)
        while node.host.slow_work:
            _, work = node.host.slow_work[0]
            signed = getattr(work, "signed", b"")
            node.host.finish_one(valid=not signed or _holds(work))
        node.machine.check_invariants()
    for told in node.told(EventArrived):
        assert verify.get(told.id, True)
        assert is_allowed(KNOWN[Cid(told.event.topic)], told.event)


def _holds(work: object) -> bool:
    assert isinstance(work, Verify)
    return verify_signed(work.signer, work.signed)


@given(any_messages)
def test_what_makes_no_sense_is_counted_or_answered_and_changes_nothing(message: Message) -> None:
    node = TopicBench(0)
    node.meet(1)
    before = len(node.host.sent)
    node.says(1, message)
    node.finish(valid=False)
    assert node.machine.topics == {}
    answered = len(node.host.sent) > before
    assert answered or any(isinstance(one, Rejected) for one in node.host.records)
