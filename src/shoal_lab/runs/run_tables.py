"""The tables of a run: what an experiment leaves on disk, and what the pipeline reads.

What happens once per message and node is gathered into one row of `deliveries`; the full
propagation experiment would be 300 million records otherwise. Everything rarer is kept record by
record, in a table of the record's name with the run in front (see arrow.py).

Inside a run, nodes and messages have numbers, from 0; `nodes` and `messages` say whose they are.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.base.units import US_NS
from shoal.kernel.records import (
    RECORD_FORMAT,
    RECORD_TYPES,
    RUN_FORMAT,
    Delivered,
    Published,
    ReceivedAgain,
    ReceivedFirst,
    Record,
    RttMeasured,
    Sent,
)

# The Arrow schema of every record table, derived from the record classes.


_ARROW_TYPES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    float: pa.float64(),
}


def table_name(record: type[Record]) -> str:
    """ReceivedFirst is the table received_first."""
    name = record.__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def arrow_schema(record: type[Record]) -> pa.Schema:
    """The columns of a record's table; a struct inside it becomes columns of its own."""
    columns = [pa.field("time_ns", pa.int64(), False), pa.field("node", pa.binary(), False)]
    for name, kind in flat_columns(record):
        columns.append(pa.field(name, kind, False))
    return pa.schema(columns, metadata={"shoal.record_format": str(RECORD_FORMAT)})


def arrow_rows(record: type[Record], rows: Sequence[tuple[int, bytes, Record]]) -> pa.Table:
    """Rows of one record type, as (time_ns, node, record), in one table."""
    schema = arrow_schema(record)
    columns: list[list[Any]] = [[r[0] for r in rows], [r[1] for r in rows]]
    columns.extend([getter(r[2]) for r in rows] for getter in _getters(record))
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def flat_columns(struct: type[msgspec.Struct]) -> list[tuple[str, pa.DataType]]:
    """Names and types of a struct's columns, those of structs inside it in their place."""
    found: list[tuple[str, pa.DataType]] = []
    for name, kind in _fields(struct):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            found.extend(flat_columns(kind))
        else:
            found.append((name, _ARROW_TYPES[kind]))
    return found


def _getters(struct: type[msgspec.Struct], path: tuple[str, ...] = ()) -> list[Any]:
    found: list[Any] = []
    for name, kind in _fields(struct):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            found.extend(_getters(kind, (*path, name)))
        else:
            found.append(operator.attrgetter(".".join((*path, name))))
    return found


