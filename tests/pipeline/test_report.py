"""Reports from literal aggregates: verdicts, tables, pages. No JVM here."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from shoal.pipeline.jobs.collected import (
    Collected,
    DelayCurve,
    Diameter,
    PairMatrix,
    Point,
    Provenance,
    RunFigures,
)  # fmt: skip
from shoal.pipeline.reading import Problem
from shoal.pipeline.report import published
from shoal.pipeline.report.build import build_report
from shoal.pipeline.report.html import to_html
from shoal.pipeline.report.markdown import to_markdown
from shoal.pipeline.report.model import Comparison, Table

CURVE = DelayCurve(
    delivered=10, mean_ms=1, p50_ms=200.0, p95_ms=400.0, p99_ms=450.0, cdf=((1.0, 0.5), (9.0, 1.0))
)


def point(nodes: int, *means_ms: float, scenario: str = "streams-propagation") -> Point:
    runs = tuple(
        RunFigures(
            run=f"r{seed}", seed=seed, messages=1, mean_ms=mean_ms, rdp=mean_ms / 68.64,
            unicast_ms=68.64, coverage=1.0, duplicates_per_message=2.01, hops_mean=5.5, hops_max=9,
            tracker_ms=mean_ms, tracker_error_percent=-0.5, publisher_mape_percent=1.0,
        )
        for seed, mean_ms in enumerate(means_ms, 1)
    )  # fmt: skip
    return Point(
        scenario=scenario, about="", label=f"nodes {nodes}", runs=runs, delays=CURVE,
        settings={"network.nodes": nodes, "network.degree": 4, "network.delays": "aws"},
    )  # fmt: skip


def collected(*points: Point, problems: tuple[Problem, ...] = ()) -> Collected:
    made = Provenance(
        commit="abc+", shoal="1", python="3.13", machine="Linux", packages={"numpy": "2"}, runs=3
    )
    return Collected(
        folder="results",
        points=points,
        provenance=(made,),
        replays=(("r1", "shoal lab run x --seed 1"),),
        problems=problems,
    )


def test_the_published_tables_are_read() -> None:
    sizes = published.propagation()
    assert list(sizes) == [32, 64, 128, 256, 512, 1024, 2048]
    assert (sizes[2048].min_ms, sizes[2048].mean_ms, sizes[2048].max_ms) == (282, 288, 296)
    assert published.penalties()[0].overlay == "Streamr WebRTC"
    assert sizes[2048].mean_ms / published.UNICAST_MS == pytest.approx(published.RDP, abs=0.01)
    mean = published.DEGREE / (published.RANDOM_NODES - 1)
    assert mean == pytest.approx(published.PAIR_PROBABILITY, abs=1e-7)


def test_bounds_of_diameters() -> None:
    # 1 + floor(6.29) + floor(-0.50); 1 + ceil(log3(2 * 4 * 1000 * 6.908)).
    assert published.diameter_bounds(1000, 4) == (6, 11)
    assert published.diameter_bounds(5, 4)[0] == 1, "never below one"


@pytest.mark.parametrize(
    ("ours", "verdict", "reproduced"),
    [(282.0, "inside", True), (296.1, "within 6 %", True), (306.0, "outside", False),
     (271.0, "within 6 %", True), (270.0, "outside", False)],
)  # fmt: skip
def test_verdicts(ours: float, verdict: str, reproduced: bool) -> None:
    told = Comparison(
        figure="", point="", published=288, spread=(282, 296), ours=ours, tolerance=0.06
    )
    assert (told.verdict, told.reproduced) == (verdict, reproduced)


def test_an_error_may_be_smaller_than_the_published_one() -> None:
    verdicts = [
        Comparison(
            figure="", point="", published=1.24, spread=None, ours=ours, at_most=True
        ).verdict
        for ours in (0.1, 1.24, 1.3)
    ]
    assert verdicts == ["no higher", "no higher", "higher"]


def test_sizes_stand_beside_the_published_ones() -> None:
    report = build_report(collected(point(32, 130.0, 150.0), point(2048, 330.0)))
    (section,) = [s for s in report.sections if s.title == "Propagation delay"]
    table = section.blocks[0]
    assert isinstance(table, Table)
    assert table.rows == (
        ("32", "2", "137", "120–150", "140.0", "130.0–150.0", "+2.2 %", "inside", "200.0",
         "400.0", "450.0"),
        ("2,048", "1", "288", "282–296", "330.0", "330.0–330.0", "+14.6 %", "outside", "200.0",
         "400.0", "450.0"),
    )  # fmt: skip
    assert report.summary[:2] == (
        "3 runs at 2 points were read.",
        "Of 6 figures that the sources publish, 4 are reproduced; 2 lie inside the published "
        "spread.",
    )
    assert "Outside: mean delay, ms (nodes 2048): 330, published 288." in report.summary
    p99 = [told for told in report.comparisons if told.figure == "p99 delay, ms"]
    assert [(told.published, told.ours, told.verdict) for told in p99] == [(444, 450, "within 8 %")]


def test_what_was_set_up_otherwise_is_not_compared() -> None:
    other = point(32, 130.0)
    other.settings["network.degree"] = 6
    report = build_report(collected(other, point(32, 130.0, scenario="mine")))
    assert [told for told in report.comparisons if told.figure == "mean delay, ms"] == []
    assert "Propagation delay" not in [section.title for section in report.sections]
    assert "| mine | nodes 32 | 1 | 10 | 100.000 % | 130.0 |" in to_markdown(report, "p.html")


def test_overlays_are_held_against_chance_and_bounds() -> None:
    matrix = PairMatrix(
        nodes=1000, degree=4, overlays=1000, pairs=499_500, mean=0.004004, deviation=0.003,
        least=0.0, most=0.02, block_p_value=0.4, cells=((0.1, 0.2), (0.2, 0.1)),
    )  # fmt: skip
    wide = Diameter(nodes=1000, degree=4, overlays=9, min=7, mean=8.0, max=12)
    base = point(1000, scenario="streams-randomness")
    both = Point(
        scenario=base.scenario, about="", label="n", settings=base.settings, runs=(),
        matrix=matrix, diameters=(wide,),
    )  # fmt: skip
    verdicts = [(told.figure, told.verdict) for told in build_report(collected(both)).comparisons]
    assert verdicts == [
        ("mean pair probability", "inside"),
        ("deviation between pairs", "outside"),
        ("diameter, hops", "outside"),
    ]


def test_duplicates_are_held_against_the_degree() -> None:
    report = build_report(collected(point(64, 150.0, scenario="streams-redundancy")))
    (told,) = [told for told in report.comparisons if told.figure == "duplicates per message"]
    assert (told.published, told.spread, told.ours, told.verdict) == (
        2.0, (1.95, 2.05), 2.01, "inside",
    )  # fmt: skip


def test_problems_come_first_and_provenance_last() -> None:
    problem = Problem("bad", "results/bad/deliveries.parquet", "corrupt or cut short: <x> | y")
    report = build_report(collected(point(32, 130.0), problems=(problem,)))
    titles = [section.title for section in report.sections]
    assert (titles[0], titles[-1]) == ("Problems", "Provenance")
    markdown = to_markdown(report, "report.html")
    assert (
        "| bad | results/bad/deliveries.parquet | corrupt or cut short: \\<x\\> \\| y |" in markdown
    )
    assert "| 3 | abc+ | 1 | 3.13 | Linux | numpy 2 |" in markdown
    assert "results/bad/deliveries.parquet" in to_html(report)


class Page(HTMLParser):
    """Notes what a browser would fetch, and whether tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            local = (value or "").startswith(("#", "data:"))
            if name in ("src", "href", "srcset", "action", "data") and not local:
                self.fetched.append(f"{tag} {value}")
        if tag == "script":
            self.fetched.append(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.remove(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_is_well_formed() -> None:
    report = build_report(collected(point(32, 130.0), point(64, 160.0, scenario="<script>x")))
    html = to_html(report)
    page = Page()
    page.feed(html)
    assert (page.fetched, page.open) == ([], [])
    assert not re.search(r"url\(|@import", html)
    assert html.count("<svg") == 1, "one size: a distribution, and nothing to scale"
