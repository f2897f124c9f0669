"""What campaigns of topics over sockets and their worker processes tell each other: a JSON object a
line, over pipes. Nodes, topics and events are numbers."""

from __future__ import annotations

import msgspec

from campaigns.worker_words import Figures, Look, Opened, Work


class TopicWork(Work, frozen=True):
    """To a worker, once."""

    on_disk: bool
    """Whether topics outlive the process; journals do."""


# To a worker


class Create(msgspec.Struct, frozen=True, tag=True):
    """Make a topic, and have others keep it."""

    node: int
    topic: int
    ordered: bool
    """Only its author publishes; else everybody does."""
    replicas: int


class Read(msgspec.Struct, frozen=True, tag=True):
    """Subscribe, and keep a journal."""

    node: int
    topic: int
    cid: str


class Inject(msgspec.Struct, frozen=True, tag=True):
    """Publish an event in a topic that the node reads."""

    node: int
    topic: int
    event: int
    size_bytes: int


ToWorker = Create | Read | Inject | Look


# From a worker


class Created(msgspec.Struct, frozen=True, tag=True):
    topic: int
    cid: str


class Reading(msgspec.Struct, frozen=True, tag=True):
    """The subscription has begun."""

    node: int
    topic: int


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """publish() has returned."""

    event: int
    time_ns: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    event: int
    reason: str


class Traffic(msgspec.Struct):
    """What one node got from one other: RPCs of topics, messages of the DHT, and all their bytes,
    without what links add."""

    rpcs: int = 0
    dht: int = 0
    bytes: int = 0


class NodeFigures(msgspec.Struct, frozen=True):
    """One node since its start."""

    number: int
    received: dict[str, Traffic]
    """By the id of the sender."""
    children: dict[int, int]
    """By topic, in its tree."""
    rejected: dict[str, int]


TopicFigures = Figures[NodeFigures]

FromWorker = Opened | Created | Reading | Accepted | Refused | TopicFigures