def _fields(struct: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Field names and plain types: NewTypes such as NodeId stand for what they wrap."""
    hints = get_type_hints(struct)
    return [(n, getattr(hints[n], "__supertype__", hints[n])) for n in struct.__struct_fields__]


TENTH_NS = 100 * US_NS
"""Delays are counted in tenths of a millisecond: fine enough for any figure in the sources, and
coarse enough that a run has a few thousand different ones, so that they can be counted."""


class Delivery(msgspec.Struct, frozen=True):
    """A message reached a subscriber."""

    run: str
    stream: StreamId
    message: int
    publisher: int
    node: int
    region: str
    """Of the node."""
    delay_tenths_ms: int
    """Since it was published, by true time."""
    hops: int
    duplicates: int
    """Further copies that this node was sent; of a second delivery, after a restart, none."""
    due: bool
    """Whether it counts for coverage: the node had its place in the stream when the message was
    published, and ran to the end."""


class PublishedMessage(msgspec.Struct, frozen=True):
    """A message, as its publisher sent it."""

    run: str
    message: int
    time_ns: int
    node: int
    id: MessageId
    size_bytes: int
    expected: int
    """Deliveries that are due."""
    duplicates: int
    """Copies that came back to the publisher."""


class RunNode(msgspec.Struct, frozen=True):
    """A node that took part."""

    run: str
    node: int
    id: NodeId
    region: str
    ready_ns: int
    """Since when it has had its place in the stream; the largest integer if it never had."""


class MeasuredLink(msgspec.Struct, frozen=True):
    """What a node measured of a link to a peer, over the whole run."""

    run: str
    a: NodeId
    b: NodeId
    rtts: int
    rtt_us_min: int
    rtt_us_sum: int
    last_ns: int


class TopologyEdge(msgspec.Struct, frozen=True):
    """At the end of the run, a sends what it has to b."""

    run: str
    stream: StreamId
    a: int
    b: int
    delay_us: int
    """One way, by the delay table."""


class TableDelay(msgspec.Struct, frozen=True):
    """One way between two regions: a row of the delay table."""

    run: str
    a: str
    b: str
    delay_us: int


class PairCount(msgspec.Struct, frozen=True):
    """How often two nodes were linked, over all overlays of a run; every pair has a row."""

    run: str
    a: int
    """The one that joined first."""
    b: int
    count: int


class OverlayDiameter(msgspec.Struct, frozen=True):
    """How wide an overlay is, in links."""

    run: str
    overlay: int
    nodes: int
    degree: int
    diameter: int
    """Links from one node to another at most."""
    hops_mean: float
    """Over all pairs."""
    bound_low: int
    bound_high: int
    """Published bounds of a random regular graph's diameter."""


class TopicEvent(msgspec.Struct, frozen=True):
    """An event of a topic that was handed to a node; times since then, -1 if it never was so."""

    run: str
    event: int
    topic: int
    time_ns: int
    size_bytes: int
    accepted_tenths_ms: int
    due: int
    """At so many readers that ran at the end."""
    delivered: int
    """To so many of these."""
    most_tenths_ms: int
    """Until 99 % of them had it."""
    all_tenths_ms: int


class SearchStage(msgspec.Struct, frozen=True):
    """A search network before something happened to it, or in a state after that."""

    run: str
    stage: str
    nodes: int
    """Living ones."""
    edges: int
    """Of the living, with each other."""
    largest_part: float
    """Of the living, in the largest component."""
    threshold: float
    """T, as bubbles were sized by it; 0 where there is none, and nodes flood."""


class SearchMatch(msgspec.Struct, frozen=True):
    """Pairs of a data and a query bubble of one certainty: how many met. Means are per query."""

    run: str
    stage: str
    certainty: float
    data: str
    """"new": published in this stage; "old": before the event."""
    data_size: int
    query_size: int
    pairs: int
    matched: float
    """A part of them."""
    error: float
    """Its standard error."""
    theory: float
    reached: float
    """Nodes."""
    messages: float
    collisions: float
    """Messages to nodes that had the query already."""
    hops_max: int
    """On the way to a node that a query reached; -1 if nobody counted."""
    hops_bound: int
    """By theory."""


class SearchLoad(msgspec.Struct, frozen=True):
    """Messages of bubbles that the nodes of one degree received in a stage."""

    run: str
    stage: str
    degree: int
    nodes: int
    messages: int


class SearchStep(msgspec.Struct, frozen=True):
    """What nodes knew of the network after so many beats of a measurement."""

    run: str
    step: int
    holder: int
    """Which of the nodes that were tried had the largest fish."""
    within: float
    """What part of the nodes had all sums within 5 %."""


class SearchMoment(msgspec.Struct, frozen=True):
    """A search network at a time, and the searches that were begun between then and the next."""

    run: str
    time_s: float
    """Since the event, or since nodes began to come and go; negative before that."""
    nodes: int
    largest_part: float
    complete: float
    """What part of the nodes has its neighbours, but for one at most."""
    known: float
    """What part of the nodes knows the size of the network within 5 %."""
    old_searches: int
    """For documents from before the event; only searches whose node was there to the end."""
    old_found: int
    new_searches: int
    """For documents that were put a few seconds earlier."""
    new_found: int


class SearchWatch(msgspec.Struct, frozen=True):
    """A standing query, and the documents that it was told of."""

    run: str
    query: int
    due: int
    """Documents that match, and were put after the query."""
    told: int
    told_again: int


GATHERED: dict[str, type[msgspec.Struct]] = {
    "deliveries": Delivery,
    "messages": PublishedMessage,
    "nodes": RunNode,
    "links": MeasuredLink,
    "topologies": TopologyEdge,
    "delays": TableDelay,
    "pairs": PairCount,
    "diameters": OverlayDiameter,
    "topic_events": TopicEvent,
    "search_stages": SearchStage,
    "search_matches": SearchMatch,
    "search_loads": SearchLoad,
    "search_steps": SearchStep,
    "search_moments": SearchMoment,
    "search_watches": SearchWatch,
}

GATHERED_RECORDS = (Published, Sent, ReceivedFirst, ReceivedAgain, Delivered, RttMeasured)
"""Records that have no table of their own in a run: the tables above hold what they say."""

KEPT_RECORDS: dict[str, type[Record]] = {
    table_name(record): record for record in RECORD_TYPES if record not in GATHERED_RECORDS
}


@cache
def run_table_schema(name: str) -> pa.Schema:
    """The columns of a table of a run."""
    metadata = {"shoal.run_format": str(RUN_FORMAT), "shoal.record_format": str(RECORD_FORMAT)}
    if name in GATHERED:
        columns = [pa.field(*column, nullable=False) for column in flat_columns(GATHERED[name])]
    else:
        columns = [pa.field("run", pa.string(), False), *arrow_schema(KEPT_RECORDS[name])]
    return pa.schema(columns, metadata=metadata)


RUN_TABLES = (*GATHERED, *KEPT_RECORDS)
"""The names of all tables that a run can have."""
