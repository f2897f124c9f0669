"""What a report says of overlays as graphs, from literal aggregates."""

from __future__ import annotations

import msgspec
import pytest

from shoal_lab.report import published
from shoal_lab.report.analysis.report_data import Diameter, Point
from shoal_lab.report.blocks import Table
from shoal_lab.report.build import build_report
from shoal_lab.report.pages import to_markdown
from tests.pipeline.report_points import collected, overlays, point, table_of, told_of


def test_bounds_of_diameters() -> None:
    # 1 + floor(6.29) + floor(-0.50); 1 + ceil(log3(2 * 4 * 1000 * 6.908)).
    assert published.diameter_bounds(1000, 4) == (6, 11)
    assert published.diameter_bounds(5, 4)[0] == 1, "never below one"


def test_overlays_are_held_against_chance_and_bounds() -> None:
    wide = Diameter(nodes=1000, degree=4, overlays=9, min=7, mean=8.0, max=12)
    both = msgspec.structs.replace(overlays(deviation=0.003), diameters=(wide,))
    report = build_report(collected(both))
    found = [(told.figure, told.against, told.verdict) for told in report.comparisons]
    assert found == [
        ("mean pair probability", "source", "within 0.1 %"),
        ("deviation between pairs", "theory", "outside"),
        ("diameter, hops", "theory", "outside"),
    ]
    published_, noise, diameter = report.comparisons
    assert (published_.published, published_.spread) == (0.0040040, None)
    assert noise.published is None
    assert noise.expected == pytest.approx(0.001997, abs=1e-6)
    assert (diameter.published, diameter.reference, diameter.spread) == (None, None, (6, 11))
    assert report.summary[1:] == (
        "Of 1 figures that the sources publish, 1 are reproduced: 0 inside the published spread, 1 "
        "within our tolerance of the published value, 0 as errors no higher than the published "
        "one.",
        "Of 2 figures that theory gives or bounds, 0 are consistent with it.",
        "Outside: deviation between pairs (nodes 1000): 0.003, expected 0.001997.",
        "Outside: diameter, hops (nodes 1000): 12, expected 6–11.",
    )
    (section,) = [section for section in report.sections if section.title == "Verdicts"]
    tables = [block for block in section.blocks if isinstance(block, Table)]
    assert [table.columns[2:4] for table in tables] == [
        ("published", "spread"), ("expected", "bounds"),
    ]  # fmt: skip
    assert tables[1].rows[1][2:] == ("–", "6–11", "12", "–", "outside")


@pytest.mark.parametrize(
    ("overlays_", "apart", "verdict"),
    [
        # 1,225 pairs: the standard error is 2 % of the deviation, and four of them 8 %.
        (1000, 1.07, "inside"), (1000, 1.09, "outside"), (1000, 0.93, "inside"),
        # Of one overlay nothing is left to chance.
        (1, 1.019, "inside"), (1, 1.021, "outside"),
    ],
)  # fmt: skip
def test_few_pairs_deviate_by_chance(overlays_: int, apart: float, verdict: str) -> None:
    chance = (4 / 49 * (1 - 4 / 49) / overlays_) ** 0.5
    report = build_report(collected(overlays(50, overlays=overlays_, deviation=apart * chance)))
    (told,) = told_of(report, "deviation between pairs")
    assert told.verdict == verdict
    assert told.expected == pytest.approx(chance)


def test_the_first_nodes_are_held_against_chance() -> None:
    def text_of(early: float, nodes: int = 1000) -> str:
        cells = ((early,) * 125,) * 125  # squares of 8 nodes a side
        return to_markdown(build_report(collected(overlays(nodes, cells=cells))), "p.html")

    even = (
        "the first 8 (nodes 1000) 1.02 times as often as pairs are in the mean, by chance 1 with a "
        "standard error of 0.09."
    )
    assert f"up to 3 times as often as others. Not here: {even}" in text_of(1.02 * 4 / 999)
    assert "Here, too, they are linked more often: the first 8" in text_of(3 * 4 / 999)
    assert "as often as others" not in text_of(0.1, nodes=999)


@pytest.mark.parametrize("more", [{"nodes": 500}, {"overlays": 999}])
def test_overlays_that_nobody_published_are_held_against_theory(more: dict[str, int]) -> None:
    report = build_report(collected(overlays(**more)))
    assert [(told.against, told.published, told.reproduced) for told in report.comparisons] == [
        ("theory", None, True), ("theory", None, True),
    ]  # fmt: skip


@pytest.mark.parametrize("nodes", [2, 4, 5])
def test_where_all_pairs_are_linked_nothing_is_left_to_chance(nodes: int) -> None:
    report = build_report(collected(overlays(nodes)))
    assert report.failures == ()
    (told,) = report.comparisons
    assert (told.expected, told.verdict) == (1.0, "inside")
    assert table_of(report, "Randomness").rows[0][7:9] == ("–", "–")


def test_duplicates_are_held_against_the_degree() -> None:
    report = build_report(collected(point(64, 150.0, scenario="streams-redundancy")))
    (told,) = told_of(report, "duplicates per message")
    assert (told.published, told.spread, told.ours, told.verdict) == (
        2.0, (1.95, 2.05), 2.01, "inside",
    )  # fmt: skip


def test_under_latency_the_thesis_saw_fewer_duplicates() -> None:
    more = point(64, 150.0, scenario="streams-redundancy")
    six = msgspec.structs.replace(
        more,
        settings={**more.settings, "network.degree": 6},
        runs=(msgspec.structs.replace(more.runs[0], duplicates_per_message=4.03),),
    )
    report = build_report(collected(more, six))
    (told,) = told_of(report, "duplicates per message above d - 2")
    assert (told.point, told.published, told.verdict) == ("degree 4, 6", 0.0, "higher")
    assert told.ours == pytest.approx(0.02)
    assert "Ours are +0.020 from d - 2 in the mean over degrees: higher." in to_markdown(
        report, "p.html"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("network.nodes", 128),
        ("network.delays", "sphere"),
        ("network.policy", "aware"),
        ("network.redundant_feeds", 0),
        ("network.liars", 0.2),
        ("faults.0.kind", "duplication"),
    ],
)
def test_duplicates_of_another_network_are_shown_alone(name: str, value: object) -> None:
    other = point(64, 150.0, scenario="streams-redundancy")
    other.settings[name] = value
    report = build_report(collected(other))
    assert report.comparisons == ()
    (row,) = table_of(report, "Redundancy").rows
    assert row[3:] == ("–", "–", "2.010", "–", "set up otherwise")


def test_the_longest_ways_of_the_smallest_and_the_largest_size_are_published() -> None:
    def far(nodes: int, hops: int) -> Point:
        one = point(nodes, 160.0)
        return msgspec.structs.replace(
            one, runs=(msgspec.structs.replace(one.runs[0], hops_max=hops),)
        )

    report = build_report(collected(point(32, 137.0), far(64, 34), far(2048, 9)))
    found = [(told.point, told.ours, told.verdict) for told in told_of(report, "longest way, hops")]
    assert found == [("nodes 32", 9, "within 20 %"), ("nodes 2048", 9, "outside")]
    rows = table_of(report, "Hops").rows
    assert [row[3] for row in rows] == ["within 20 %", "not published", "outside"]
    assert "Outside: longest way, hops (nodes 2048): 9, published 33." in report.summary
