"""Shortest paths over overlays: the plain function, and the same spread over tasks."""

from __future__ import annotations

from random import Random

import pytest
from pyspark.sql import SparkSession

from shoal_lab.report.analysis import shortest_paths
from shoal_lab.report.analysis.shortest_paths import path_delays, predict_delays
from shoal_lab.runs.run_frames import spark_schema
from tests.pipeline.frames import edge, message

# 0 -> 1 -> 2 is 3 ms, less than the direct 10; back again 5 from each.
A, B, DELAY_US = [0, 1, 0, 2, 1], [1, 2, 2, 0, 0], [1000, 2000, 10_000, 5000, 5000]


def test_the_shortest_path_counts() -> None:
    assert path_delays(A, B, DELAY_US, [0], [1]) == (3, 0, (1 + 3) / 2)
    assert path_delays(A, B, DELAY_US, [0, 2], [1, 1]) == (3, 0, (1 + 3 + 5 + 6) / 4)


def test_a_publisher_of_two_messages_counts_twice() -> None:
    assert path_delays(A, B, DELAY_US, [0, 2], [2, 1]).mean_ms == pytest.approx(19 / 6)


def test_what_cannot_be_reached_is_counted_and_left_out() -> None:
    assert path_delays([0, 5], [1, 6], [1000, 1000], [0, 1], [1, 1]) == (4, 5, 1.0)
    assert path_delays([0], [1], [1000], [1], [1]) == (2, 1, None)


def test_a_publisher_outside_the_overlay_is_left_out() -> None:
    assert path_delays([0, 1], [1, 0], [4000, 4000], [0, 9], [1, 1]) == (2, 0, 4.0)


def test_links_that_take_no_time_are_links() -> None:
    assert path_delays([0, 1], [1, 2], [0, 7000], [0], [1]) == (3, 0, 3.5)


def test_sources_may_come_in_parts(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = Random(seed)
    a = [rng.randrange(30) for _ in range(90)]
    b = [(x + rng.randrange(1, 30)) % 30 for x in a]
    delays = [rng.randrange(1, 99) * 1000 for _ in a]
    unique = {(x, y): d for x, y, d in zip(a, b, delays, strict=True)}
    columns = [x for x, _ in unique], [y for _, y in unique], list(unique.values())
    sources, messages = list(range(30)), [rng.randrange(1, 4) for _ in range(30)]
    whole = path_delays(*columns, sources, messages)
    monkeypatch.setattr(shortest_paths, "SOURCES_AT_ONCE", 7)
    assert path_delays(*columns, sources, messages) == pytest.approx(whole)
    # Floyd and Warshall, the slow way.
    far = {(x, y): 0 if x == y else unique.get((x, y), 10**12) for x in sources for y in sources}
    for k in sources:
        for x in sources:
            for y in sources:
                far[x, y] = min(far[x, y], far[x, k] + far[k, y])
    reached = [(far[x, y], messages[x]) for x, y in far if x != y and far[x, y] < 10**12]
    expected_us = sum(d * n for d, n in reached) / sum(n for _, n in reached)
    assert whole.mean_ms == pytest.approx(expected_us / 1000)


@pytest.mark.spark
def test_each_run_gives_one_row(spark: SparkSession) -> None:
    edges = [edge("a", x, y, d) for x, y, d in zip(A, B, DELAY_US, strict=True)]
    # Another stream over the same link, and a run that published nothing.
    edges += [edge("a", 0, 1, 1500, "0x0/other"), edge("silent", 0, 1, 1000)]
    edges += [edge("b", 0, 1, 4000), edge("b", 1, 0, 6000)]
    published = [message("a", 0), message("a", 1), message("b", 0), message("lonely", 0)]
    frames = (
        spark.createDataFrame(edges, spark_schema("topologies")),
        spark.createDataFrame(published, spark_schema("messages")),
    )
    rows = predict_delays(*frames, 3).orderBy("run").collect()
    assert [tuple(row) for row in rows] == [("a", 3, 0, 2.0), ("b", 2, 0, 4.0)]
