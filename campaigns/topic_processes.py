"""A network of topics in worker processes of this machine, for campaigns.

    async with Processes(Path(folder), nodes=100, processes=8, name="run", ...) as network:
        await network.create({0: 3}, ordered=[0])
        await network.read({0: range(100)})
        network.inject(...)

What is said of processes in workers.py holds here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from campaigns.topic_journal import Given, Tail
from campaigns.topic_words import (
    Accepted,
    Create,
    Created,
    FromWorker,
    Inject,
    NodeFigures,
    Read,
    Reading,
    Refused,
    TopicWork,
)
from campaigns.worker_words import NodeWork
from campaigns.workers import Workers

MODULE = "campaigns.topic_worker"
REPLICAS_MAX = 5  # of a topic, before anybody is told of it

Tell = Callable[[Accepted | Refused], None]
ToldGiven = Callable[[int, Given | None], None]  # node; None: it begins a life


class Processes(Workers[NodeFigures]):
    """All workers, and their topics."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int,
        processes: int,
        name: str,
        on_disk: bool,
        tell: Tell,
    ) -> None:
        super().__init__(
            MODULE,
            FromWorker,
            folder,
            nodes=nodes,
            processes=processes,
            name=name,
            hear=self._heard,
        )
        self.cids: dict[int, str] = {}
        self._reading: set[tuple[int, int]] = set()
        self._on_disk = on_disk
        self._tell = tell
        self._tails = [Tail(self.folder_of(number) / "journal") for number in range(nodes)]

    def work(self, nodes: tuple[NodeWork, ...]) -> TopicWork:
        """What a worker is told first."""
        return TopicWork(nodes, self._on_disk)

    async def create(self, authors: Mapping[int, int], ordered: Collection[int]) -> None:
        """Make topics, by number and author, and wait until others keep them."""
        replicas = min(REPLICAS_MAX, self.nodes - 1)
        for topic, author in authors.items():
            self.of(author).say(Create(author, topic, topic in ordered, replicas))
        await self.wait(lambda: authors.keys() <= self.cids.keys(), "all topics to be stored")

    async def read(self, readers: Mapping[int, Collection[int]]) -> None:
        """Subscribe, by topic, and wait until all have."""
        wanted = {(node, topic) for topic, nodes in readers.items() for node in nodes}
        self._reading -= wanted  # in an earlier life
        for node, topic in sorted(wanted):
            self.of(node).say(Read(node, topic, self.cids[topic]))
        await self.wait(lambda: wanted <= self._reading, "all subscriptions")

    def inject(self, node: int, topic: int, event: int, size_bytes: int) -> None:
        """Have a node publish an event."""
        self.of(node).say(Inject(node, topic, event, size_bytes))

    def follow(self, told: ToldGiven) -> None:
        """Tell what readers were given since the last time."""
        for node, tail in enumerate(self._tails):
            for given in tail.read():
                told(node, given)

    def _heard(self, said: Created | Reading | Accepted | Refused) -> None:
        match said:
            case Created(topic, cid):
                self.cids[topic] = cid
            case Reading(node, topic):
                self._reading.add((node, topic))
            case _:
                self._tell(said)
