"""The section about topology policies, from literal aggregates. No JVM here."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from shoal_lab.report.analysis.report_data import (  # fmt: skip
    Collected,
    DelayCurve,
    LinkMap,
    Point,
    RunFigures,
    Stretch,
)
from shoal_lab.report.blocks import Figure, Section, Table
from shoal_lab.report.build import build_report
from shoal_lab.report.pages import to_html
from shoal_lab.report.sections.policies import policies_section

CURVE = DelayCurve(
    delivered=10, mean_ms=1, p50_ms=100.0, p95_ms=200.0, p99_ms=300.0, cdf=((1.0, 1.0),)
)
STRETCH = Stretch(
    pairs=12, quantiles=((0.5, 2.25), (0.99, 100.0)), no_longer=0.25, cdf=((0.5, 0.25), (20.0, 1.0))
)
MAP = LinkMap(places=((0.0, 0.0), (1.0, 1.0), (0.5, 0.5)), links=((0, 1, 120.0), (1, 2, 3.0)))


def point(policy: str, nodes: int, *means_ms: float, delays: str = "aws", **more: object) -> Point:
    runs = tuple(
        RunFigures(run=f"r{seed}", seed=seed, messages=1, mean_ms=mean, direct_ms=50.0, coverage=1)
        for seed, mean in enumerate(means_ms, 1)
    )
    names = {
        "nodes": nodes, "degree": 4, "delays": delays, "policy": policy, "redundant_feeds": "all",
        "liars": 0.0, **more,
    }  # fmt: skip
    settings = {f"network.{name}": value for name, value in names.items()}
    settings |= {"protocol": "streams", "experiment": "delivery", "on": "simulator"}
    # As all scenarios with policies have it.
    settings |= {"faults.0.kind": "service_time", "faults.0.per_message_ms": 0.1}
    rest = "".join(f", {name} {value}" for name, value in more.items())
    return Point(
        scenario=f"aware-{delays}", about="", label=f"nodes {nodes:,}, policy {policy}{rest}",
        runs=runs, settings=settings, delays=CURVE, stretch=STRETCH, links=MAP,
    )  # fmt: skip


def collected(*points: Point) -> Collected:
    return Collected(folder="results", points=points, provenance=(), replays=(), problems=())


def section_of(*points: Point) -> Section:
    made = policies_section(collected(*points))
    assert made is not None
    assert made[1] == [], "nothing here reproduces a published figure"
    return made[0]


def tables(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def test_sizes_and_policies_stand_in_order_beside_what_is_published() -> None:
    section = section_of(
        point("aware", 32, 60.0, 80.0), point("other", 32, 99.0), point("random", 512, 200.0),
        point("near-half", 32, 100.0), point("random", 32, 140.0), point("random", 48, 140.0),
    )  # fmt: skip
    rows = tables(section)[0].rows
    assert [row[:7] for row in rows] == [
        ("32", "random", "1", "140.0", "–", "50.0", "2.80"),
        ("32", "near-half", "1", "100.0", "-28.6 %", "50.0", "2.00"),
        ("32", "aware", "2", "70.0 (60.0–80.0)", "-50.0 %", "50.0", "1.40 (1.20–1.60)"),
        ("32", "other", "1", "99.0", "-29.3 %", "50.0", "1.98"),
        ("48", "random", "1", "140.0", "–", "50.0", "2.80"),
        ("512", "random", "1", "200.0", "–", "50.0", "4.00"),
    ]
    accident = "146 (by accident)"
    assert [row[-1] for row in rows] == ["137", accident, accident, accident, "–", "241"]
    assert rows[0][7:12] == ("100.0", "200.0", "300.0", "–", "100.000 %")


@pytest.mark.parametrize(
    "more", [{"degree": 6}, {"redundant_feeds": 0}, {"liars": 0.2}, {"delays": "sphere"}]
)
def test_each_setting_is_held_against_its_own_random_overlay(more: dict[str, Any]) -> None:
    points = [
        point("random", 32, 200.0), point("aware", 32, 100.0),
        point("random", 32, 400.0, **more), point("aware", 32, 100.0, **more),
    ]  # fmt: skip
    points = [msgspec.structs.replace(each, scenario="swept") for each in points]
    rows = tables(section_of(*points))[0].rows
    assert sorted((row[1], row[4]) for row in rows if "random" not in row[1]) == [
        (points[1].label, "-50.0 %"), (points[3].label, "-75.0 %"),
    ]  # fmt: skip


def test_without_a_random_overlay_of_the_same_settings_nothing_is_gained() -> None:
    section = section_of(point("random", 32, 200.0), point("aware", 32, 100.0, liars=0.2))
    assert [row[4] for row in tables(section)[0].rows] == ["–", "–"]


def test_each_setting_has_its_own_line() -> None:
    settings: list[dict[str, Any]] = [{}, {"degree": 6}]
    points = [
        point(policy, nodes, ms, **more)
        for policy, ms in (("random", 200.0), ("aware", 100.0))
        for nodes in (32, 1024)
        for more in settings
    ]
    section = section_of(*points, point("near-half", 32, 90.0))
    (scaling,) = [b for b in section.blocks if isinstance(b, Figure) and "mean delay" in b.svg]
    for name in ("policy random", "policy random, degree 6", "policy aware, degree 6", "near-half"):
        assert f">{name}<" in scaling.svg
    lines = [e for e in ElementTree.fromstring(scaling.svg).iter() if e.tag.endswith("polyline")]
    assert len({line.get("stroke") for line in lines}) == len(lines) == 5
    rows = tables(section)[-1].rows
    assert [(row[0], row[6]) for row in rows if row[0].startswith("Shoal, policy aware")] == [
        ("Shoal, policy aware (aware-aws)", "32–1,024"),
        ("Shoal, policy aware, degree 6 (aware-aws)", "32–1,024"),
    ]


@pytest.mark.parametrize("more", [{"degree": 5}, {"redundant_feeds": 0}, {"liars": 0.2}])
def test_only_the_sources_network_has_published_delays(more: dict[str, Any]) -> None:
    section = section_of(point("random", 32, 1.0, delays="sphere"), point("aware", 32, 1.0, **more))
    found = tables(section)[:4:2]
    assert [table.columns[-1] for table in found] == ["least coverage"] * 2
    assert {row[-1] for table in found for row in table.rows} == {"100.000 %"}


def test_stretch_is_told_in_quantiles() -> None:
    table = tables(section_of(point("random", 32, 140.0), point("aware", 32, 60.0)))[1]
    assert table.columns == ("nodes", "policy", "pairs", "p50", "p99", "no longer")
    assert table.rows[1] == ("32", "aware", "12", "2.25", "100 or more", "25.0 %")


def test_points_that_differ_in_more_are_named_in_full() -> None:
    section = section_of(
        point("aware", 32, 1.0), point("aware", 32, 2.0, degree=6), point("random", 32, 3.0)
    )
    assert [row[1] for row in tables(section)[0].rows] == [
        "random", "nodes 32, policy aware", "nodes 32, policy aware, degree 6",
    ]  # fmt: skip


def test_the_literature_is_beside_each_policy() -> None:
    section = section_of(
        point("random", 32, 100.0), point("random", 1024, 200.0), point("aware", 1000, 55.0),
        point("aware", 1000, 75.0, delays="transit-stub"),
    )  # fmt: skip
    rows = tables(section)[-1].rows
    assert [row[0] for row in rows[:3]] == [
        "Shoal, random (aware-aws)",
        "Shoal, aware (aware-aws)",
        "Shoal, aware (aware-transit-stub)",
    ]
    assert [row[4:] for row in rows[:3]] == [
        ("4.00", "2.00–4.00", "32–1,024"), ("1.10", "1.10", "1,000"), ("1.50", "1.50", "1,000"),
    ]  # fmt: skip
    assert any(row[0] == "d-regular TA [68]" for row in rows)


def test_pictures_show_growth_stretch_and_links() -> None:
    points = [point(policy, n, 90.0) for policy in ("random", "aware") for n in (32, 128)]
    figures = [b for b in section_of(*points).blocks if isinstance(b, Figure)]
    scaling, curves, *maps = (figure.svg for figure in figures)
    assert "published, random" in scaling
    assert "share of pairs" in curves
    assert len(maps) == 4
    (path, *others) = [
        p for p in ElementTree.fromstring(maps[0]).iter() if p.tag.endswith("path") and p.get("d")
    ]
    assert len(others) == 1, "two links, of two lengths"
    assert path.get("stroke") == "#d55e00", "the longest lies below the others"
    assert "100 ms or more: 1" in maps[0]
    assert "0 to 5 ms: 1" in maps[0]
    one_size = section_of(point("random", 32, 1.0), point("aware", 32, 1.0))
    assert not [b for b in one_size.blocks if isinstance(b, Figure) and "mean delay" in b.svg]


def test_the_section_is_on_the_page_and_absent_without_policies() -> None:
    report = build_report(collected(point("random", 32, 140.0), point("aware", 32, 70.0)))
    assert "Topology policies" in [section.title for section in report.sections]
    assert "<path" in to_html(report)
    alone = Point(
        scenario="s", about="", label="", settings={}, runs=(RunFigures(run="r", seed=1),)
    )
    assert policies_section(collected(alone)) is None
