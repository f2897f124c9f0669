"""Figures of a stream run, gathered from its trace while it runs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.base.ids import MessageId, NodeId, show_node_id
from shoal.base.units import MS_NS, S_NS
from shoal.kernel.records import (
    Delivered,
    InstructionHandled,
    InstructionSent,
    LinkChanged,
    MemberChanged,
    Published,
    ReceivedAgain,
    ReceivedFirst,
    Record,
    Rejected,
    RttMeasured,
)
from shoal.protocols.streams.topology.graph import Link
from shoal.sim.trace import Kinds
from shoal_lab.scenarios.experiment_kinds import Rows

if TYPE_CHECKING:
    from shoal.protocols.streams.tracker.delay_estimate import Estimate

NEVER_NS = np.iinfo(np.int64).max
YOUNG_NS = 5 * S_NS
"""An instruction, a dial and a handshake over the longest ways there are take half of it."""


class Spread(msgspec.Struct, frozen=True):
    """How long deliveries took."""

    mean: float
    p50: float
    p99: float
    max: float


class Hops(msgspec.Struct, frozen=True):
    """How many links deliveries took."""

    mean: float
    max: int


class Degrees(msgspec.Struct, frozen=True):
    """Neighbours that get data, per running node at the end."""

    min: int
    max: int
    nodes: dict[int, int]
    """How many nodes have so many neighbours."""


class Control(msgspec.Struct, frozen=True):
    """What the overlay cost, in records of tracker and nodes."""

    instructions: int
    handled: int
    links_made: int
    links_cut: int
    rtts: int


class Held(msgspec.Struct, frozen=True):
    """Over sockets, where delays are waited for: how late things were given, since the nodes had
    other things to do."""

    count: int
    late_ms_mean: float
    late_ms_max: float
    stood_still_s: float
    """For so long other processes had all cores, and the clock of the run stood still."""


class StreamFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream run gave.

    A delivery is expected at every node, the publisher apart, that had its place in the stream
    when the message was published and has run since, to the end. Delays are true ones, by the
    one clock that all nodes share, over the expected deliveries that came.
    """

    nodes: int
    published: int
    expected: int
    delivered: int
    lost: int
    lost_after_healing: int
    """Of messages published after the last fault that loses data had healed."""
    delivered_besides: int
    """To nodes that came after the publication, or did not stay."""
    duplicates_per_message: float
    """Further copies, per message and node that has it."""
    delay_ms: Spread | None
    hops: Hops | None
    degree: Degrees
    connected: bool
    control: Control
    rejected: dict[str, int]
    """What was dropped, by reason."""
    prediction: Prediction | None = None
    """Where the scenario asks for one."""
    held: Held | None = None
    """Over sockets only."""


class Columns(NamedTuple):
    """What the results know, as columns: of nodes, of messages, and of deliveries."""

    ready_ns: npt.NDArray[np.int64]
    messages: list[MessageId]
    published_ns: npt.NDArray[np.int64]
    publishers: npt.NDArray[np.int64]
    expected: npt.NDArray[np.int64]
    delivered: npt.NDArray[np.int64]
    """The number of the message of each delivery."""
    receivers: npt.NDArray[np.int64]
    delays_ns: npt.NDArray[np.int64]
    hops: npt.NDArray[np.uint8]
    due: npt.NDArray[np.bool_]


