"""The tables of a run, gathered from its trace while it runs.

Two records in three are one more copy of a message: they become a number per message and node.
Deliveries are those of the results, which keep them as columns already. The rest is rare enough
to be kept row by row. Making tables of it all is left for when the run is over, and to a thread
(see run_files.py): while it runs, records cost a few per cent of its time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.base.ids import MessageId, NodeId, StreamId
from shoal.base.units import US_NS
from shoal.kernel.records import Published, ReceivedAgain, Record, RttMeasured
from shoal.sim.delays import RegionTable
from shoal.sim.trace import Kinds, Row
from shoal_lab.experiments.streams.figures import Columns, StreamResults
from shoal_lab.runs.run_tables import (
    GATHERED_RECORDS,
    KEPT_RECORDS,
    TENTH_NS,
    arrow_rows,
    run_table_schema,
)

CHUNK_ROWS = 65_536  # kept as Python objects at most, of one kind of record

_PLENTIFUL = frozenset(GATHERED_RECORDS) - {Published, RttMeasured}


class Place(NamedTuple):
    """Where a node of the run is."""

    id: NodeId
    region: str


class Surroundings(NamedTuple):
    """What the trace does not tell."""

    started_ns: Mapping[NodeId, int]
    """Since when the nodes run that run at the end."""
    edges: Sequence[tuple[StreamId, int, int, int]]
    """Who sends to whom at the end: stream, number, number, one-way delay in nanoseconds."""
    delays: RegionTable
    """Between the regions that nodes are in."""


class KeptRecords:
    """Records as they are, by kind."""

    def __init__(self) -> None:
        self._rows: dict[type[Record], list[Row]] = {kind: [] for kind in KEPT_RECORDS.values()}
        self._chunks: dict[type[Record], list[pa.Table]] = {kind: [] for kind in self._rows}

    def add(self, row: Row) -> None:
        """One record."""
        kind = type(row[2])
        rows = self._rows[kind]
        rows.append(row)
        if len(rows) >= CHUNK_ROWS:
            self._pack(kind)

    def tables(self, run: str) -> dict[str, pa.Table]:
        """Each kind that there was, as a table of the run."""
        made = {}
        for name, kind in KEPT_RECORDS.items():
            self._pack(kind)
            rows = pa.concat_tables(self._chunks[kind]).combine_chunks()
            if rows.num_rows:
                columns = {column: rows[column] for column in rows.column_names}
                made[name] = _table(name, {"run": _constant(run, rows.num_rows), **columns})
        return made

    def _pack(self, kind: type[Record]) -> None:
        self._chunks[kind].append(arrow_rows(kind, self._rows[kind]))
        self._rows[kind] = []


class StreamRecords:
    """A trace sink that gathers the tables of a stream run."""

    def __init__(self, places: Iterable[Place], results: StreamResults) -> None:
        """`results` must be a sink of the same trace, and know the nodes in the same order."""
        self._places = list(places)
        self._numbers = {place.id: number for number, place in enumerate(self._places)}
        self._results = results
        self._no_copies = bytes(array("I").itemsize * len(self._places))
        self._copies: dict[MessageId, array[int]] = {}
        """Of each message, in the order of publication, the further copies that each node got."""
        self._sizes = array("q")
        self._rtts: dict[tuple[NodeId, NodeId], list[int]] = {}
        self._kept = KeptRecords()

    def __call__(self, kinds: Kinds) -> None:
        """Take a batch of the trace."""
        for rows in [kinds[kind] for kind in kinds if kind not in _PLENTIFUL]:
            for row in rows:
                self._take(row)
        copies, numbers = self._copies, self._numbers
        for _, node, record in kinds.get(ReceivedAgain, ()):
            counts = copies.get(record.message)  # type: ignore[attr-defined]
            if counts is not None:  # a liar's message is nobody's
                counts[numbers[node]] += 1

    def tables(self, run: str, world: Surroundings) -> dict[str, pa.Table]:
        """All tables that have rows; `deliveries`, `messages` and `nodes` always."""
        columns = self._results.columns(world.started_ns)
        copies = np.frombuffer(b"".join(self._copies.values()), np.uint32)
        copies = copies.reshape(len(self._copies), len(self._places))
        made = {
            "deliveries": self._deliveries(run, columns, copies),
            "messages": self._messages(run, columns, copies),
            "nodes": self._nodes(run, columns),
            "links": self._links(run),
            "topologies": _topology(run, world.edges),
            "delays": _delays(run, world.delays),
        }
        needed = ("deliveries", "messages", "nodes")
        full = {name: made[name] for name in made if name in needed or made[name].num_rows}
        return full | self._kept.tables(run)

    # Records

    def _take(self, row: Row) -> None:
        time_ns, node, record = row
        if type(record) is Published:
            self._copies[record.message] = array("I", self._no_copies)
            self._sizes.append(record.size_bytes)
        elif type(record) is RttMeasured:
            rtt_us = record.rtt_us
            seen = self._rtts.get((node, record.peer))
            if seen is None:
                self._rtts[node, record.peer] = [1, rtt_us, rtt_us, time_ns]
            else:
                seen[:] = seen[0] + 1, min(seen[1], rtt_us), seen[2] + rtt_us, time_ns
        else:
            self._kept.add(row)

    # Tables

    def _deliveries(self, run: str, columns: Columns, copies: npt.NDArray[np.uint32]) -> pa.Table:
        delivered, receivers = columns.delivered, columns.receivers
        regions = [place.region for place in self._places]
        streams = [id.stream for id in columns.messages]
        values = {
            "run": _constant(run, len(delivered)),
            "stream": _chosen(streams, delivered),
            "message": delivered,
            "publisher": columns.publishers[delivered],
            "node": receivers,
            "region": _chosen(regions, receivers),
            # To the nearest: cutting would make every mean a twentieth of a millisecond short.
            "delay_tenths_ms": (columns.delays_ns + TENTH_NS // 2) // TENTH_NS,
            "hops": columns.hops,
            "duplicates": _once(copies, delivered, receivers),
            "due": columns.due,
        }
        return _table("deliveries", values)

    def _messages(self, run: str, columns: Columns, copies: npt.NDArray[np.uint32]) -> pa.Table:
        ids, publishers = columns.messages, columns.publishers
        values = {
            "run": _constant(run, len(ids)),
            "message": np.arange(len(ids)),
            "time_ns": columns.published_ns,
            "node": publishers,
            **{name: [getattr(id, name) for id in ids] for name in MessageId.__struct_fields__},
            "size_bytes": np.array(self._sizes, np.int64),
            "expected": columns.expected,
            "duplicates": copies[np.arange(len(ids)), publishers],
        }
        return _table("messages", values)

    def _nodes(self, run: str, columns: Columns) -> pa.Table:
        places = self._places
        values = {
            "run": _constant(run, len(places)),
            "node": np.arange(len(places)),
            "id": [place.id for place in places],
            "region": [place.region for place in places],
            "ready_ns": columns.ready_ns,
        }
        return _table("nodes", values)

    def _links(self, run: str) -> pa.Table:
        rows = [(run, a, b, *measured) for (a, b), measured in self._rtts.items()]
        return _from_rows("links", rows)


def _topology(run: str, edges: Sequence[tuple[StreamId, int, int, int]]) -> pa.Table:
    rows = [(run, stream, a, b, delay_ns // US_NS) for stream, a, b, delay_ns in edges]
    return _from_rows("topologies", rows)


def _delays(run: str, delays: RegionTable) -> pa.Table:
    # Where every node has a region of its own, this is the largest table of all: as columns it is
    # made in a tenth of the time, and takes a few bytes a row on the disk.
    regions = np.arange(len(delays.names))
    values = {
        "run": _constant(run, len(regions) ** 2),
        "a": _chosen(delays.names, np.repeat(regions, len(regions))),
        "b": _chosen(delays.names, np.tile(regions, len(regions))),
        "delay_us": np.array(delays.delays_ns, np.int64).ravel() // US_NS,
    }
    return _table("delays", values)


def _once(
    copies: npt.NDArray[np.uint32],
    messages: npt.NDArray[np.int64],
    nodes: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint32]:
    """The copies of each delivery; where a node got a message twice, those of the first."""
    found = copies[messages, nodes]
    pairs = messages * copies.shape[1] + nodes
    if len(pairs) and np.bincount(pairs).max() > 1:
        _, firsts = np.unique(pairs, return_index=True)
        again = np.ones(len(pairs), np.bool_)
        again[firsts] = False
        found[again] = 0
    return found


# Arrow


def _from_rows(name: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    names = run_table_schema(name).names
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return _table(name, {key: list(column) for key, column in zip(names, columns, strict=True)})


def _table(name: str, values: Mapping[str, Any]) -> pa.Table:
    """A table of the schema's columns; text may come as a dictionary, which Parquet resolves."""
    schema, arrays = run_table_schema(name), []
    for number, field in enumerate(schema):
        column = values[field.name]
        if isinstance(column, pa.DictionaryArray):
            schema = schema.set(number, field.with_type(column.type))
        elif isinstance(column, np.ndarray) and field.type == pa.int64():
            column = pa.array(column.astype(np.int64, copy=False))
        elif not isinstance(column, pa.ChunkedArray):
            column = pa.array(column, field.type)
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=schema)


def _constant(value: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([value]))


def _chosen(values: Sequence[str], indices: npt.NDArray[np.int64]) -> pa.DictionaryArray:
    """The values at these places; most of them are the same few."""
    known = {value: number for number, value in enumerate(dict.fromkeys(values))}
    numbers = np.array([known[value] for value in values], np.int32)
    return pa.DictionaryArray.from_arrays(numbers[indices], pa.array(list(known), pa.string()))
