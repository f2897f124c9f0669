"""What a report says of predicted delays, from literal aggregates."""

from __future__ import annotations

import msgspec
import pytest

from shoal_lab.report import published
from shoal_lab.report.build import build_report
from shoal_lab.report.pages import to_markdown
from shoal_lab.runs.result_schema import Packets
from tests.pipeline.report_points import collected, point, table_of, told_of


def test_estimates_stand_beside_the_published_ones() -> None:
    other = point(32, 130.0, scenario="mine")
    other.settings["network.delays"] = "sphere"
    report = build_report(collected(point(32, 130.0), point(48, 150.0), other))
    table = table_of(report, "Prediction")
    assert table.columns[3:5] == ("Dijkstra, ms", "published, ms")
    assert [row[3:5] for row in table.rows] == [("129.0", "131"), ("149.0", "–"), ("129.0", "–")]


def test_dijkstra_is_held_against_the_source_as_a_mean_over_all_sizes() -> None:
    sizes = [point(nodes, 100.0, 300.0) for nodes in published.propagation()]
    odd = sizes[0].runs
    # Errors of either sign in one size: it is the means that are compared.
    apart = tuple(
        msgspec.structs.replace(run, shortest_ms=run.mean_ms + by)
        for run, by in zip(odd, (-8.0, 16.0), strict=True)
        if run.mean_ms is not None
    )
    sizes[0] = msgspec.structs.replace(sizes[0], runs=apart)
    report = build_report(collected(*sizes))
    (told,) = told_of(report, "error of Dijkstra, %")
    assert (told.against, told.published, told.verdict) == ("source", 1.24, "no higher")
    assert told.ours == pytest.approx((6 * 0.5 + 2.0) / 7)
    assert table_of(report, "Prediction").rows[0][5:7] == ("2.00 %", "0.67 %")
    report = build_report(collected(*sizes[1:]))
    assert told_of(report, "error of Dijkstra, %") == []
    assert "Over 6 of 7 sizes of streams-propagation, the error of Dijkstra is 0.50 %" in (
        to_markdown(report, "p.html")
    )


def test_the_trackers_own_estimate_has_a_limit_of_ours_under_noise_too() -> None:
    noisy = point(256, 200.0, 210.0, scenario="streams-prediction")
    noisy.settings.update(
        {"faults.0.kind": "jitter", "faults.1.kind": "service_time", "workload.messages": 9}
    )
    lossy = point(256, 200.0, scenario="streams-prediction")
    lossy.settings.update({"faults.0.kind": "loss"})
    report = build_report(collected(point(32, 137.0), point(48, 150.0), noisy, lossy))
    found = told_of(report, "MAPE of the tracker's own estimate, %")
    assert [(told.point, told.against, told.published, told.verdict) for told in found] == [
        ("1 overlays of streams-propagation", "own", None, "no higher"),
        ("2 overlays of streams-prediction", "own", None, "no higher"),
    ]
    assert {(told.expected, told.ours) for told in found} == {(1.24, 0.5)}


def test_more_noise_than_the_sources_can_have_had_is_held_against_nothing() -> None:
    loud, quiet, quieter = (point(256, 200.0, scenario="streams-prediction") for _ in range(3))
    for made, mean_ms in ((loud, 50.0), (quiet, 2.0), (quieter, 1.0)):
        made.settings.update({"faults.0.kind": "jitter", "faults.0.mean_ms": mean_ms})
    figure = "MAPE of the tracker's own estimate, %"
    report = build_report(collected(loud))
    assert told_of(report, figure) == []
    assert table_of(report, "Prediction").rows[0][4] == "–"
    told = told_of(build_report(collected(loud, quiet, quieter)), figure)
    assert [one.point for one in told] == [
        "1 overlays of streams-prediction (faults.0.kind jitter, faults.0.mean_ms 2.0)",
        "1 overlays of streams-prediction (faults.0.kind jitter, faults.0.mean_ms 1.0)",
    ]


def test_runs_under_packet_loss_are_no_prediction() -> None:
    lost = Packets(packets=100, dropped=1, overflowed=0, host_late_us_mean=700.0)
    lossy = point(16, 130.0, scenario="streams-loss")
    runs = tuple(msgspec.structs.replace(run, packets=lost) for run in lossy.runs)
    lossy = msgspec.structs.replace(lossy, runs=runs)
    report = build_report(collected(point(32, 130.0), lossy))
    assert [row[0] for row in table_of(report, "Prediction").rows] == ["streams-propagation"]
