"""Records: the typed list of everything observable.

Machines and drivers emit them as effects; metrics, the explorer, the lab and the pipeline read
nothing else. Each class is one table: its fields are the columns, after (time_ns, node), which
the driver adds. Fields are plain values, so that a table has one flat schema (see arrow.py).
"""

from __future__ import annotations

import msgspec

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.kernel.effects import Effect

RECORD_FORMAT = 1  # grows when a column changes its meaning; readers refuse what they do not know


class Record(Effect, frozen=True, gc=False, tag=True, array_like=True):
    """Something that happened, for whoever watches."""


# Messages


class Published(Record, frozen=True, gc=False):
    """A local application published a message."""

    message: MessageId
    size_bytes: int


class Sent(Record, frozen=True, gc=False):
    """A message left for so many neighbours."""

    message: MessageId
    peers: int


class ReceivedFirst(Record, frozen=True, gc=False):
    """The first copy of a message whose signature is good."""

    message: MessageId
    peer: NodeId
    hops: int
    age_us: int


class ReceivedAgain(Record, frozen=True, gc=False):
    """One more copy of a message already seen."""

    message: MessageId
    peer: NodeId


class Delivered(Record, frozen=True, gc=False):
    """A message was handed to a local subscriber."""

    message: MessageId
    hops: int
    age_us: int


class GapFound(Record, frozen=True, gc=False):
    """A message of a chain is missing, and neighbours are asked for it."""

    stream: StreamId
    publisher: NodeId
    chain: str


class GapAbandoned(Record, frozen=True, gc=False):
    """Nobody had what is missing: the subscribers are told."""

    stream: StreamId
    publisher: NodeId
    chain: str


class Equivocation(Record, frozen=True, gc=False):
    """A publisher signed another message under an id already seen; this peer brought it."""

    message: MessageId
    peer: NodeId


class Rejected(Record, frozen=True, gc=False):
    """Something a peer sent was dropped; the reason is one of a fixed list per protocol."""

    peer: NodeId
    reason: str


# Links


class LinkUp(Record, frozen=True, gc=False):
    """A connection to a peer is up."""

    peer: NodeId


class LinkDown(Record, frozen=True, gc=False):
    """A connection to a peer is gone."""

    peer: NodeId
    reason: str


class Undeliverable(Record, frozen=True, gc=False):
    """A machine sent to a peer without a link; the message was dropped."""

    peer: NodeId


class RttMeasured(Record, frozen=True, gc=False):
    """Round trip to a neighbour, measured over the link itself."""

    peer: NodeId
    rtt_us: int


# Overlay control


class InstructionSent(Record, frozen=True, gc=False):
    """A tracker told a node its neighbours in one stream."""

    stream: StreamId
    member: NodeId
    epoch: int
    counter: int
    neighbours: int


class InstructionHandled(Record, frozen=True, gc=False):
    """A node has done what an instruction asks for, as far as it could."""

    stream: StreamId
    epoch: int
    counter: int
    wanted: int
    connected: int


class LinkChanged(Record, frozen=True, gc=False):
    """A tracker made or cut a link of a stream's overlay."""

    stream: StreamId
    a: NodeId
    b: NodeId
    present: bool


class MemberChanged(Record, frozen=True, gc=False):
    """A node entered or left a stream, as its tracker sees it."""

    stream: StreamId
    member: NodeId
    present: bool
    reason: str


# The DHT


class LookupDone(Record, frozen=True, gc=False):
    """A search of the DHT is over."""

    kind: str
    """What for: join, refresh, find, get, put, republish; beside it, where nodes crowd."""
    hops: int
    """To the value, or else to the nearest node."""
    asked: int
    failed: int
    duration_us: int
    success: bool
    """The value was found, or else: somebody answered."""


# Topics: both are CIDs


class EventPublished(Record, frozen=True, gc=False):
    """An event was given its place in a topic, by its publisher."""

    topic: bytes
    event: bytes
    size_bytes: int


class EventDelivered(Record, frozen=True, gc=False):
    """An event was handed to a local subscription."""

    topic: bytes
    event: bytes
    age_us: int


# Search


class BubbleStep(Record, frozen=True, gc=False):
    """A part of a bubble came to a node."""

    bubble: bytes
    size: int
    start: int
    end: int
    outcome: str
    """handled: its first position is here; collision: the bubble was here before, and the part went
    on as it is; dropped: it came too often; congested: a part of it was not sent on."""


# The world, as the simulator sets it


class FaultInjected(Record, frozen=True, gc=False):
    """A fault began or ended."""

    fault: str
    detail: str


RECORD_TYPES: tuple[type[Record], ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Record) and value is not Record
)

# The folder of a run: the file that says what is in it. Columns of its tables are tables.py, which
# loads Arrow.


RUN_FORMAT = 1  # grows when a column changes its meaning; readers refuse what they do not know

RUN_FILE = "run.json"
"""In the folder of a run, beside one NAME.parquet per table; whatever else ends in .parquet and
begins with a table's name and a hyphen is a further part of that table."""


class RunHeader(msgspec.Struct, frozen=True):
    """What a reader must find in a run's file; whatever else is there is for people."""

    format: int
    run: str
    tables: dict[str, int]
    """Rows of each table."""
