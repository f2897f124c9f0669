"""The section about packet loss, from literal aggregates: what is confirmed depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

import msgspec
import pytest

from shoal_lab.report.analysis.report_data import Collected, DelayCurve, Point, RunFigures
from shoal_lab.report.blocks import Figure, Section, Table, Text
from shoal_lab.report.build import build_report
from shoal_lab.report.sections.loss import (
    NOT_JUDGED,
    difference,
    interval,
    judge,
    loss_section,
    rise,
)
from shoal_lab.runs.result_schema import Packets

SHORTEST = "110.0 (110.0–110.0)"
CURVE = DelayCurve(
    delivered=10, mean_ms=1, p50_ms=100.0, p95_ms=200.0, p99_ms=300.0, cdf=((1.0, 1.0),)
)


def point(
    rate: float,
    *means_ms: float,
    coverage: float = 1.0,
    nodes: int = 16,
    degree: int = 4,
    transport: str = "websocket",
    shortest_ms: float = 110.0,
    late_ms: Sequence[float] = (),
) -> Point:
    runs = tuple(
        RunFigures(
            run=f"r{seed}", seed=seed, messages=1, mean_ms=mean_ms, max_ms=900.0, expected=1500,
            delivered=round(1500 * coverage), coverage=coverage, shortest_ms=shortest_ms,
            p50_ms=mean_ms, p95_ms=mean_ms + 1, p99_ms=mean_ms + 2,
            packets=Packets(1000, round(10 * rate), seed, 1000 * late),
        )
        for seed, (mean_ms, late) in enumerate(zip_longest(means_ms, late_ms, fillvalue=0.8), 1)
    )  # fmt: skip
    settings = {
        "network.nodes": nodes,
        "network.delays": "aws",
        "network.degree": degree,
        "network.redundant_feeds": "all",
        "workload.messages_per_node": 25,
        "workload.interval_ms": 50.0,
        "experiment": "loss",
        "options.loss_percent": rate,
        "options.transport": transport,
    }
    return Point(
        scenario="streams-loss", about="", runs=runs, delays=CURVE, settings=settings,
        label=f"nodes {nodes}, degree {degree}, loss_percent {rate}, transport {transport}",
    )  # fmt: skip


webrtc = partial(point, transport="webrtc")


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
    table, figure, tails = section.blocks[:3]
    assert isinstance(table, Table)
    assert table.columns == ("loss", "WebSocket: runs", "mean", "above 0 %", "delivered")
    assert table.rows == (
        ("0 %", "2", "120.0 (110.0–130.0)", "–", "3,000 of 3,000"),
        ("1 %", "2", "121.0 (111.0–131.0)", "1.0 (1.0–1.0)", "3,000 of 3,000"),
        ("5 %", "2", "125.0 (116.0–134.0)", "5.0 (4.0–6.0)", "3,000 of 3,000"),
    )
    assert isinstance(tails, Table)
    assert tails.rows[0] == (
        "WebSocket", "0 %", "100.0", "200.0", "300.0", "900.0", "100.000 %", SHORTEST
    )  # fmt: skip
    assert isinstance(figure, Figure)
    assert "<svg" in figure.svg


def test_transports_stand_side_by_side() -> None:
    section = section_of(
        *(webrtc(rate, *means) for rate, means in ((0, (100, 121)), (1, (104, 126)))),
        *(point(rate, *means) for rate, means in ((0, (101, 120)), (1, (108, 126)), (5, (130,)))),
    )
    table, figure, tails = section.blocks[:3]
    assert isinstance(table, Table)
    assert "16 nodes over WebSocket and WebRTC" in table.caption
    assert [(row[0], row[2], row[3], row[6], row[7]) for row in table.rows] == [
        ("0 %", "110.5 (101.0–120.0)", "–", "110.5 (100.0–121.0)", "–"),
        ("1 %", "117.0 (108.0–126.0)", "6.5 (6.0–7.0)", "115.0 (104.0–126.0)", "4.5 (4.0–5.0)"),
        ("5 %", "130.0", "29.0", "–", "–"),
    ]
    # Of two values, Student's interval is 12.706 standard errors to either side.
    assert table.columns[-1] == "WebRTC less WebSocket"
    assert [row[-1] for row in table.rows] == [
        "+0.0 (-12.7 to +12.7)", "-2.0 (-27.4 to +23.4)", "–"
    ]  # fmt: skip
    assert isinstance(figure, Figure)
    assert [name in figure.svg for name in ("WebSocket, mean", "WebRTC, mean")] == [True, True]
    assert isinstance(tails, Table)
    assert [row[:2] for row in tails.rows] == [
        ("WebSocket", "0 %"), ("WebSocket", "1 %"), ("WebSocket", "5 %"),
        ("WebRTC", "0 %"), ("WebRTC", "1 %"),
    ]  # fmt: skip


def test_the_workload_stands_beside_the_sources() -> None:
    table = section_of(point(0, 1.0, 2.0), point(1, 1.0)).blocks[0]
    assert isinstance(table, Table)
    assert (
        "25 messages per node, one every 50 ms from all of them together, 2 repeats at most"
        in table.caption
    )
    assert "250 messages from each node at 50 ms, 20 repeats" in table.caption


def validity_of(section: Section) -> tuple[tuple[str, ...], ...]:
    (table,) = [b for b in section.blocks if isinstance(b, Table) and "hosts late, ms" in b.columns]
    return table.rows


def test_whether_runs_are_valid_is_shown() -> None:
    rows = validity_of(section_of(point(0, 1.0, 2.0, late_ms=(0.7, 0.9)), webrtc(5, 1.0)))
    assert rows == (
        ("WebSocket", "0 %", "2", "0", "0.8 (0.7–0.9)", "3", "2,000", "0.000 %"),
        ("WebRTC", "5 %", "1", "0", "0.8", "1", "1,000", "5.000 %"),
    )


def test_runs_with_late_hosts_are_named_and_left_out() -> None:
    # Without the third run loss slows down; with it, it does not.
    clean = point(0, 100.0, 100.0, 100.0)
    lossy = point(3, 110.0, 110.0, 50.0, late_ms=(3.0, 3.0, 3.1))
    section = section_of(clean, lossy)
    named, table, _, tails = section.blocks[:4]
    assert isinstance(named, Text)
    assert "verdicts of this section: r3 (3.1 ms). The table" in named.text
    assert isinstance(table, Table)
    assert [row[1:4] for row in table.rows] == [
        ("3", "100.0 (100.0–100.0)", "–"),
        ("2", "110.0 (110.0–110.0)", "10.0 (10.0–10.0)"),
    ]  # fmt: skip
    assert isinstance(tails, Table)
    assert [row[2:5] for row in tails.rows] == [
        ("100.0", "200.0", "300.0"),
        ("110.0 (110.0–110.0)", "111.0 (111.0–111.0)", "112.0 (112.0–112.0)"),
    ]
    assert validity_of(section)[1][2:5] == ("3", "1", "3.0 (3.0–3.1)")
    verdicts = next(b for b in section.blocks if isinstance(b, Table) and "verdict" in b.columns)
    assert [row[2] for row in verdicts.rows if row[0] == "loss of 3 % slows WebSocket down"] == [
        "confirmed"
    ]


def test_nothing_is_concluded_from_late_runs_alone() -> None:
    section = section_of(point(0, 100.0, late_ms=(9.0,)), webrtc(0, 100.0, late_ms=(9.0,)))
    assert [type(block) for block in section.blocks] == [Text, Table]
    assert [row[3] for row in validity_of(section)] == ["1", "1"]


def test_an_interval_is_students() -> None:
    # With three degrees of freedom: 3.182 standard errors of 1.291 / 2.
    told = interval([1.0, 2.0, 3.0, 4.0])
    assert told is not None
    assert (told.mean, told.seeds) == (2.5, 4)
    assert (told.low, told.high) == pytest.approx((0.446, 4.554), abs=0.001)
    assert interval([]) is None
    assert str(interval([3.25])) == "+3.2"


def test_an_overlay_that_differs_is_left_out_of_the_difference() -> None:
    # A call failed, the tracker chose a longer link, and all of the 40 ms are from that.
    told = difference(
        {"websocket": [point(5, 150, 151)], "webrtc": [webrtc(5, 190, 191, shortest_ms=150.0)]},
        lambda rate: True,
    )
    assert told is not None
    assert told.mean == 0


@pytest.mark.parametrize(
    ("low", "high", "verdicts"),
    [
        # Two seeds of the difference at 1 and at 5 %.
        ((-3.0, -3.1), (2.9, 3.2), ["confirmed", "confirmed", "confirmed"]),
        ((3.0, 3.1), (-2.9, -3.2), ["confirmed", "contradicted", "contradicted"]),
        ((-3.0, -3.1), (-4.0, -4.1), ["contradicted", "confirmed", "contradicted"]),
        ((-3.0, 3.1), (4.0, -4.1), ["confirmed", "open", "open"]),
        ((-3.0,), (4.0,), ["open", "open", "open"]),
    ],
)
def test_transports_are_compared_by_intervals(
    low: tuple[float, ...], high: tuple[float, ...], verdicts: list[str]
) -> None:
    curves = {
        "websocket": [
            point(rate, *(130 + 20 * seed for seed in range(len(low)))) for rate in (1, 5)
        ],
        "webrtc": [
            webrtc(rate, *(130 + 20 * seed + less for seed, less in enumerate(by_seed)))
            for rate, by_seed in ((1, low), (5, high))
        ],
    }
    assert [told.verdict for told in judge(curves)[-4:-1]] == verdicts


def test_a_rate_that_a_seed_lacks_is_in_no_seeds_mean() -> None:
    # WebRTC is slower by 2 ms at 1 %, and by 12 ms at 5 %, whatever the seed.
    curves = {
        "websocket": [point(1, 108, 108, 108), point(5, 160, 160, 160)],
        "webrtc": [webrtc(1, 110.1, 109.9, 110.05), webrtc(5, 172.1, 171.9, 172.05)],
    }
    whole = judge(curves)[-4]
    curves["webrtc"][1] = webrtc(5, 172.1, 171.9)
    told = judge(curves)[-4]
    assert (whole.verdict, told.verdict) == ("contradicted", "contradicted")
    assert whole.seen == "WebRTC less WebSocket over all rates: +7.0 (+6.8 to +7.3) ms, 3 seeds"
    assert told.seen == (
        "WebRTC less WebSocket over all rates: +2.0 (+1.8 to +2.3) ms (without 5 %: not run over "
        "both with all seeds), 3 seeds"
    )
    apart = {"websocket": [point(1, 100), point(5, 100, 100)], "webrtc": [webrtc(5, 100)]}
    less = difference(apart, lambda rate: True)
    assert less is not None
    assert less.left_out == (1,)
    assert difference({**apart, "webrtc": []}, lambda rate: True) is None


def test_who_stays_closer_to_its_delay_without_loss() -> None:
    # WebRTC is slower by 10 ms at any rate, and loss adds less to it.
    curves = {
        "websocket": [point(0, 100, 120), point(0.5, 103, 123.1), point(1, 110, 130)],
        "webrtc": [webrtc(0, 110, 130), webrtc(0.5, 111, 131), webrtc(1, 170, 180)],
    }
    told = judge(curves)[-1]
    assert told.verdict == "confirmed"
    assert told.seen == "WebRTC less WebSocket of what loss adds: -2.0 (-2.7 to -1.4) ms, 2 seeds"


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
         ["confirmed", "confirmed"]),
        ([point(0, 100, 90), point(0.2, 101, 89), point(3, 110, 95)],
         ["confirmed", "confirmed", "open"]),
        ([point(0, 100, 90), point(0.2, 99, 89), point(3, 110, 95)],
         ["confirmed", "confirmed", "contradicted"]),
        ([point(0, 100, 90), point(0.2, 101, 91), point(5, 110, coverage=0.99)],
         ["contradicted", "confirmed"]),
        # One seed: it may be chance.
        ([point(0, 100), point(0.2, 101)], ["confirmed", "open"]),
        ([point(0, 100), point(0.2, 99)], ["confirmed", "open"]),
        # Nothing between 0.2 and 3 %, or nothing to compare with.
        ([point(0, 100), point(0.1, 99), point(5, 99)], ["confirmed", "open"]),
        ([point(0.2, 100), point(1, 120)], ["confirmed", "open"]),
    ],
)  # fmt: skip
def test_verdicts_follow_the_data(points: list[Point], verdicts: list[str]) -> None:
    told = judge({"websocket": points})
    assert [one.verdict for one in told] == [*verdicts, *["open"] * 4]
    assert {one.seen for one in told[-4:]} == {
        "not measured: no such rate was run over both, with all seeds"
    }


def test_each_rate_has_its_own_verdict() -> None:
    rates = [(0.2, 99, 91), (0.5, 99, 89), (1, 101, 91), (3, 110, 95), (5, 99, 89)]
    told = judge({"websocket": [point(0, 100, 90), *(point(*rate) for rate in rates)]})
    assert [(one.said, one.verdict) for one in told[1:-4]] == [
        ("loss of 1, 3 % slows WebSocket down", "confirmed"),
        ("loss of 0.5 % slows WebSocket down", "contradicted"),
        ("loss of 0.2 % slows WebSocket down", "open"),
    ]
    assert told[1].seen == (
        "mean delay over that without loss: 1.0 (1.0–1.0) ms at 1 %, 7.5 (5.0–10.0) ms at 3 %"
    )


def test_the_conclusion_says_what_is_contradicted() -> None:
    section = section_of(point(0, 100, 90), point(1, 99, 89, coverage=0.5))
    (text,) = [block.text for block in section.blocks if isinstance(block, Text)]
    assert (
        "Contradicted is: messages arrive at everybody whatever the loss; loss of 1 % slows" in text
    )
    assert "Open is: there is no significant difference between WebRTC and WebSocket" in text
    assert "onfirmed is" not in text
    tables = [block for block in section.blocks if isinstance(block, Table)]
    seen = "50.000 % over WebSocket at 1 % loss"
    assert any(seen in row for table in tables for row in table.rows)


def test_growth_is_told_on_both_sides_of_three_per_cent() -> None:
    section = section_of(point(0, 100), point(3, 106), point(5, 116))
    texts = [block.text for block in section.blocks if isinstance(block, Text)]
    assert texts[0] == (
        "Over WebSocket, each per cent of loss adds 2.0 ms to the mean delay up to 3 %, and 5.0 ms "
        "from there to 5 %."
    )
    # A seed that was run at one of them only would shift the two against each other.
    section = section_of(point(0, 100, 200), point(3, 106), point(5, 116, 300))
    assert texts[0] in [block.text for block in section.blocks if isinstance(block, Text)]


def test_runs_of_another_size_are_another_curve() -> None:
    section = section_of(point(0, 100), point(5, 120), point(0, 60, nodes=8), point(5, 70, nodes=8))
    tables = [b for b in section.blocks if isinstance(b, Table) and b.columns[0] == "loss"]
    assert [[row[3] for row in table.rows] for table in tables] == [["–", "20.0"], ["–", "10.0"]]
    texts = [block.text for block in section.blocks if isinstance(block, Text)]
    assert texts[0] == "Runs with nodes 16, degree 4:"
    assert "Runs with nodes 8, degree 4:" in texts


@pytest.mark.parametrize(("nodes", "degree"), [(8, 4), (16, 8)])
def test_conclusions_are_not_held_against_other_networks(nodes: int, degree: int) -> None:
    other = partial(point, nodes=nodes, degree=degree)
    section = section_of(other(0, 100, 90), other(1, 120, 110))
    texts = [block.text for block in section.blocks if isinstance(block, Text)]
    assert texts == [NOT_JUDGED]
    assert all(
        "verdict" not in block.columns for block in section.blocks if isinstance(block, Table)
    )


def test_a_rate_at_which_nothing_came_is_told_as_well() -> None:
    nothing = msgspec.structs.replace(point(5, 0.0, coverage=0.0), delays=None)
    (run,) = nothing.runs
    none = msgspec.structs.replace(run, mean_ms=None, p50_ms=None, p95_ms=None, p99_ms=None)
    section = section_of(point(0, 100), msgspec.structs.replace(nothing, runs=(none,)))
    (text,) = [block.text for block in section.blocks if isinstance(block, Text)]
    assert "Contradicted is: messages arrive at everybody whatever the loss" in text


def test_the_section_is_part_of_the_report() -> None:
    titles = [section.title for section in build_report(collected(point(0, 100))).sections]
    assert "Packet loss" in titles
    assert loss_section(collected()) is None
