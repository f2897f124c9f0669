"""The section about search, from literal figures. No JVM here."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal_lab.report.analysis.report_data import (
    Collected,
    LoadOfSearch,
    MatchOfSearch,
    MomentOfSearch,
    Point,
    RunFigures,
    SearchPoint,
    StageOfSearch,
    WatchesOfSearch,
)
from shoal_lab.report.blocks import Figure, Table
from shoal_lab.report.build import build_report
from shoal_lab.report.pages import to_html
from shoal_lab.report.sections.search import load_spread, search_section

STAGE = StageOfSearch(
    stage="before", runs=1, nodes=2000, edges=6000, least_part=1.0, threshold=3000
)


def match(stage: str = "before", data: str = "new", c: float = 2.0, **more: Any) -> MatchOfSearch:
    figures = {
        "pairs": 10_000, "matched": 0.985, "error": 0.002, "theory": 0.9817, "data_size": 110.4,
        "query_size": 110.0, "reached": 110.0, "messages": 114.6, "collisions": 5.55,
        "hops_max": 13, "hops_bound": 12,
    }  # fmt: skip
    return MatchOfSearch(stage=stage, certainty=c, data=data, **(figures | more))


def moment(time_s: int, old: tuple[int, int], **more: Any) -> MomentOfSearch:
    figures = {"nodes": 1000.0, "largest_part": 1.0, "complete": 1.0, "known": 1.0}
    return MomentOfSearch(
        time_s=time_s, old_searches=old[0], old_found=old[1], new_searches=10, new_found=9,
        **(figures | more),
    )  # fmt: skip


def point(search: SearchPoint | None, experiment: str = "match", **options: Any) -> Point:
    settings = {"experiment": experiment, "network.nodes": 2000, "options.locations": 3}
    settings |= {f"options.{name}": value for name, value in options.items()}
    runs = (RunFigures(run="r", seed=1),)
    return Point(scenario="s", about="", label="l", runs=runs, settings=settings, search=search)


def blocks(*points: Point) -> tuple[list[Table], list[Figure]]:
    made = search_section(
        Collected(folder="f", points=points, provenance=(), replays=(), problems=())
    )
    assert made is not None
    assert made[1] == [], "the sources have no figure that was measured"
    found = made[0].blocks
    tables = [block for block in found if isinstance(block, Table)]
    return tables, [block for block in found if isinstance(block, Figure)]


def cells(table: Table, row: int = 0) -> dict[str, str]:
    return dict(zip(table.columns, table.rows[row], strict=True))


def test_theory_model_and_simulator_stand_side_by_side() -> None:
    simulated = SearchPoint(stages=(STAGE,), matches=(match(), match(c=3.0, hops_max=-1)))
    tables, figures = blocks(
        point(simulated, event="none"), point(simulated, "model", event="none")
    )
    (table,) = tables
    assert [row[0] for row in table.rows] == ["simulator", "simulator", "model", "model"]
    told = cells(table)
    assert told["theory"] == "0.9817"
    assert told["met"] == "0.9850 ± 0.0020"
    assert told["off"] == "+0.0033"
    assert told["hops"] == "13 / 12"
    assert cells(table, 1)["hops"] == "–", "nobody counted"
    assert "1 - exp(-c²)" in figures[0].svg
    assert "model, 2,000 nodes, 3 locations" in figures[0].svg


def test_stages_after_an_event_are_told_in_their_order() -> None:
    later = SearchPoint(
        stages=(STAGE,),
        matches=(
            match(), match("repaired"), match("noticed", "old"), match("unnoticed", "old"),
            match("unnoticed", "old", c=1.5),
        ),
    )  # fmt: skip
    tables, _ = blocks(point(later, event="crash 50 %"))
    assert [cells(tables[1], n)["stage"] for n in range(3)] == ["unnoticed", "noticed", "repaired"]
    assert len(tables[1].rows) == 3, "whole certainties only"


def test_success_around_an_event() -> None:
    moments = (
        moment(-5, (10, 10)),
        moment(0, (10, 2), complete=0.4, known=0.0, largest_part=0.97),
        moment(5, (10, 8), complete=1.0, known=0.5),
        moment(10, (10, 10)),
    )
    search = SearchPoint(stages=(STAGE,), moments=moments)
    (table,), figures = blocks(point(search, event="crash 50 %", detect_s=2.0))
    told = cells(table)
    assert told["before"] == "100.0 % / 90.0 %"
    assert told["unnoticed"] == "20.0 % / 90.0 %"
    assert told["noticed"] == "80.0 % / 90.0 %"
    assert (told["neighbours, s"], told["known, s"]) == ("5", "10")
    assert (told["least part"], told["part at the end"]) == ("97.00 %", "100.00 %")
    assert len(figures) == 2
    assert "seconds since the event" in figures[0].svg
    (left,), _ = blocks(point(search, event="leave 90 %", detect_s=2.0))
    assert cells(left)["unnoticed"] == "– / –", "nobody dies of a leave"


def test_a_window_that_begins_as_links_break_is_noticed() -> None:
    moments = (
        moment(-5, (10, 10)),
        moment(0, (10, 2), known=0.0),
        moment(5, (10, 4), known=0.0),
        moment(10, (10, 6), known=0.0),
        moment(15, (10, 10)),
    )
    search = SearchPoint(stages=(STAGE,), moments=moments)
    (table,), _ = blocks(point(search, event="crash 50 %", detect_s=5.0))
    told = [cells(table)[name].split(" / ")[0] for name in ("unnoticed", "noticed", "after")]
    assert told == ["20.0 %", "50.0 %", "100.0 %"]
    (left,), _ = blocks(point(search, event="leave 90 %", detect_s=5.0))
    assert cells(left)["noticed"].startswith("40.0 %"), "with the moment of the leave itself"


def test_rows_and_lines_that_share_a_name_are_told_apart() -> None:
    around = SearchPoint(stages=(STAGE,), moments=(moment(-5, (10, 10)), moment(0, (10, 9))))
    watched = SearchPoint(
        stages=(STAGE,),
        watches=WatchesOfSearch(queries=1, due=1, told=1, told_again=0, least_told=1.0),
    )
    slow, quick = (
        msgspec.structs.replace(
            point(around, event="crash 50 %", detect_s=s), label=f"detect_s {s:g}"
        )
        for s in (9.0, 1.0)
    )
    (table,), (figure, _) = blocks(slow, quick)
    names = [f"crash 50 % (s, detect_s {s})" for s in (9, 1)]
    assert [row[0] for row in table.rows] == names
    assert all(name in figure.svg for name in names)
    larger = msgspec.structs.replace(slow, settings={**slow.settings, "network.nodes": 9000})
    (table,), (figure, _) = blocks(slow, larger)
    assert [row[:2] for row in table.rows] == [("crash 50 %", "2,000"), ("crash 50 %", "9,000")]
    (table,), _ = blocks(*(point(watched, "watch", queries=n) for n in (1, 2)))
    assert [row[0] for row in table.rows] == ["l", "l"]
    churned = [point(around, "churn", session_s=s, away_s=9.0) for s in (60.0, 60.0, 90.0)]
    (table,), _ = blocks(*churned)
    assert [row[0] for row in table.rows] == ["2,000 (s, l)", "2,000 (s, l)", "2,000"]


def test_churn_rounds_and_watches_have_their_tables() -> None:
    churned = SearchPoint(stages=(STAGE,), moments=(moment(0, (10, 9)), moment(60, (10, 10))))
    measured = SearchPoint(
        stages=(STAGE,), steps=(22, 24, None), curve=((1, 0.0), (22, 0.99)),
        moments=(moment(0, (0, 0), known=0.9),),
    )  # fmt: skip
    watched = SearchPoint(
        stages=(STAGE,),
        watches=WatchesOfSearch(queries=100, due=2500, told=2480, told_again=0, least_told=0.9),
    )
    tables, figures = blocks(
        point(churned, "churn", session_s=3600.0, crashes=0.1),
        point(measured, "measurement", session_s=600.0, crashes=0.5),
        point(watched, "watch"),
    )
    churn, rounds, watches = tables
    assert (cells(churn)["old data"], cells(churn)["new data"]) == ("95.00 %", "90.00 %")
    assert (cells(churn)["session"], cells(churn)["crashes"]) == ("3,600", "10 %")
    told = cells(rounds)
    assert (told["rounds"], told["steps"], told["mean"], told["never"]) == (
        "3",
        "22–24",
        "23.0",
        "1",
    )
    assert (told["session, s"], told["known"]) == ("600", "90.00 %")
    assert (cells(watches)["part"], cells(watches)["least"]) == ("99.20 %", "90.0 %")
    assert len(figures) == 2


def test_load_is_taken_per_edge() -> None:
    loads = [
        LoadOfSearch(stage="before", degree=4, nodes=100, messages=400),
        LoadOfSearch(stage="before", degree=8, nodes=50, messages=600),
        LoadOfSearch(stage="before", degree=40, nodes=1, messages=9000),
    ]
    low, high = load_spread(loads[:2]) or (0.0, 0.0)
    assert (low, high) == (0.8, 1.2)
    assert load_spread([]) is None
    spread = load_spread(loads)
    assert spread is not None
    assert spread[1] / spread[0] < 2, "few nodes are noise"
    tables, _ = blocks(point(SearchPoint(stages=(STAGE,), loads=tuple(loads[:2]))))
    assert (cells(tables[0])["least"], cells(tables[0])["most"]) == ("0.800", "1.200")


def test_it_is_on_the_page_and_only_if_there_are_such_runs() -> None:
    search = SearchPoint(stages=(STAGE,), matches=(match(),))
    for one, there in ((point(search, event="none"), True), (point(None), False)):
        report = build_report(
            Collected(folder="f", points=(one,), provenance=(), replays=(), problems=())
        )
        assert ("Search</h2>" in to_html(report)) == there
