"""Figures from a trace written by hand."""

from __future__ import annotations

import pytest

from shoal.base.ids import MessageId, NodeId, StreamId, node_id
from shoal.base.units import MS_NS
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
from shoal.sim.trace import by_kind
from shoal_lab.experiments.streams.figures import (
    YOUNG_NS,
    Degrees,
    Hops,
    Spread,
    StreamFigures,
    StreamResults,
)

STREAM = StreamId("0x0/test")
A, B, C, D = (node_id(bytes([number]) * 20) for number in range(4))


def message(publisher: NodeId, timestamp_ms: int) -> MessageId:
    return MessageId(STREAM, 0, timestamp_ms, 0, publisher, "1")


def ready(node: NodeId, at_ms: int) -> tuple[int, NodeId, Record]:
    return at_ms * MS_NS, node, InstructionHandled(STREAM, 1, 1, 1, 1)


def received(node: NodeId, id: MessageId, at_ms: int, hops: int = 1) -> list[
    tuple[int, NodeId, Record]
]:  # fmt: skip
    return [
        (at_ms * MS_NS, node, ReceivedFirst(id, A, hops, 0)),
        (at_ms * MS_NS, node, Delivered(id, hops, 0)),
    ]


def published(id: MessageId) -> list[tuple[int, NodeId, Record]]:
    at_ns = id.timestamp_ms * MS_NS
    return [(at_ns, id.publisher, Published(id, 9)), (at_ns, id.publisher, Delivered(id, 0, 0))]


def figures(
    rows: list[tuple[int, NodeId, Record]],
    started_ms: dict[NodeId, int],
    healed_ms: float = 0.0,
) -> StreamFigures:
    """Of one trace, handed over in batches of every size."""
    found = []
    for size in range(1, len(rows) + 2):
        results = StreamResults([A, B, C, D])
        for at in range(0, len(rows), size):
            results(by_kind(rows[at : at + size]))
        found.append(
            results.figures(
                {node: at_ms * MS_NS for node, at_ms in started_ms.items()},
                dict.fromkeys(started_ms, 2),
                connected=True,
                healed_ns=healed_ms * MS_NS,
            )
        )
    assert all(one == found[0] for one in found)
    return found[0]


ALL_READY = [ready(A, 1), ready(B, 1), ready(C, 1), ready(D, 1)]
ALL_RUN = {A: 0, B: 0, C: 0, D: 0}


def test_what_comes_counts_with_its_delay_and_its_hops() -> None:
    m = message(A, 10)
    rows = [
        *ALL_READY,
        *published(m),
        *received(B, m, 20, hops=1),
        *received(C, m, 30, hops=2),
        (31 * MS_NS, C, ReceivedAgain(m, B)),
        (31 * MS_NS, B, ReceivedAgain(m, C)),
        *received(D, m, 60, hops=3),
    ]
    result = figures(rows, ALL_RUN)
    assert (result.published, result.expected, result.delivered, result.lost) == (1, 3, 3, 0)
    assert result.delay_ms is not None
    assert result.delay_ms.p99 == pytest.approx(49.4)
    assert result.delay_ms == Spread(80 / 3, 20.0, result.delay_ms.p99, 50.0)
    assert result.hops == Hops(mean=2.0, max=3)
    assert result.duplicates_per_message == 2 / 4
    assert result.degree == Degrees(2, 2, {2: 4})


def test_what_does_not_come_is_lost_before_or_after_healing() -> None:
    early, late = message(A, 10), message(B, 50)
    rows = [*ALL_READY, *published(early), *received(B, early, 20), *published(late)]
    result = figures(rows, ALL_RUN, healed_ms=40)
    assert (result.expected, result.delivered, result.lost) == (6, 1, 5)
    assert result.lost_after_healing == 3


def test_nodes_that_come_later_or_do_not_stay_are_not_expected() -> None:
    m = message(A, 10)
    rows = [
        ready(A, 1),
        ready(B, 1),
        ready(C, 1),
        *published(m),
        *received(B, m, 20),  # B crashes at 25 and comes back
        ready(D, 30),
        ready(B, 35),
        *received(C, m, 40),
        *received(D, m, 40),  # a copy was still under way when D came
    ]
    result = figures(rows, {A: 0, B: 30, C: 0, D: 0})
    assert (result.expected, result.delivered, result.lost) == (1, 1, 0)
    assert result.delivered_besides == 2
    gone = figures(rows, {A: 0, B: 30, D: 0})
    assert (gone.expected, gone.delivered, gone.delivered_besides) == (0, 0, 3)
    assert gone.delay_ms is None
    assert gone.hops is None


def test_a_node_that_leaves_is_not_expected() -> None:
    rows = [
        *ALL_READY,
        (5 * MS_NS, D, MemberChanged(STREAM, C, False, "leave")),
        (5 * MS_NS, D, MemberChanged(STREAM, B, False, "gone")),  # it still runs: expected
        *published(message(A, 10)),
    ]
    assert figures(rows, ALL_RUN).expected == 2


def test_control_and_rejections_are_counted() -> None:
    rows: list[tuple[int, NodeId, Record]] = [
        (1, D, InstructionSent(STREAM, A, 1, 1, 2)),
        (1, D, LinkChanged(STREAM, A, B, True)),
        (1, D, LinkChanged(STREAM, A, C, True)),
        (1, D, LinkChanged(STREAM, A, C, False)),
        (2, A, RttMeasured(B, 5)),
        (3, A, Rejected(B, "stale")),
        (3, A, Rejected(B, "malformed")),
        (3, A, Rejected(B, "stale")),
        ready(A, 1),
    ]
    result = figures(rows, ALL_RUN)
    control = result.control
    assert (control.instructions, control.handled, control.rtts) == (1, 1, 1)
    assert (control.links_made, control.links_cut) == (2, 1)
    assert result.rejected == {"malformed": 1, "stale": 2}
    assert result.duplicates_per_message == 0.0


def test_links_are_young_for_a_while_after_their_last_change() -> None:
    results = StreamResults((A, B, C, D))
    results(
        by_kind(
            [
                (1, D, LinkChanged(STREAM, A, B, True)),
                (2, D, LinkChanged(STREAM, B, C, True)),
                (9, D, LinkChanged(STREAM, B, A, False)),
            ]
        )
    )
    link, other = tuple(sorted((A, B))), tuple(sorted((B, C)))
    assert results.young_links(9) == {link, other}
    assert results.young_links(YOUNG_NS + 1) == {link, other}
    assert results.young_links(YOUNG_NS + 2) == {link}
    assert results.young_links(YOUNG_NS + 9) == set()


def test_an_empty_run_has_figures_too() -> None:
    result = figures([], {})
    assert (result.nodes, result.published, result.expected) == (4, 0, 0)
    assert result.degree == Degrees(0, 0, {})
