"""Reports from literal aggregates: verdicts, tables, pages. No JVM here."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from shoal_lab.report import build, published
from shoal_lab.report.analysis.report_data import Collected, Point
from shoal_lab.report.blocks import Comparison, Figure
from shoal_lab.report.build import build_report
from shoal_lab.report.pages import to_html, to_markdown
from shoal_lab.runs.run_frames import Problem
from tests.pipeline.report_points import collected, point, table_of, told_of


def test_the_published_tables_are_read() -> None:
    sizes = published.propagation()
    assert list(sizes) == [32, 64, 128, 256, 512, 1024, 2048]
    assert (sizes[2048].min_ms, sizes[2048].mean_ms, sizes[2048].max_ms) == (282, 288, 296)
    assert published.penalties()[0].overlay == "Streamr WebRTC"
    assert sizes[2048].mean_ms / published.UNICAST_MS == pytest.approx(published.RDP, abs=0.01)
    mean = published.DEGREE / (published.RANDOM_NODES - 1)
    assert mean == pytest.approx(published.PAIR_PROBABILITY, abs=1e-7)


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
        Comparison(figure="", point="", published=1.24, ours=ours, at_most=True).verdict
        for ours in (0.1, 1.24, 1.3)
    ]
    assert verdicts == ["no higher", "no higher", "higher"]


def test_bounds_have_no_middle_that_somebody_published() -> None:
    for ours, verdict in ((9, "inside"), (34, "outside")):
        told = Comparison(figure="", point="", spread=(9, 33), ours=ours)
        assert (told.published, told.difference, told.verdict) == (None, None, verdict)


def test_sizes_stand_beside_the_published_ones() -> None:
    report = build_report(collected(point(32, 130.0, 150.0), point(2048, 330.0)))
    assert table_of(report, "Propagation delay").rows == (
        ("32", "2", "137", "120–150", "140.0", "130.0–150.0", "+2.2 %", "inside", "200.0",
         "400.0", "450.0"),
        ("2,048", "1", "288", "282–296", "330.0", "330.0–330.0", "+14.6 %", "outside", "200.0",
         "400.0", "450.0"),
    )  # fmt: skip
    assert report.summary[:4] == (
        "3 runs at 2 points were read.",
        "Of 6 figures that the sources publish, 3 are reproduced: 1 inside the published spread, "
        "2 within our tolerance of the published value, 0 as errors no higher than the published "
        "one.",
        "Of 1 figures that follow from published ones, 1 are reproduced.",
        "Of 1 limits of our own, 1 are kept.",
    )
    assert "Outside: mean delay, ms (nodes 2048): 330, published 288." in report.summary
    p99 = told_of(report, "p99 delay, ms")
    assert [(told.published, told.ours, told.verdict) for told in p99] == [(444, 450, "within 8 %")]


def test_a_row_has_the_verdict_of_its_own_point() -> None:
    points = [msgspec.structs.replace(point(32, ms), label="the same") for ms in (137.0, 330.0)]
    report = build_report(collected(*points))
    rows = table_of(report, "Propagation delay").rows
    assert [(row[0], row[4], row[7]) for row in rows] == [
        ("the same", "137.0", "inside"), ("the same", "330.0", "outside"),
    ]  # fmt: skip


def test_lines_of_one_size_are_told_apart() -> None:
    def sized(nodes: int, size: int) -> Point:
        one = point(nodes, 137.0)
        settings = {**one.settings, "workload.size_bytes": size}
        label = f"nodes {nodes:,}, size_bytes {size}"
        return msgspec.structs.replace(one, settings=settings, label=label)

    points = [sized(nodes, size) for nodes in (32, 2048) for size in (9, 300)]
    (section,) = [
        section
        for section in build_report(collected(*points)).sections
        if section.title == "Propagation delay"
    ]
    scaling, curves = (block.svg for block in section.blocks if isinstance(block, Figure))
    assert [scaling.count(f"Shoal, size_bytes {size}<") for size in (9, 300)] == [1, 1]
    for nodes, size in ((32, 9), (32, 300), (2048, 9), (2048, 300)):
        label = f"nodes {nodes:,}, size_bytes {size}"
        assert f"{nodes:,} nodes (streams-propagation, {label})" in curves


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("network.degree", 6),
        ("network.delays", "sphere"),
        ("network.policy", "aware"),
        ("network.redundant_feeds", 1),
        ("network.liars", 0.2),
        ("faults.0.kind", "loss"),
        ("faults.0.kind", "jitter"),
        ("workload.messages_per_node", 1),
        ("workload.publishers", "random"),
        ("workload.publisher_count", 5),
        ("on", "sockets"),
        ("experiment", "loss"),
    ],
)
def test_what_was_set_up_otherwise_is_not_compared(name: str, value: object) -> None:
    other = point(32, 130.0)
    other.settings[name] = value
    report = build_report(collected(other, point(32, 130.0, scenario="mine")))
    assert report.comparisons == ()
    assert "Propagation delay" not in [section.title for section in report.sections]
    assert "| mine | nodes 32 | 1 | 10 | 100.000 % | 130.0 |" in to_markdown(report, "p.html")


def test_two_messages_a_node_may_be_said_in_all() -> None:
    other = point(32, 130.0)
    other.settings.update({"workload.messages_per_node": None, "workload.messages": 64})
    assert told_of(build_report(collected(other)), "mean delay, ms") != []


def test_penalties_are_published_of_the_largest_size_alone() -> None:
    report = build_report(collected(point(32, 137.0), point(2048, 288.0)))
    found = told_of(report, "relative delay penalty")
    assert [(told.against, told.published, told.verdict) for told in found] == [
        ("derived", None, "inside"), ("source", 4.19, "inside"),
    ]  # fmt: skip
    assert found[0].expected == pytest.approx(137 / 68.64)
    assert [row[1] for row in table_of(report, "Relative delay penalty").rows] == ["2.00", "4.19"]


def test_a_section_that_fails_is_told_and_the_others_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def odd_section(collected: Collected) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(build, "SECTIONS", (odd_section, *build.SECTIONS))
    report = build_report(collected(point(32, 130.0)))
    titles = [section.title for section in report.sections]
    assert (titles[0], "Propagation delay" in titles) == ("Problems", True)
    (failure,) = report.failures
    assert failure.section == "odd"
    assert re.fullmatch(r"ZeroDivisionError in test_report\.py, line \d+: by nothing", failure.text)
    assert table_of(report, "Problems").rows == (("odd", failure.text),)
    assert report.summary[-1] == "1 sections could not be made: see Problems."


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
