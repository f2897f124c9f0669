"""The trace of a run: every record, in order, handed to sinks in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from shoal.base.ids import NodeId
from shoal.kernel.records import Record

Row = tuple[int, NodeId, Record]
Sink = Callable[[list[Row]], None]
Kinds = dict[type[Record], list[Row]]
"""The rows of a batch by kind of record, each in order."""

BATCH_ROWS = 512  # large enough to pay for a call, small enough to stay in the cache


class Trace:
    """Gathers records; what is done with them is the sinks' business."""

    def __init__(self) -> None:
        self.rows = 0
        self._sinks: list[Sink] = []
        self._kind_sinks: list[Callable[[Kinds], None]] = []
        self.batch: list[Row] = []
        """What has gathered; whoever adds the last row of BATCH_ROWS flushes."""

    def to(self, sink: Sink) -> None:
        """Send every record from now on to a sink as well."""
        self._sinks.append(sink)

    def to_kinds(self, sink: Callable[[Kinds], None]) -> None:
        """The same for a sink that treats each kind in its own way: sorted once for all of them."""
        self._kind_sinks.append(sink)

    def add(self, time_ns: int, node: NodeId, record: Record) -> None:
        """One record."""
        self.batch.append((time_ns, node, record))
        if len(self.batch) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand on what has gathered."""
        batch, self.batch = self.batch, []
        self.rows += len(batch)
        for sink in self._sinks:
            sink(batch)
        if self._kind_sinks:
            kinds = by_kind(batch)
            for kind_sink in self._kind_sinks:
                kind_sink(kinds)


def by_kind(rows: list[Row]) -> Kinds:
    """Sort rows by kind of record."""
    kinds: Kinds = {}
    for row in rows:
        try:
            kinds[type(row[2])].append(row)
        except KeyError:
            kinds[type(row[2])] = [row]
    return kinds


class TraceHash:
    """A digest of a whole run: equal runs have equal digests, in any process."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()  # which processors have instructions for
        self._encoder = msgspec.msgpack.Encoder()
        self._encoded = bytearray()

    def __call__(self, rows: list[Row]) -> None:
        # Without the header, which says how many: the digest must not depend on where batches end.
        header_bytes = 1 if len(rows) < 16 else 3 if len(rows) < 65_536 else 5
        self._encoder.encode_into(rows, self._encoded)
        with memoryview(self._encoded) as encoded:
            self._hash.update(encoded[header_bytes:])

    def hexdigest(self) -> str:
        """The digest so far; flush the trace first."""
        return self._hash.hexdigest()[:32]
