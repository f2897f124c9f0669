"""The section about durable topics, from literal figures. No JVM here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal_lab.report.analysis.report_data import Collected, Point, RunFigures
from shoal_lab.report.blocks import Table
from shoal_lab.report.build import build_report
from shoal_lab.report.pages import to_html
from shoal_lab.report.sections.topics import topics_section
from shoal_lab.runs.result_schema import Messages, OverNodes, Times, TopicFigures, check_told

NODES = OverNodes(1000.0, 20.0, 1100.0, 1200.0, 2048.0)
FIGURES = TopicFigures(
    issued=17_611,
    injected=17_600,
    coverage_percent=100.0,
    coverage_of_issued_percent=99.9,
    copies_per_delivery=1.01,
    network_mib=700.4,
    wrong=0,
    rpc=Messages(120.0, NODES, NODES),
    topic_state_bytes=OverNodes(4096.0, 0.0, 8192.0, 9000.0, 10240.0),
    dht_state_bytes=OverNodes(1024.0, 0.0, 2048.0, 2100.0, 3072.0),
    dht=Messages(60.0, NODES, NODES),
    delivery_ms=Times(500.0, 900.0),
    to_100_ms=Times(600.0, 1500.0),
    run_to_100_s=2.5,
)


def point(
    *figures: TopicFigures, system: str = "topics", nodes: int = 100, **options: Any
) -> Point:
    runs = tuple(RunFigures(run=f"r{n}", seed=n, topics=f) for n, f in enumerate(figures, 1))
    settings = {"network.nodes": nodes, "workload.messages": 17_611, "options.topics": 23}
    settings |= {"options.system": system} | {f"options.{k}": v for k, v in options.items()}
    return Point(scenario="topics-reddit", about="", label="", runs=runs, settings=settings)


def tables(*points: Point) -> tuple[Table, Table]:
    made = topics_section(
        Collected(folder="results", points=points, provenance=(), replays=(), problems=())
    )
    assert made is not None
    assert made[1] == [], "covering more than the source is no reproduction"
    coverage, costs = made[0].blocks
    assert isinstance(coverage, Table)
    assert isinstance(costs, Table)
    return coverage, costs


def test_coverage_stands_beside_the_source() -> None:
    coverage, costs = tables(point(FIGURES, ordered=True, slow=False))
    assert dict(zip(coverage.columns[:5], coverage.rows[0], strict=False)) == {
        "scenario": "topics-reddit", "system": "topics", "order": "yes", "network": "plain",
        "runs": "1",
    }  # fmt: skip
    assert coverage.rows[0][5:10] == ("17,600", "99.90", "37", "100.00", "80")
    assert coverage.rows[0][10:] == ("0.50", "0.90", "0.60", "1.50", "2.5", "0")
    assert costs.rows[0][4:8] == ("120.0", "60.0", "1.010", "1,000 / 20 / 1,100 / 1,200")
    assert costs.rows[0][-4:] == ("700", "–", "4 / 8 / 10", "1 / 2 / 3")


@pytest.mark.parametrize(
    ("system", "slow", "injected", "published"),
    [("topics", False, "99", "99"), ("topics", True, "51", "86"), ("floodsub", True, "31", "31")],
)
def test_every_run_of_the_source_has_its_place(
    system: str, slow: bool, injected: str, published: str
) -> None:
    coverage, _ = tables(point(FIGURES, system=system, slow=slow))
    assert (coverage.rows[0][7], coverage.rows[0][9]) == (injected, published)


@pytest.mark.parametrize(
    "other",
    [{"nodes": 24}, {"topics": 5}, {"workload": "reddit"}, {"kills": 3}, {"fault": "crash"}],
)
def test_runs_that_were_not_set_up_so_have_nothing_beside_them(other: dict[str, Any]) -> None:
    fault = other.pop("fault", "service_time")
    made = point(FIGURES, **other)
    made.settings["faults.0.kind"] = fault
    coverage, costs = tables(made)
    assert (coverage.rows[0][7], coverage.rows[0][9], costs.rows[0][-3]) == ("–", "–", "–")


def test_repeats_and_what_never_came() -> None:
    worse = msgspec.structs.replace(
        FIGURES, coverage_percent=90.0, run_to_100_s=None, to_100_ms=None, dht=None, wrong=2
    )
    coverage, costs = tables(point(FIGURES, worse))
    assert coverage.rows[0][8] == "95.00 (90.00–100.00)"
    assert coverage.rows[0][14:] == ("2.5", "1 (0–2)")
    alone, costs = tables(point(worse))
    assert alone.rows[0][12:15] == ("–", "–", "–")
    assert costs.rows[0][5] == "–"


def test_rows_that_would_be_the_same_name_nodes_and_kills() -> None:
    alike = [
        msgspec.structs.replace(point(FIGURES, kills=kills), label=f"nodes 100, kills {kills}")
        for kills in (0, 9)
    ]
    for table in tables(*alike, point(FIGURES, slow=True)):
        assert [row[0] for row in table.rows] == [
            "topics-reddit (nodes 100, kills 0)", "topics-reddit (nodes 100, kills 9)",
            "topics-reddit",
        ]  # fmt: skip
    assert "over the nodes of the point's first run" in tables(*alike)[1].caption


def test_it_is_on_the_page_and_only_if_there_are_such_runs() -> None:
    other = Point(
        scenario="x", about="", label="", runs=(RunFigures(run="r", seed=1),), settings={}
    )
    for points, there in (((point(FIGURES),), True), ((other,), False)):
        report = build_report(
            Collected(folder="f", points=points, provenance=(), replays=(), problems=())
        )
        assert ("Durable topics" in to_html(report)) == there


def test_a_run_file_without_its_figures_is_damaged() -> None:
    told = {"result": {"figures": msgspec.to_builtins(FIGURES)}}
    check_told(msgspec.json.encode(told), pairs=False, topics=True)
    del told["result"]["figures"]["rpc"]
    with pytest.raises(msgspec.DecodeError, match="rpc"):
        check_told(msgspec.json.encode(told), pairs=False, topics=True)
