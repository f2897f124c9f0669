"""A worker process of the campaigns of topics over sockets: some nodes, and readers with journals.

    python -m campaigns.topic_worker

What it is told is in topic_words.py. Whatever the network cannot give now is asked for again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from campaigns.topic_journal import Journal
from campaigns.topic_words import (
    Accepted,
    Create,
    Created,
    Inject,
    NodeFigures,
    Read,
    Reading,
    Refused,
    TopicWork,
    ToWorker,
    Traffic,
)
from campaigns.worker import Member, Worker, be, say
from campaigns.worker_words import Look, NodeWork
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId, show_node_id
from shoal.config.sections import DhtSection, NodeSection, TopicsSection
from shoal.kernel.machine import TOPICS
from shoal.node import ANYONE, NetworkFile, Node, Topic
from shoal.transport.port import Frame
from shoal_lab.experiments.topics.ledger import NUMBER_BYTES, event_of, payload_of

RETRY_S = 1.0

A = TypeVar("A")


class TopicMember(Member):
    """One node, its topics by number, and its journal."""

    def __init__(self, work: NodeWork, node: Node) -> None:
        super().__init__(work, node)
        self.topics: dict[int, Topic] = {}
        self.journal = Journal(Path(work.folder, "journal"))
        self._traffic: dict[str, Traffic] = {}

    def figures(self) -> NodeFigures:
        """What was counted, and the trees as they are."""
        states = self.node.topics.machine.topics
        trees = {number: states.get(topic.id) for number, topic in self.topics.items()}
        children = {n: len(state.tree.children) for n, state in trees.items() if state is not None}
        return NodeFigures(self.work.number, self._traffic, children, dict(self.rejected))

    def count(self, sender: NodeId, frames: Sequence[Frame]) -> None:
        """Something has come in."""
        traffic = self._traffic.setdefault(show_node_id(sender), Traffic())
        for protocol, payload in frames:
            traffic.bytes += len(payload)
            if protocol == TOPICS:
                traffic.rpcs += 1
            else:
                traffic.dht += 1


class TopicWorker(Worker[TopicWork]):
    """Nodes with topics."""

    def __init__(self, work: TopicWork, group: asyncio.TaskGroup) -> None:
        super().__init__(work, group)
        self._members: dict[int, TopicMember] = {}

    def network(self, one: NodeWork) -> NetworkFile:
        """What a node is made from."""
        return NetworkFile(
            node=NodeSection(listen=(one.listen,)),
            dht=DhtSection(one.bootstrap),
            topics=TopicsSection("topics") if self.work.on_disk else None,
            folder=one.folder,
        )

    def add(self, one: NodeWork, node: Node) -> None:
        """A node runs."""
        self._members[one.number] = TopicMember(one, node)

    def do(self, command: ToWorker) -> None:
        """Begin with it."""
        match command:
            case Create():
                self.start(self._create(self._members[command.node], command))
            case Read():
                self.start(self._read(self._members[command.node], command))
            case Inject():
                self.start(self._publish(self._members[command.node], command))
            case Look():
                say(self.figures(member.figures() for member in self._members.values()))

    # Steps

    async def _create(self, member: TopicMember, command: Create) -> None:
        publishers = None if command.ordered else ANYONE
        name = f"topic-{command.topic}"
        topic = await persist(lambda: member.node.create_topic(name, publishers=publishers))
        await persist(lambda: topic.stored(command.replicas))
        say(Created(command.topic, topic.cid))

    async def _read(self, member: TopicMember, command: Read) -> None:
        journal = member.journal
        topic = await persist(lambda: member.node.topic(command.cid))
        # Whoever comes back with nothing in its journal was perhaps killed before the first event.
        start = journal.last.get(command.topic, "latest" if journal.life == 1 else "earliest")
        while True:
            try:
                async with topic.subscribe(start=start) as events:
                    member.topics[command.topic] = topic
                    say(Reading(command.node, command.topic))
                    async for event in events:
                        number = event_of(event.payload)
                        journal.write(command.topic, number, event, time.time_ns())
                return
            except ShoalError:
                await asyncio.sleep(RETRY_S)
                start = journal.last.get(command.topic, start)

    async def _publish(self, member: TopicMember, command: Inject) -> None:
        filling = os.urandom(max(0, command.size_bytes - NUMBER_BYTES))
        try:
            topic = member.topics[command.topic]
            await topic.publish(payload_of(command.event, filling))
        except ShoalError as error:
            say(Refused(command.event, str(error)))
        else:
            say(Accepted(command.event, time.time_ns()))


async def persist(ask: Callable[[], Awaitable[A]]) -> A:
    """Ask until there is an answer; whoever wants it has a deadline."""
    while True:
        try:
            return await ask()
        except ShoalError:
            await asyncio.sleep(RETRY_S)


if __name__ == "__main__":
    be(TopicWorker, TopicWork, ToWorker)
