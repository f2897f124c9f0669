"""Which runs are repeats of one another. No JVM here."""

from __future__ import annotations

from typing import Any

from shoal_lab.report.analysis.points import group_runs
from shoal_lab.runs.run_frames import FoundRun
from tests.pipeline.frames import settings


def found(run: str, seed: int, scenario: dict[str, Any]) -> FoundRun:
    return FoundRun(run, {"run": run, "seed": seed, "scenario": {**scenario, "seed": seed}}, {})


def test_runs_that_differ_in_their_seed_are_repeats() -> None:
    runs = [
        found("b", 2, settings("x", 32)),
        found("a", 1, settings("x", 32)),
        found("c", 1, settings("x", 64)),
        found("d", 1, settings("other", 32)),
    ]
    points = group_runs(runs)
    assert [(p.scenario, [run.run for run in p.runs]) for p in points] == [
        ("other", ["d"]),
        ("x", ["a", "b"]),
        ("x", ["c"]),
    ]


def test_runs_from_before_there_was_a_choice_are_repeats_of_those_that_chose_the_same() -> None:
    newer = settings("x", on="simulator")
    newer["network"] |= {"policy": "random", "redundant_feeds": "all", "liars": 0.0, "lie": "near"}
    aware = settings("x")
    aware["network"]["policy"] = "aware"
    points = group_runs([found("a", 1, settings("x")), found("b", 2, newer), found("c", 1, aware)])
    assert [(p.label, [run.run for run in p.runs]) for p in points] == [
        ("nodes 32, degree 4, policy aware", ["c"]),
        ("nodes 32, degree 4, policy random", ["a", "b"]),
    ]


def test_a_file_is_what_is_in_it_wherever_it_lies() -> None:
    runs = []
    for seed, (path, digest) in enumerate([("/a/t.tsv", "1" * 32), ("/b/t.tsv", "1" * 32)], 1):
        own = settings("x")
        own["network"] |= {"delays": path, "delays_digest": digest}
        own["options"] = {"workload": path, "workload_digest": digest}
        runs.append(found(path, seed, own))
    (point,) = group_runs(runs)
    assert point.settings["network.delays"] == "t.tsv 11111111"
    assert point.settings["options.workload"] == "t.tsv 11111111"
    other = settings("x")
    other["network"] |= {"delays": "/a/t.tsv", "delays_digest": "2" * 32}
    other["options"] = runs[0].info["scenario"]["options"]
    assert [p.label for p in group_runs([*runs, found("c", 3, other)])] == [
        "nodes 32, degree 4, delays t.tsv 11111111",
        "nodes 32, degree 4, delays t.tsv 22222222",
    ]


def test_a_digest_of_nothing_is_no_setting() -> None:
    damaged = settings("x")
    damaged["options"] = {"workload_digest": "1" * 32}
    (point,) = group_runs([found("a", 1, damaged)])
    assert "options.workload" not in point.settings


def test_points_are_in_the_order_of_numbers() -> None:
    runs = [found(str(n), 1, settings("x", n)) for n in (1024, 32, 256)]
    assert [point.label for point in group_runs(runs)] == [
        "nodes 32, degree 4", "nodes 256, degree 4", "nodes 1,024, degree 4",
    ]  # fmt: skip


def test_a_label_has_what_tells_points_of_a_scenario_apart() -> None:
    loss = {"kind": "loss", "probability": 0.01}
    runs = [
        found("a", 1, settings("x", workload={"messages": 5, "size_bytes": 9}, faults=[])),
        found("b", 1, settings("x", workload={"messages": 1000, "size_bytes": 9}, faults=[loss])),
        found("c", 1, settings("y", workload={"messages": 7})),
    ]
    assert [point.label for point in group_runs(runs)] == [
        "nodes 32, degree 4, messages 1,000, faults.0.kind loss, faults.0.probability 0.01",
        "nodes 32, degree 4, messages 5, faults []",
        "nodes 32, degree 4",
    ]


def test_points_that_differ_in_a_fault_are_told_apart() -> None:
    def faults(*probabilities: float) -> list[dict[str, Any]]:
        return [{"kind": "loss", "probability": p, "start_s": 35.0} for p in probabilities]

    runs = [
        found(str(n), 1, settings("x", faults=faults(*probabilities)))
        for n, probabilities in enumerate([(0.0, 0.01), (0.05, 0.01), (0.05, 0.02)])
    ]
    points = group_runs(runs)
    assert [point.label for point in points] == [
        "nodes 32, degree 4, faults.0.probability 0.0, faults.1.probability 0.01",
        "nodes 32, degree 4, faults.0.probability 0.05, faults.1.probability 0.01",
        "nodes 32, degree 4, faults.0.probability 0.05, faults.1.probability 0.02",
    ]
    assert points[0].settings["faults.1.start_s"] == 35.0
    assert "faults" not in points[0].settings


def test_a_label_names_what_any_two_points_differ_in() -> None:
    runs = [found(str(n), 1, settings("x", workload={"messages": n % 2})) for n in range(2)]
    runs.append(found("2", 1, settings("x", workload={"messages": 0, "size_bytes": 9})))
    assert sorted(point.label for point in group_runs(runs)) == [
        "nodes 32, degree 4, messages 0",
        "nodes 32, degree 4, messages 0, size_bytes 9",
        "nodes 32, degree 4, messages 1",
    ]


def test_a_run_that_says_nothing_is_a_point_of_its_own_name() -> None:
    (point,) = group_runs([FoundRun("odd", {"run": "odd"}, {})])
    assert (point.scenario, point.label, point.settings) == ("odd", "", {})


def test_a_degree_is_of_streams_only() -> None:
    runs = [found(name, 1, settings(name, protocol=name)) for name in ("search", "streams")]
    assert [point.label for point in group_runs(runs)] == ["nodes 32", "nodes 32, degree 4"]
    swept = [found(str(d), 1, settings("x", 32, d, protocol="topics")) for d in (4, 6)]
    assert [point.label for point in group_runs(swept)] == [
        "nodes 32, degree 4", "nodes 32, degree 6",
    ]  # fmt: skip
