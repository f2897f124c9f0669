"""The overlay of a finished run, and the way that one of its messages took.

Deliveries say when and after how many links a message came, not over which one. That follows from
the links: the sender is the neighbour that had it one link earlier, and from which it takes as long
as it took. Where links moved during a run, it is the neighbour of the end that fits best.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.base.errors import NotFound, UsageError
from shoal.base.ids import NodeId, show_node_id
from shoal.explorer.nodes import Place, place_of
from shoal.explorer.overlays import ShownNode

NODES_MAX = 20_000  # more than a page can draw
MESSAGES_MAX = 1000  # that can be chosen
BINS = 48
TENTHS = 10  # of a millisecond, in which the lab counts delays
US_PER_TENTH = 100
NOWHERE = -1  # no sender, or no delivery

Ints = npt.NDArray[np.int64]


class Histogram(msgspec.Struct, frozen=True):
    """How many of something lie between one edge and the next."""

    edges: list[float]
    counts: list[int]


class RunMessage(msgspec.Struct, frozen=True):
    """A message that can be chosen."""

    message: int
    publisher: int
    deliveries: int


class RunOverlay(msgspec.Struct, frozen=True):
    """Nodes, links as (a, b, round trip in us), messages, and how deliveries were spread."""

    nodes: list[ShownNode]
    links: list[tuple[int, int, int]]
    messages: list[RunMessage]
    delays_ms: Histogram
    hops: Histogram


class RunPath(msgspec.Struct, frozen=True):
    """One message: for each node who sent it first, when it came in ms, and after how many links;
    -1 where it did not."""

    message: int
    publisher: int
    senders: list[int]
    delays_ms: list[float]
    hops: list[int]


class RunTables:
    """Reads the tables of one run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def overlay(self) -> RunOverlay:
        """Everything that a page needs at first."""
        nodes = self._nodes()
        a, b, delay_us = self._links()
        ours = a < b
        deliveries = self._columns("deliveries", "message", "publisher", "delay_tenths_ms", "hops")
        message, publisher, delay, hops = deliveries
        chosen, first, counts = np.unique(message, return_index=True, return_counts=True)
        links = zip(a[ours].tolist(), b[ours].tolist(), (2 * delay_us[ours]).tolist(), strict=True)
        return RunOverlay(
            nodes,
            list(links),
            [
                RunMessage(int(number), int(publisher[at]), int(count))
                for number, at, count in list(zip(chosen, first, counts, strict=True))[
                    :MESSAGES_MAX
                ]
            ],
            _histogram(delay / TENTHS, BINS),
            _histogram(hops.astype(np.float64), None),
        )

    def path(self, message: int) -> RunPath:
        """The way of one message."""
        columns = self._columns(
            "deliveries", "publisher", "node", "delay_tenths_ms", "hops", only=message
        )
        publisher, node, delay, hops = columns
        if not len(node):
            raise NotFound(f"no message {message} was delivered in this run: choose another")
        count = self._count()
        delays = np.full(count, NOWHERE, np.int64)
        reached = np.full(count, NOWHERE, np.int64)
        delays[node], reached[node] = delay, hops
        origin = int(publisher[0])
        delays[origin], reached[origin] = 0, 0
        senders = _senders(delays, reached, *self._links())
        return RunPath(
            message,
            origin,
            senders.tolist(),
            np.where(delays >= 0, delays / TENTHS, NOWHERE).tolist(),
            reached.tolist(),
        )

    # Tables

    def _nodes(self) -> list[ShownNode]:
        self._count()
        table = self._table("nodes", ["node", "id", "region"]).sort_by("node")
        shown = []
        for id, region in zip(
            table.column("id").to_pylist(), table.column("region").to_pylist(), strict=True
        ):
            place: Place | None = place_of(region)
            shown.append(ShownNode(show_node_id(NodeId(id)), region, place, seen=True))
        return shown

    def _count(self) -> int:
        import pyarrow.parquet as pq

        rows = int(pq.read_metadata(self._path / "nodes.parquet").num_rows)
        if rows > NODES_MAX:
            raise UsageError(f"{rows} nodes: a page draws at most {NODES_MAX}")
        return rows

    def _links(self) -> tuple[Ints, Ints, Ints]:
        a, b, delay_us = self._columns("topologies", "a", "b", "delay_us")
        return a, b, delay_us

    def _columns(self, name: str, *columns: str, only: int | None = None) -> list[Ints]:
        filters = None if only is None else [("message", "=", only)]
        table = self._table(name, list(columns), filters)
        return [table.column(column).to_numpy().astype(np.int64) for column in columns]

    def _table(self, name: str, columns: list[str], filters: Any = None) -> Any:
        import pyarrow.parquet as pq

        return pq.read_table(self._path / f"{name}.parquet", columns=columns, filters=filters)


def _senders(delays: Ints, hops: Ints, a: Ints, b: Ints, delay_us: Ints) -> Ints:
    """For each node the neighbour that fits best; the origin and who got nothing have none."""
    senders = np.full(len(delays), NOWHERE, np.int64)
    fits = (hops[a] >= 0) & (hops[b] == hops[a] + 1)
    a, b, delay_us = a[fits], b[fits], delay_us[fits]
    off = np.abs(delays[a] + delay_us // US_PER_TENTH - delays[b])
    order = np.lexsort((a, off, b))
    receivers, first = np.unique(b[order], return_index=True)
    senders[receivers] = a[order][first]
    return senders


def _histogram(values: npt.NDArray[np.float64], bins: int | None) -> Histogram:
    """With so many bins of one width; None: one for each whole number."""
    if not len(values):
        return Histogram([], [])
    if bins is None:
        edges = np.arange(int(values.min()), int(values.max()) + 2) - 0.5
    else:
        edges = np.linspace(0.0, float(values.max()) or 1.0, bins + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(edges.tolist(), counts.tolist())
