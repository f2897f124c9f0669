"""Reports from literal aggregates: verdicts, tables, pages. No JVM here."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import msgspec
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
from shoal.pipeline.report import build, published
from shoal.pipeline.report.build import build_report
from shoal.pipeline.report.html import to_html
from shoal.pipeline.report.markdown import to_markdown
from shoal.pipeline.report.model import Comparison, Report, Table

AS_PUBLISHED = {
    "protocol": "streams", "experiment": "delivery", "on": "simulator", "faults": [],
    "network.degree": 4, "network.delays": "aws", "network.policy": "random",
    "network.redundant_feeds": "all", "network.liars": 0.0, "workload.messages": 100,
    "workload.messages_per_node": 2, "workload.publishers": "in-turn",
    "workload.publisher_count": None,
}  # fmt: skip
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
        settings={"network.nodes": nodes, **AS_PUBLISHED},
    )  # fmt: skip


def overlays(nodes: int = 1000, *, overlays: int = 1000, **more: Any) -> Point:
    """A point that counted pairs, as chance has it."""
    expected = min(1.0, 4 / (nodes - 1))
    told = {
        "nodes": nodes, "degree": 4, "overlays": overlays, "pairs": nodes * (nodes - 1) // 2,
        "mean": expected, "deviation": (expected * (1 - expected) / overlays) ** 0.5,
        "least": 0.0, "most": 0.02, "block_p_value": 0.4, "cells": ((0.1, 0.2), (0.2, 0.1)),
    }  # fmt: skip
    return Point(
        scenario="streams-randomness", about="", label=f"nodes {nodes}", runs=(),
        settings={"network.nodes": nodes, "network.degree": 4},
        matrix=PairMatrix(**{**told, **more}),
    )  # fmt: skip


def told_of(report: Report, figure: str) -> list[Comparison]:
    return [told for told in report.comparisons if told.figure == figure]


def table_of(report: Report, title: str) -> Table:
    """The first of a section."""
    (section,) = [section for section in report.sections if section.title == title]
    return next(block for block in section.blocks if isinstance(block, Table))


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
    assert report.summary[:2] == (
        "3 runs at 2 points were read.",
        "Of 8 figures that the sources publish, 6 are reproduced: 4 inside the published spread, "
        "1 within our tolerance of the published value, 1 as errors no higher than the published "
        "one.",
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


def test_duplicates_are_held_against_the_degree() -> None:
    report = build_report(collected(point(64, 150.0, scenario="streams-redundancy")))
    (told,) = told_of(report, "duplicates per message")
    assert (told.published, told.spread, told.ours, told.verdict) == (
        2.0, (1.95, 2.05), 2.01, "inside",
    )  # fmt: skip


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


def test_the_longest_ways_are_held_against_the_published_range() -> None:
    far = point(64, 160.0)
    far = msgspec.structs.replace(far, runs=(msgspec.structs.replace(far.runs[0], hops_max=34),))
    report = build_report(collected(point(32, 137.0), point(48, 150.0), far))
    found = [(told.point, told.ours, told.verdict) for told in told_of(report, "longest way, hops")]
    assert found == [("nodes 32", 9, "inside"), ("nodes 64", 34, "outside")]
    rows = table_of(report, "Hops").rows
    assert [row[3] for row in rows] == ["inside", "size not published", "outside"]
    assert "Outside: longest way, hops (nodes 64): 34, published 9–33." in report.summary


def test_estimates_stand_beside_the_published_ones() -> None:
    other = point(32, 130.0, scenario="mine")
    other.settings["network.delays"] = "sphere"
    report = build_report(collected(point(32, 130.0), point(48, 150.0), other))
    table = table_of(report, "Prediction")
    assert table.columns[3:5] == ("tracker, ms", "published, ms")
    assert [row[3:5] for row in table.rows] == [("130.0", "131"), ("150.0", "–"), ("130.0", "–")]


def test_predictions_under_noise_are_compared_too() -> None:
    noisy = point(256, 200.0, 210.0, scenario="streams-prediction")
    noisy.settings.update(
        {"faults.0.kind": "jitter", "faults.1.kind": "service_time", "workload.messages": 9}
    )
    lossy = point(256, 200.0, scenario="streams-prediction")
    lossy.settings.update({"faults.0.kind": "loss"})
    report = build_report(collected(point(32, 137.0), point(48, 150.0), noisy, lossy))
    found = told_of(report, "prediction MAPE, %")
    assert [(told.point, told.ours, told.verdict) for told in found] == [
        ("1 overlays of streams-propagation", 0.5, "no higher"),
        ("2 overlays of streams-prediction", 0.5, "no higher"),
    ]


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
