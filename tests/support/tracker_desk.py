"""A tracker under test, nodes that talk to it, and what it tells them."""

from __future__ import annotations

from random import Random

from shoal.base.ids import NodeId, StreamId
from shoal.kernel.effects import Effect
from shoal.kernel.inputs import Started
from shoal.kernel.records import LinkChanged
from shoal.protocols.streams.config import TrackerConfig
from shoal.protocols.streams.messages import Instruction, Join, Status
from shoal.protocols.streams.topology.policy import LinkChanges, pair_of
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.protocols.streams.tracker.tracker import Tracker
from tests.support.streams import STREAM, Bench, contact, node, sent

CONFIG = TrackerConfig()


class LoggedPolicy(RandomPolicy):
    """The random policy, with a note of every delay it was told."""

    def __init__(self, degree: int, rng: Random) -> None:
        super().__init__(degree, rng)
        self.delays: list[tuple[NodeId, NodeId, int]] = []

    def delay_learned(self, a: NodeId, b: NodeId, rtt_ns: int) -> LinkChanges:
        self.delays.append((a, b, rtt_ns))
        return super().delay_learned(a, b, rtt_ns)


class Desk(Bench[Tracker]):
    """A tracker that has been started, and nodes that talk to it."""

    def __init__(
        self, config: TrackerConfig = CONFIG, kind: type[LoggedPolicy] = LoggedPolicy
    ) -> None:
        self.policies: dict[StreamId, LoggedPolicy] = {}
        self.kind = kind
        super().__init__(Tracker(self.make_policy, config))
        self.feed(Started())

    def make_policy(self, stream: StreamId) -> LoggedPolicy:
        self.policies[stream] = self.kind(self.machine.config.degree, Random(len(self.policies)))
        return self.policies[stream]

    def join(
        self, peer: NodeId, stream: StreamId = STREAM, epoch: int = 0, counter: int = 0
    ) -> list[Effect]:
        effects = self.receive(peer, Join(stream, contact(peer), epoch, counter, ()))
        self.link_up(peer)
        return effects

    def status(self, peer: NodeId, *missing: NodeId, stream: StreamId = STREAM) -> list[Effect]:
        """Answer the newest instruction, as handled but for the missing ones."""
        neighbours = tuple(n for n in self.neighbours(peer, stream) if n not in missing)
        counter = self.machine.streams[stream].members[peer].version[1]
        return self.receive(peer, Status(stream, self.machine.epoch, counter, neighbours))

    def neighbours(self, peer: NodeId, stream: StreamId = STREAM) -> tuple[NodeId, ...]:
        return self.machine.streams[stream].policy.neighbours(peer)

    def quiet(self, *peers: NodeId, stream: StreamId = STREAM) -> None:
        """Every member has handled its newest instruction."""
        for peer in peers or tuple(self.machine.streams[stream].members):
            self.status(peer, stream=stream)


def instructions(effects: list[Effect]) -> dict[NodeId, Instruction]:
    """The newest instruction for each node."""
    return {peer: message for message, peers in sent(effects, Instruction) for peer in peers}


def cut(a: NodeId, b: NodeId) -> LinkChanged:
    """The record of a link that the tracker takes away."""
    pair = pair_of(a, b)
    return LinkChanged(STREAM, pair.a, pair.b, False)


def crowd(count: int, *, kind: type[LoggedPolicy] = LoggedPolicy) -> tuple[Desk, list[NodeId]]:
    """So many members, all quiet."""
    desk = Desk(kind=kind)
    nodes = [node(100 + number) for number in range(count)]
    for peer in nodes:
        desk.join(peer)
    desk.quiet()
    return desk, nodes
