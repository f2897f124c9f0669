"""Parts of tests of the topics machine: topics and events of known authors, one machine at a fake
host, and a few machines in a simulation. The DHT is a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, TypeVar, cast

from shoal.base.ids import Contact, NodeId
from shoal.base.units import MS_NS
from shoal.identity import PrivateKey, SeededEntropy
from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import (
    EventDescriptor,
    EventLinking,
    EventMetadata,
    PeerList,
    TopicDescriptor,
    new_meta_topic,
    new_topic,
)
from shoal.identity.topics.event_signatures import publish_event, sign_event, sign_topic
from shoal.kernel.effects import Effect, Send
from shoal.kernel.fake_host import FakeHost
from shoal.kernel.inputs import Input, MessageReceived, Started
from shoal.kernel.machine import Machine
from shoal.kernel.records import Rejected
from shoal.protocols.dht.commands import Find, FindDone, Get, GetDone, Put, PutDone
from shoal.protocols.dht.key_space import id_of_node
from shoal.protocols.dht.validators import read_record
from shoal.protocols.dht.wire import DhtCodec
from shoal.protocols.topics.commands import EventArrived
from shoal.protocols.topics.config import TopicsConfig
from shoal.protocols.topics.machine import TopicNode
from shoal.protocols.topics.messages import Message, Rpc, Stamp
from shoal.protocols.topics.topic import TopicState
from shoal.protocols.topics.wire import TopicsCodec
from shoal.sim import ConstantDelay, SimNode, Simulation
from shoal.sim.checkers import MachineInvariants
from shoal.sim.simulation import START_NS

START_MS = START_NS // MS_NS
STAMP = Stamp(START_MS)
TOPICS = 1  # the slot of the topics machine
T = TypeVar("T")


@lru_cache
def key_of(number: int) -> PrivateKey:
    return PrivateKey.generate(SeededEntropy(f"topic peer {number}"))


def contact_of(number: int) -> Contact:
    return Contact(key_of(number).address, (f"ws://10.0.0.{number + 1}:1",))


def peer_of(number: int) -> bytes:
    """Its peer id, as descriptors hold it."""
    return bytes(key_of(number).public.peer_id)


def topic_by(
    author: int,
    name: str = "news",
    *,
    publishers: PeerList | None = None,
    requests: PeerList | None = None,
    linking: EventLinking = EventLinking.LAST_SEEN,
    created_ms: int = START_MS,
    parent: Cid | None = None,
) -> TopicDescriptor:
    """A signed topic; its meta topic is `meta_by` of the same name."""
    topic = new_topic(
        name,
        peer_of(author),
        created_ms,
        meta=id_of(meta_by(author, name)),
        parent=parent,
        publishers=publishers,
        requests=requests or PeerList(True),
        linking=linking,
    )
    return sign_topic(topic, key_of(author))


def meta_by(author: int, name: str = "news") -> TopicDescriptor:
    return sign_topic(new_meta_topic(name, peer_of(author), START_MS), key_of(author))


def id_of(descriptor: TopicDescriptor | EventDescriptor) -> Cid:
    return cid_of(encode_descriptor(descriptor))


def request_by(
    author: int, topic: Cid, payload: bytes, created_ms: int = START_MS
) -> EventDescriptor:
    """An event that its author signed, for somebody else to publish."""
    event = EventDescriptor(topic, peer_of(author), payload, EventMetadata(created_ms))
    return sign_event(event, key_of(author))


def event_by(
    author: int,
    topic: Cid,
    payload: bytes = b"",
    parent: Cid | None = None,
    *,
    publisher: int | None = None,
    created_ms: int = START_MS,
) -> EventDescriptor:
    """A published event."""
    placed_by = author if publisher is None else publisher
    return publish_event(request_by(author, topic, payload, created_ms), key_of(placed_by), parent)


def chain_by(author: int, topic: Cid, count: int, step_ms: int = 1) -> list[EventDescriptor]:
    """Events, each after the one before."""
    made: list[EventDescriptor] = []
    for number in range(count):
        parent = id_of(made[-1]) if made else None
        payload, created_ms = b"%d" % number, START_MS + number * step_ms
        made.append(event_by(author, topic, payload, parent, created_ms=created_ms))
    return made


class FakeDht:
    """Knows everybody, and keeps everything at once; several nodes share one dictionary."""

    accepts = (Find, Get, Put)

    def __init__(
        self,
        node: NodeId,
        contacts: Iterable[Contact] = (),
        values: dict[bytes, dict[bytes, bytes]] | None = None,
    ) -> None:
        self.node = node
        self.contacts = list(contacts)
        self.values = {} if values is None else values
        self.asked: list[Any] = []

    def keep(self, key: bytes, value: bytes) -> None:
        """Of records, one for each signer."""
        record = read_record(value)
        self.values.setdefault(key, {})[b"" if record is None else record[0]] = value

    def handle(self, event: Input, now_ns: int) -> Sequence[Effect]:
        if isinstance(event, Started):
            return []
        assert isinstance(event, MessageReceived)
        self.asked.append(event.message)
        return [Send(self._answer(event.message), (self.node,))]

    def _answer(self, asked: Any) -> Any:
        match asked:
            case Find(target):
                others = [one for one in self.contacts if one.node != self.node]
                others.sort(key=lambda one: id_of_node(one.node) ^ target)
                return FindDone(target, tuple(others), asked.token)
            case Get(key):
                return GetDone(key, tuple(self.values.get(key, {}).values()), asked.token)
            case Put(key, value):
                self.keep(key, value)
                return PutDone(key, 3, asked.token)

    def check_invariants(self) -> None:
        """There is nothing to break."""


class TopicBench:
    """One topics machine, which has read its empty disk; the test is its peers and its DHT."""

    def __init__(
        self,
        number: int = 0,
        config: TopicsConfig | None = None,
        *,
        contacts: Iterable[Contact] = (),
        disk: dict[tuple[int, bytes], bytes | None] | None = None,
        now_ns: int = START_NS,
    ) -> None:
        self.contact = contact_of(number)
        self.machine = TopicNode(key_of(number), Random(number), config, self.contact.addresses)
        self.dht = FakeDht(self.contact.node, contacts)
        self.host = FakeHost(self.contact.node, [self.dht, self.machine])
        self.host.time_ns = now_ns
        self.host.disk = {} if disk is None else dict(disk)
        self.host.start()
        self.host.finish_all()

    def state(self, topic: Cid) -> TopicState:
        return self.machine.topics[topic]

    def meet(self, *numbers: int) -> None:
        """Links from these peers are up."""
        for number in numbers:
            self.host.link_opened(contact_of(number).node)

    def says(self, number: int, *messages: Message) -> list[Any]:
        """A peer sends an RPC, signatures are not checked yet; what it is sent in return."""
        before = len(self.host.sent)
        self.host.received(contact_of(number).node, Rpc(messages))
        self.machine.check_invariants()
        return self.sent_to(number, before)

    def finish(self, *, valid: bool = True) -> None:
        """Disk and signatures."""
        self.host.finish_all(valid=valid)
        self.machine.check_invariants()

    def command(self, command: Any, token: Any = None) -> None:
        """The application wants something, and it is done."""
        self.host.command(self.machine, command, token)
        self.finish()

    def sent_to(self, number: int, since: int = 0) -> list[Any]:
        """The messages that a peer was sent."""
        node = contact_of(number).node
        sent = [rpc for to, rpc in self.host.sent[since:] if to == node]
        return [message for rpc in sent for message in rpc.messages]

    def gets(self, kind: str) -> list[bytes]:
        """The keys that the DHT was asked for with tokens of a kind."""
        asked: list[Any] = [one for one in self.dht.asked if isinstance(one, Get)]
        return [one.key for one in asked if one.token[0] == kind]

    def rejected(self) -> list[str]:
        """Why things were dropped; each is told once."""
        reasons = [one.reason for one in self.host.records if isinstance(one, Rejected)]
        self.host.records.clear()
        return reasons

    def told(self, kind: type[T]) -> list[T]:
        """What the application was told."""
        return [event for event in self.host.notified if isinstance(event, kind)]

    def payloads(self, subscription: Any) -> list[bytes]:
        """The events that a subscription was told, in order."""
        told = self.told(EventArrived)
        return [one.event.payload for one in told if one.subscription == subscription]


class TopicWorld:
    """A few nodes whose machines check themselves after each step."""

    def __init__(self, nodes: int, config: TopicsConfig | None = None) -> None:
        checkers = [MachineInvariants()]
        delays = ConstantDelay(10 * MS_NS)
        self.simulation = Simulation(
            1, delays, codecs=[DhtCodec(), TopicsCodec()], checkers=checkers
        )
        self.config = config
        self.values: dict[bytes, dict[bytes, bytes]] = {}
        self.contacts = [contact_of(number) for number in range(nodes)]
        self.told: list[list[Any]] = [[] for _ in range(nodes)]
        self.nodes = [self._add(number) for number in range(nodes)]
        for node in self.nodes:
            node.start()
        self.run(1)

    def _add(self, number: int) -> SimNode:
        node = self.simulation.add_node(self.contacts[number].node, lambda _: self._make(number))
        node.listeners.append(self.told[number].append)
        return node

    def _make(self, number: int) -> Sequence[Machine]:
        contact = self.contacts[number]
        rng = Random(number)
        dht = FakeDht(contact.node, self.contacts, self.values)
        return [dht, TopicNode(key_of(number), rng, self.config, contact.addresses)]

    def run(self, duration_s: float) -> None:
        self.simulation.run_for(duration_s)

    def command(self, number: int, command: Any, token: Any = None) -> None:
        self.nodes[number].command(TOPICS, command, token)

    def machine(self, number: int) -> TopicNode:
        return cast(TopicNode, self.nodes[number].machines[TOPICS])

    def state(self, number: int, topic: Cid) -> TopicState:
        return self.machine(number).topics[topic]

    def restart(self, number: int, *, lose_disk: bool = False) -> None:
        """A crash, and a second later a new beginning."""
        self.nodes[number].crash(lose_disk=lose_disk)
        self.run(1)
        self.nodes[number].start()
        self.run(1)

    def of_kind(self, number: int, kind: type[T]) -> list[T]:
        """What a node's application was told."""
        return [event for event in self.told[number] if isinstance(event, kind)]

    def payloads(self, number: int, subscription: Any) -> list[bytes]:
        """The events that a subscription was told, in order."""
        told = self.of_kind(number, EventArrived)
        return [one.event.payload for one in told if one.subscription == subscription]
