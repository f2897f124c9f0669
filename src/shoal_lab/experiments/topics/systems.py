"""The workload over durable topics: every node is a node of the DHT and of topics.

Applications subscribe to a topic and to its meta topic. One whose node came back subscribes again
after the last event that it was given, or from the beginning if there was none: that is all it has
to remember. Authors, too: a topic is made once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from shoal.identity.topics.cid import Cid, cid_of
from shoal.identity.topics.descriptor_codec import encode_descriptor
from shoal.identity.topics.descriptors import ANYONE, TopicDescriptor, new_meta_topic, new_topic
from shoal.identity.topics.event_signatures import sign_topic
from shoal.kernel.machine import Codec, Machine
from shoal.protocols.dht.machine import DhtNode
from shoal.protocols.dht.wire import DhtCodec
from shoal.protocols.topics.commands import (
    BEGINNING,
    LIVE,
    AddTopic,
    EventAccepted,
    EventArrived,
    Publish,
    PublishRefused,
    Start,
    Subscribe,
    TopicFound,
)
from shoal.protocols.topics.heads import judge_topics
from shoal.protocols.topics.machine import TopicNode
from shoal.protocols.topics.messages import NewTopic, PublishEvent, RequestToPublish, Rpc
from shoal.protocols.topics.wire import TopicsCodec
from shoal.sim.checkers import Checker
from shoal.sim.host import SimNode
from shoal_lab.baselines.floodsub import (
    Connect,
    FloodArrived,
    Flooded,
    FloodSent,
    FloodsubCodec,
    FloodsubNode,
    PublishIn,
    SubscribeTo,
)
from shoal_lab.experiments.topics.ledger import event_of
from shoal_lab.experiments.topics.workload_network import WorkloadNetwork
from shoal_lab.scenarios.scenario import Scenario

DHT_SLOT = 0
TOPICS_SLOT = 1
BOOTSTRAPS = 3
RETRY_S = 10.0  # a reader whose topic was not found looks again
READ, META = "read", "meta"  # kinds of subscriptions: their tokens are a kind and a topic


class MadeTopic(NamedTuple):
    """A topic as its author made it."""

    id: Cid
    meta_id: Cid
    topic: TopicDescriptor
    meta: TopicDescriptor


class TopicsNetwork(WorkloadNetwork):
    """Nodes with a DHT machine and a topics machine each."""

    event_kind = "rpc/PublishEvent"

    def __init__(
        self, scenario: Scenario, seed: int, *, checkers: Sequence[Checker] = (), replay: str = ""
    ) -> None:
        codecs: list[Codec] = [DhtCodec(), TopicsCodec()]
        super().__init__(scenario, seed, codecs, checkers=checkers, replay=replay)
        self.topics = [self._make_topic(n) for n in range(len(self.workload.topics))]
        self._names = {made.id: f"topic {number}" for number, made in enumerate(self.topics)}
        self._reading = False

    # Machines

    def make_machines(self, number: int, node: SimNode) -> Sequence[Machine]:
        random, addresses = self.simulation.random, self.contacts[number].addresses
        if node.incarnation > 1:
            # The application begins as soon as its node is there.
            begin = partial(self._begin_again, number, node.incarnation)
            self.simulation.scheduler.after(0, lambda _: begin(), None)
        dht = DhtNode(
            node.id,
            tuple(self.contacts[:BOOTSTRAPS]),
            judge_topics,
            random("dht", number, node.incarnation),
            addresses=addresses,
        )
        rng = random("topics", number, node.incarnation)
        return [dht, TopicNode(self.keys[number], rng, addresses=addresses)]

    def _make_topic(self, number: int) -> MadeTopic:
        key = self.keys[self.workload.topics[number].author]
        peer, created_ms = bytes(key.public.peer_id), self.created_ms
        name = f"topic-{number}"
        meta = sign_topic(new_meta_topic(name, peer, created_ms), key)
        meta_id = cid_of(encode_descriptor(meta))
        publishers = None if self.options.ordered else ANYONE
        topic = new_topic(name, peer, created_ms, meta=meta_id, publishers=publishers)
        topic = sign_topic(topic, key)
        return MadeTopic(cid_of(encode_descriptor(topic)), meta_id, topic, meta)

    # Applications

    def create_topics(self) -> None:
        for topic, plan in enumerate(self.workload.topics):
            node, made = self.nodes[plan.author], self.topics[topic]
            if node.host is not None:
                node.command(TOPICS_SLOT, AddTopic(made.meta), (META, topic))
                node.command(TOPICS_SLOT, AddTopic(made.topic), (META, topic))
                self._read(plan.author, topic)
                told = Publish(made.meta_id, encode_descriptor(made.topic))
                node.command(TOPICS_SLOT, told, (META, topic))

    def begin_reading(self) -> None:
        self._reading = True
        for number in self.running():
            for topic, plan in enumerate(self.workload.topics):
                if number in plan.readers and number != plan.author:
                    self._read(number, topic)

    def publish(self, node: SimNode, topic: int, payload: bytes, event: int) -> None:
        node.command(TOPICS_SLOT, Publish(self.topics[topic].id, payload), event)

    def told(self, number: int, event: Any) -> None:
        now_ns = self.simulation.scheduler.now_ns
        match event:
            case EventArrived(subscription=(kind, _), id=id, event=descriptor) if kind == READ:
                self.ledger.gaps += event.gap_before
                came = event_of(descriptor.payload)
                self.ledger.arrive(number, came, id, descriptor.parent, now_ns)
            case EventAccepted(token=int(token)):
                self.ledger.accept(token, now_ns)
            case PublishRefused(reason=reason, token=int()):
                self.ledger.refuse(reason)
            case TopicFound(topic=None, token=(str(kind), int(topic))):
                again = partial(self._try_again, number, kind, topic, self._life(number))
                self.simulation.at_s(self.simulation.time_s + RETRY_S, again)

    def _life(self, number: int) -> int:
        """Which incarnation runs; 0 if none does."""
        node = self.nodes[number]
        return 0 if node.host is None else node.incarnation

    def _begin_again(self, number: int, life: int) -> None:
        if self._life(number) != life or not self._reading:
            return
        self.ledger.resume(number)
        for topic, plan in enumerate(self.workload.topics):
            if number in plan.readers:
                self._read(number, topic)

    def _read(self, number: int, topic: int) -> None:
        for kind in (READ, META):
            self._subscribe(number, kind, topic)

    def _try_again(self, number: int, kind: str, topic: int, life: int) -> None:
        if self._life(number) == life:
            self._subscribe(number, kind, topic)

    def _subscribe(self, number: int, kind: str, topic: int) -> None:
        node, made = self.nodes[number], self.topics[topic]
        start: Start = LIVE
        if kind == READ and node.incarnation > 1:
            checkpoint = self.ledger.last.get((number, topic))
            start = BEGINNING if checkpoint is None else Cid(checkpoint)
        wanted = made.id if kind == READ else made.meta_id
        node.command(TOPICS_SLOT, Subscribe(wanted, start), (kind, topic))

    # Counts

    def sort_message(self, message: Any) -> Mapping[str, int]:
        if type(message) is not Rpc:
            return {"dht": 1, f"dht/{type(message).__name__}": 1}
        counts: Counter[str] = Counter(rpc=len(message.messages))
        for one in message.messages:
            counts[f"rpc/{type(one).__name__}"] += 1
            match one:
                case PublishEvent(event) | RequestToPublish(event):
                    topic = event.topic
                case NewTopic():
                    continue
                case _:
                    topic = one.topic
            counts[self._names.get(topic, META)] += 1
        return counts

    def state_bytes(self, node: SimNode) -> tuple[int, int]:
        dht = cast(DhtNode, node.machines[DHT_SLOT])
        return cast(TopicNode, node.machines[TOPICS_SLOT]).state_bytes(), dht.values.used


# The workload over Floodsub: a random graph of nodes that does not mend itself.


class FloodsubNetwork(WorkloadNetwork):
    """Half of its neighbours each node draws itself, and is drawn by as many in the mean."""

    event_kind = "rpc/Flooded"

    def __init__(
        self, scenario: Scenario, seed: int, *, checkers: Sequence[Checker] = (), replay: str = ""
    ) -> None:
        super().__init__(scenario, seed, [FloodsubCodec()], checkers=checkers, replay=replay)
        self.neighbours = self._draw_graph()

    def make_machines(self, number: int, node: SimNode) -> Sequence[Machine]:
        return [FloodsubNode(node.id)]

    def create_topics(self) -> None:
        """A topic of Floodsub is a name: there is nothing to make. Nodes connect instead."""
        for number in self.running():
            contacts = [self.contacts[peer] for peer in sorted(self.neighbours[number])]
            self.nodes[number].command(0, Connect(tuple(contacts)))

    def begin_reading(self) -> None:
        for number in self.running():
            read = [str(n) for n, t in enumerate(self.workload.topics) if number in t.readers]
            self.nodes[number].command(0, SubscribeTo(tuple(read)))

    def publish(self, node: SimNode, topic: int, payload: bytes, event: int) -> None:
        node.command(0, PublishIn(str(topic), payload), event)

    def told(self, number: int, event: Any) -> None:
        now_ns = self.simulation.scheduler.now_ns
        match event:
            case FloodSent(_, token):
                self.ledger.accept(cast(int, token), now_ns)
            case FloodArrived(message):
                id = message.author + message.number.to_bytes(8, "big")
                self.ledger.arrive(number, event_of(message.payload), id, None, now_ns)

    def sort_message(self, message: Any) -> Mapping[str, int]:
        if type(message) is Flooded:
            return {"rpc": 1, "rpc/Flooded": 1, f"topic {message.topic}": 1}
        return {"rpc": 1, "rpc/Interests": 1}

    def state_bytes(self, node: SimNode) -> tuple[int, int]:
        return cast(FloodsubNode, node.machines[0]).state_bytes(), 0

    def _draw_graph(self) -> list[set[int]]:
        rng = self.simulation.random("neighbours")
        count = len(self.nodes)
        drawn: list[set[int]] = [set() for _ in range(count)]
        # One edge for every two ends that are wanted; the graph is drawn among all that have so
        # many edges.
        edges = min(count * (count - 1) // 2, round(count * self.options.neighbours / 2))
        for edge in rng.sample(range(count * (count - 1) // 2), edges):
            a, b = _pair(edge)
            drawn[a].add(b)
            drawn[b].add(a)
        return drawn


def _pair(edge: int) -> tuple[int, int]:
    """The number of an edge as its ends: 0 is (1, 0), 1 and 2 are (2, 0) and (2, 1), ..."""
    a = 1
    while (a + 1) * a // 2 <= edge:
        a += 1
    return a, edge - a * (a - 1) // 2
