"""The section about packet loss, from literal aggregates: what is confirmed depends on them."""

from __future__ import annotations

import msgspec
import pytest

from shoal.pipeline.jobs.collected import Collected, DelayCurve, Point, RunFigures
from shoal.pipeline.report.build import build_report
from shoal.pipeline.report.loss import judge, loss_section, rise
from shoal.pipeline.report.model import Figure, Section, Table, Text

SHORTEST = "110.0 (110.0–110.0)"
CURVE = DelayCurve(
    delivered=10, mean_ms=1, p50_ms=100.0, p95_ms=200.0, p99_ms=300.0, cdf=((1.0, 1.0),)
)


def point(rate: float, *means_ms: float, coverage: float = 1.0, nodes: int = 16) -> Point:
    runs = tuple(
        RunFigures(
            run=f"r{seed}", seed=seed, messages=1, mean_ms=mean_ms, max_ms=900.0,
            coverage=coverage, shortest_ms=110.0,
        )
        for seed, mean_ms in enumerate(means_ms, 1)
    )  # fmt: skip
    settings = {"network.nodes": nodes, "experiment": "loss", "options.loss_percent": rate}
    return Point(
        scenario="streams-loss", about="", label=f"loss {rate}", runs=runs, delays=CURVE,
        settings=settings,
    )  # fmt: skip


def collected(*points: Point) -> Collected:
    return Collected(folder="results", points=points, provenance=(), replays=(), problems=())


def section_of(*points: Point) -> Section:
    made = loss_section(collected(*points))
    assert made is not None
    assert made[1] == [], "no numbers are published"
    return made[0]


def test_rates_stand_in_order_beside_their_rise() -> None:
    # Overlays differ by 20 ms, and loss adds 4 and 6 to each.
    section = section_of(point(5, 134.0, 116.0), point(0, 130.0, 110.0), point(1, 131.0, 111.0))
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert [row[:4] for row in table.rows] == [
        ("0 %", "2", "120.0 (110.0–130.0)", "–"),
        ("1 %", "2", "121.0 (111.0–131.0)", "1.0 (1.0–1.0)"),
        ("5 %", "2", "125.0 (116.0–134.0)", "5.0 (4.0–6.0)"),
    ]
    assert table.rows[0][4:] == ("100.0", "200.0", "300.0", "900.0", "100.000 %", SHORTEST)
    assert isinstance(section.blocks[1], Figure)
    assert "<svg" in section.blocks[1].svg


def test_a_rise_is_taken_seed_by_seed() -> None:
    base = point(0, 100.0, 200.0, 300.0)
    more = rise(point(1, 110.0, 190.0), base)
    assert more is not None
    assert (more.mean, more.min, more.max, more.repeats) == (0.0, -10.0, 10.0, 2)
    other = point(1, 5.0)
    other = msgspec.structs.replace(other, runs=(msgspec.structs.replace(other.runs[0], seed=9),))
    assert rise(other, base) is None
    assert rise(base, None) is None


@pytest.mark.parametrize(
    ("points", "verdicts"),
    [
        ([point(0, 100, 90), point(0.2, 101, 91), point(3, 110, 95)],
         ["confirmed", "confirmed", "open"]),
        ([point(0, 100, 90), point(0.2, 101, 89), point(3, 110, 95)],
         ["confirmed", "confirmed", "open", "open"]),
        ([point(0, 100, 90), point(0.2, 99, 89), point(3, 110, 95)],
         ["confirmed", "confirmed", "contradicted", "open"]),
        ([point(0, 100), point(0.2, 101), point(5, 110, coverage=0.99)],
         ["contradicted", "confirmed", "open"]),
        # Nothing between 0.2 and 3 %, or nothing to compare with.
        ([point(0, 100), point(0.1, 99), point(5, 99)], ["confirmed", "open", "open"]),
        ([point(0.2, 100), point(1, 120)], ["confirmed", "open", "open"]),
    ],
)  # fmt: skip
def test_verdicts_follow_the_data(points: list[Point], verdicts: list[str]) -> None:
    assert [told.verdict for told in judge(points)] == verdicts


def test_each_rate_has_its_own_verdict() -> None:
    rates = [(0.2, 99, 91), (0.5, 99, 89), (1, 101, 91), (3, 110, 95), (5, 99, 89)]
    told = judge([point(0, 100, 90), *(point(*rate) for rate in rates)])
    assert [(one.said, one.verdict) for one in told[1:-1]] == [
        ("loss of 1, 3 % slows WebSocket down", "confirmed"),
        ("loss of 0.5 % slows WebSocket down", "contradicted"),
        ("loss of 0.2 % slows WebSocket down", "open"),
    ]
    assert told[1].seen == (
        "mean delay over that without loss: 1.0 (1.0–1.0) ms at 1 %, 7.5 (5.0–10.0) ms at 3 %"
    )


def test_the_conclusion_says_what_is_contradicted() -> None:
    section = section_of(point(0, 100), point(1, 99, coverage=0.5))
    (text,) = [block.text for block in section.blocks if isinstance(block, Text)]
    assert (
        "Contradicted is: messages arrive at everybody whatever the loss; loss of 1 % slows" in text
    )
    assert "Open is: WebRTC is ahead" in text
    assert "onfirmed is" not in text
    assert any("50.000 % at 1 % loss" in row for block in section.blocks if isinstance(block, Table)
               for row in block.rows)  # fmt: skip


def test_growth_is_told_on_both_sides_of_three_per_cent() -> None:
    section = section_of(point(0, 100), point(3, 106), point(5, 116))
    texts = [block.text for block in section.blocks if isinstance(block, Text)]
    assert texts[0] == (
        "Each per cent of loss adds 2.0 ms to the mean delay up to 3 %, and 5.0 ms from there to "
        "5 %."
    )


def test_runs_of_another_size_are_another_curve() -> None:
    section = section_of(point(0, 100), point(5, 120), point(0, 60, nodes=8), point(5, 70, nodes=8))
    tables = [b for b in section.blocks if isinstance(b, Table) and b.columns[0] == "loss"]
    assert [[row[3] for row in table.rows] for table in tables] == [["–", "20.0"], ["–", "10.0"]]


def test_the_section_is_part_of_the_report() -> None:
    titles = [section.title for section in build_report(collected(point(0, 100))).sections]
    assert "Packet loss" in titles
    assert loss_section(collected()) is None