class StreamResults:
    """A trace sink that counts; memory grows with deliveries only."""

    def __init__(self, nodes: Iterable[NodeId]) -> None:
        self._node_numbers = {node: number for number, node in enumerate(nodes)}
        self._message_numbers: dict[MessageId, int] = {}
        self._counts: Counter[type[Record]] = Counter()
        self._links_made = 0
        self._changed_ns: dict[Link, int] = {}  # of each link, the last time that the tracker did
        self._rejected: Counter[str] = Counter()
        self._handled_ns: dict[NodeId, list[int]] = {}
        self._left_ns: dict[NodeId, int] = {}
        # One entry per message, and one per delivery.
        self._published_ns = array("q")
        self._publishers = array("q")
        self._messages = array("q")
        self._receivers = array("q")
        self._delivered_ns = array("q")
        self._hops = array("B")
        self._handlers: dict[type[Record], Callable[[int, NodeId, Any], None]] = {
            Published: self._on_published,
            InstructionHandled: self._on_handled,
            LinkChanged: self._on_link_changed,
            MemberChanged: self._on_member_changed,
            Rejected: self._on_rejected,
        }

    def __call__(self, kinds: Kinds) -> None:
        """Take a batch of the trace."""
        for kind, rows in kinds.items():
            self._counts[kind] += len(rows)
            if kind in self._handlers:
                for row in rows:
                    self._handlers[kind](*row)
        # After what was published, and as columns: they bury the rest.
        self._take_deliveries(kinds.get(Delivered, []))

    def figures(
        self,
        started_ns: Mapping[NodeId, int],
        degrees: Mapping[NodeId, int],
        *,
        connected: bool,
        healed_ns: float,
    ) -> StreamFigures:
        """Everything that the run gave, for nodes that run at its end.

        `started_ns` says since when each of them runs, `degrees` how many neighbours it has.
        """
        ready_ns = self._ready_ns(started_ns)
        published_ns, expected = self._expected(ready_ns)
        messages = _column(self._messages)
        times_ns = _column(self._delivered_ns)
        due = ready_ns[_column(self._receivers)] <= published_ns[messages]
        delivered = np.bincount(messages[due], minlength=len(published_ns))
        lost = expected - delivered
        delays_ms = (times_ns - published_ns[messages])[due] / MS_NS
        hops = np.frombuffer(self._hops, np.uint8)[due] if self._hops else np.zeros(0, np.uint8)
        has_it = self._counts[Published] + self._counts[ReceivedFirst]
        return StreamFigures(
            nodes=len(self._node_numbers),
            published=len(published_ns),
            expected=int(expected.sum()),
            delivered=int(due.sum()),
            lost=int(lost.sum()),
            lost_after_healing=int(lost[published_ns >= healed_ns].sum()),
            delivered_besides=int((~due).sum()),
            duplicates_per_message=self._counts[ReceivedAgain] / has_it if has_it else 0.0,
            delay_ms=_spread(delays_ms),
            hops=Hops(float(hops.mean()), int(hops.max())) if len(hops) else None,
            degree=_degrees(degrees.values()),
            connected=connected,
            control=self._control(),
            rejected=dict(sorted(self._rejected.items())),
        )

    def columns(self, started_ns: Mapping[NodeId, int]) -> Columns:
        """Row by row what the figures are made of."""
        ready_ns = self._ready_ns(started_ns)
        published_ns, expected = self._expected(ready_ns)
        delivered, receivers = _column(self._messages), _column(self._receivers)
        return Columns(
            ready_ns=ready_ns,
            messages=list(self._message_numbers),
            published_ns=published_ns,
            publishers=_column(self._publishers),
            expected=expected,
            delivered=delivered,
            receivers=receivers,
            delays_ns=_column(self._delivered_ns) - published_ns[delivered],
            hops=np.array(self._hops, np.uint8),
            due=ready_ns[receivers] <= published_ns[delivered],
        )

    def young_links(self, now_ns: int) -> set[Link]:
        """Those that the tracker has made or cut a moment ago, so that nodes may be at it still."""
        return {link for link, at_ns in self._changed_ns.items() if at_ns > now_ns - YOUNG_NS}

    def publisher_delays_ms(self) -> dict[NodeId, float]:
        """The mean delay of all deliveries of each node's messages."""
        messages = _column(self._messages)
        publishers = _column(self._publishers)[messages]
        delays_ms = (_column(self._delivered_ns) - _column(self._published_ns)[messages]) / MS_NS
        counts = np.bincount(publishers, minlength=len(self._node_numbers))
        sums_ms = np.bincount(publishers, delays_ms, minlength=len(self._node_numbers))
        return {
            node: float(sums_ms[number] / counts[number])
            for node, number in self._node_numbers.items()
            if counts[number]
        }

    # Records

    def _take_deliveries(self, rows: list[Any]) -> None:
        # A publisher's own copy, which took no link, is no delivery.
        arrived = [row for row in rows if row[2].hops]
        messages, nodes = self._message_numbers, self._node_numbers
        self._messages.extend([messages[record.message] for _, _, record in arrived])
        self._receivers.extend([nodes[node] for _, node, _ in arrived])
        self._delivered_ns.extend([time_ns for time_ns, _, _ in arrived])
        self._hops.extend([record.hops for _, _, record in arrived])

    def _on_published(self, time_ns: int, node: NodeId, record: Published) -> None:
        self._message_numbers[record.message] = len(self._published_ns)
        self._published_ns.append(time_ns)
        self._publishers.append(self._node_numbers[node])

    def _on_handled(self, time_ns: int, node: NodeId, record: InstructionHandled) -> None:
        self._handled_ns.setdefault(node, []).append(time_ns)

    def _on_link_changed(self, time_ns: int, node: NodeId, record: LinkChanged) -> None:
        self._links_made += record.present
        link = (record.a, record.b) if record.a < record.b else (record.b, record.a)
        self._changed_ns[link] = time_ns

    def _on_member_changed(self, time_ns: int, node: NodeId, record: MemberChanged) -> None:
        if not record.present and record.reason == "leave":
            self._left_ns[record.member] = time_ns

    def _on_rejected(self, time_ns: int, node: NodeId, record: Rejected) -> None:
        self._rejected[record.reason] += 1

    # Sums

    def _ready_ns(self, started_ns: Mapping[NodeId, int]) -> npt.NDArray[np.int64]:
        """Since when each node has its place in the stream, without a break."""
        ready_ns = np.full(len(self._node_numbers), NEVER_NS)
        for node, started in started_ns.items():
            since_ns = max(started, self._left_ns.get(node, 0))
            handled_ns = self._handled_ns.get(node, ())
            ready_ns[self._node_numbers[node]] = next(
                (time_ns for time_ns in handled_ns if time_ns >= since_ns), NEVER_NS
            )
        return ready_ns

    def _expected(
        self, ready_ns: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """When each message was published, and how many deliveries of it are due."""
        published_ns = _column(self._published_ns)
        ready = np.searchsorted(np.sort(ready_ns), published_ns, side="right")
        own = ready_ns[_column(self._publishers)] <= published_ns
        return published_ns, ready - own

    def _control(self) -> Control:
        return Control(
            instructions=self._counts[InstructionSent],
            handled=self._counts[InstructionHandled],
            links_made=self._links_made,
            links_cut=self._counts[LinkChanged] - self._links_made,
            rtts=self._counts[RttMeasured],
        )


def _column(values: array[int]) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def _spread(delays_ms: npt.NDArray[np.float64]) -> Spread | None:
    if not len(delays_ms):
        return None
    p50, p99 = np.percentile(delays_ms, (50, 99))
    return Spread(float(delays_ms.mean()), float(p50), float(p99), float(delays_ms.max()))


def _degrees(degrees: Iterable[int]) -> Degrees:
    nodes = dict(sorted(Counter(degrees).items()))
    return Degrees(min(nodes, default=0), max(nodes, default=0), nodes)


# How well a tracker's estimate foretells what messages then take.
#
# The sources put pinged delays between data centres into the tracker's graph afterwards, and hold
# the mean delay that Dijkstra gives against the measured one (thesis, section 5.4.4); `shoal lab
# report` does that too. Here the estimate is the running tracker's own, from what nodes measured
# and reported, asked for before the first message; and it is compared for each publisher as well,
# which is harder.


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate and measurement of one overlay, over the nodes that published."""

    publishers: int
    links: int
    measured_links: int
    """When the tracker was asked."""
    estimated_ms: float
    measured_ms: float
    error_percent: float
    """Of the overlay's mean delay; above 0 if the estimate is too high."""
    mape_percent: float
    """Mean absolute error over publishers, of each one's mean delay to all others."""
    worst_percent: float


def compare(estimate: Estimate, measured_ms: Mapping[NodeId, float]) -> Prediction | None:
    """Hold an estimate against what was measured; None if there is nothing to compare."""
    both = [
        (estimated, measured)
        for node, measured in measured_ms.items()
        if (estimated := estimate.per_node_ms.get(show_node_id(node))) is not None
        if measured > 0  # over links that take no time no part of it can be off
    ]
    if not both:
        return None
    errors = [100 * abs(estimated - measured) / measured for estimated, measured in both]
    estimated_ms = sum(estimated for estimated, _ in both) / len(both)
    mean_ms = sum(measured for _, measured in both) / len(both)
    return Prediction(
        publishers=len(both),
        links=estimate.links,
        measured_links=estimate.measured_links,
        estimated_ms=estimated_ms,
        measured_ms=mean_ms,
        error_percent=100 * (estimated_ms - mean_ms) / mean_ms,
        mape_percent=sum(errors) / len(errors),
        worst_percent=max(errors),
    )


# The figures of a stream run, in words.


def stream_line(figures: StreamFigures) -> str:
    """The most important ones."""
    delay, hops = figures.delay_ms, figures.hops
    parts = [f"{figures.delivered:,} of {figures.expected:,} deliveries"]
    if delay is not None and hops is not None:
        parts.append(f"mean {delay.mean:.1f} ms, p99 {delay.p99:.1f}, hops {hops.mean:.2f}")
    parts.append(f"{figures.duplicates_per_message:.3f} duplicates")
    if figures.prediction is not None:
        parts.append(f"predicted {figures.prediction.error_percent:+.2f} %")
    return ", ".join(parts)


def stream_rows(figures: StreamFigures) -> Rows:
    """All of them, for a table."""
    delay, hops, control = figures.delay_ms, figures.hops, figures.control
    rows = [
        ("nodes", f"{figures.nodes:,}"),
        ("messages published", f"{figures.published:,}"),
        (
            "deliveries",
            f"{figures.delivered:,} of {figures.expected:,} expected, {figures.lost:,} lost",
        ),
        ("duplicates", f"{figures.duplicates_per_message:.3f} per message and node"),
    ]
    if delay is not None and hops is not None:
        rows += [
            (
                "delay",
                f"mean {delay.mean:.1f} ms, p50 {delay.p50:.1f}, p99 {delay.p99:.1f}, "
                f"max {delay.max:.1f}",
            ),
            ("hops", f"mean {hops.mean:.2f}, max {hops.max}"),
        ]
    if figures.prediction is not None:
        told = figures.prediction
        rows.append(
            (
                "prediction",
                f"mean delay {told.estimated_ms:.1f} ms, measured {told.measured_ms:.1f} "
                f"({told.error_percent:+.2f} %); MAPE over {told.publishers:,} publishers "
                f"{told.mape_percent:.2f} %, worst {told.worst_percent:.2f} %",
            )
        )
    if figures.held is not None:
        held = figures.held
        rows.append(
            (
                "held",
                f"{held.count:,} times, in the mean {held.late_ms_mean:.3f} ms longer than the "
                f"delay, at most {held.late_ms_max:.1f}; stood still for "
                f"{held.stood_still_s:.1f} s while others had all cores",
            )
        )
    overlay = ", ".join(f"{count:,} of degree {d}" for d, count in figures.degree.nodes.items())
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in figures.rejected.items())
    return [
        *rows,
        ("overlay", f"{overlay}; {'connected' if figures.connected else 'NOT connected'}"),
        (
            "control",
            f"{control.instructions:,} instructions, {control.handled:,} handled; "
            f"{control.links_made:,} links made, {control.links_cut:,} cut",
        ),
        ("rejected", rejected or "nothing"),
    ]
