"""Every transform, on tables that fit on a screen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from shoal_lab.report.analysis.deliveries import (
    add_penalty,
    count_delays,
    count_messages,
    distribute_delays,
    percentile_name,
    summarise_delays,
    summarise_runs,
    unicast_mean,
)
from shoal_lab.runs.run_frames import spark_schema
from tests.pipeline.frames import Rows, delivery, message, table_delay

pytestmark = pytest.mark.spark


def frame(spark: SparkSession, table: str, rows: Rows) -> DataFrame:
    return spark.createDataFrame(list(rows), spark_schema(table))


def rows_of(result: DataFrame) -> list[dict[str, Any]]:
    """In the order of their values."""
    rows = [row.asDict() for row in result.collect()]
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def test_delays_are_counted_with_their_hops_and_copies(spark: SparkSession) -> None:
    deliveries = [
        delivery("a", 30, hops=2, duplicates=1),
        delivery("a", 30, hops=4, duplicates=2),
        delivery("a", 30, hops=9, duplicates=5, due=False),
        delivery("b", 30, hops=1),
    ]
    assert rows_of(count_delays(frame(spark, "deliveries", deliveries))) == [
        {"run": "a", "delay_tenths_ms": 30, "due": False, "n": 1, "hops_sum": 9, "hops_max": 9,
         "duplicates": 5},
        {"run": "a", "delay_tenths_ms": 30, "due": True, "n": 2, "hops_sum": 6, "hops_max": 4,
         "duplicates": 3},
        {"run": "b", "delay_tenths_ms": 30, "due": True, "n": 1, "hops_sum": 1, "hops_max": 1,
         "duplicates": 0},
    ]  # fmt: skip


def test_a_summary_is_of_what_was_due(spark: SparkSession) -> None:
    deliveries = [
        delivery("a", 100, hops=1, duplicates=2),
        delivery("a", 200, hops=2),
        delivery("a", 200, hops=6, duplicates=1),
        delivery("a", 9000, hops=30, duplicates=4, due=False),
        delivery("late", 50, duplicates=1, due=False),
    ]
    counts = count_delays(frame(spark, "deliveries", deliveries))
    late, a = sorted(rows_of(summarise_delays(counts)), key=lambda row: str(row["delivered"]))
    assert a == {
        "run": "a", "delivered": 3, "besides": 1, "duplicates": 7, "mean_ms": pytest.approx(50 / 3),
        "min_ms": 10.0, "max_ms": 20.0, "p50_ms": 20.0, "p95_ms": 20.0, "p99_ms": 20.0,
        "hops_mean": 3.0, "hops_max": 6,
    }  # fmt: skip
    assert (late["delivered"], late["besides"], late["duplicates"]) == (0, 1, 1)
    assert {late[name] for name in ("mean_ms", "min_ms", "max_ms", "p50_ms", "hops_max")} == {None}


def test_percentiles_are_those_of_numpy(spark: SparkSession, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = (0.0, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0)
    # Few and many, with many ties and with none.
    groups = {
        f"{size} of {values}": rng.integers(0, values, size)
        for size in (1, 2, 3, 10, 101)
        for values in (1, 5, 100_000)
    }
    deliveries = [delivery(run, int(d)) for run, delays in groups.items() for d in delays]
    counts = count_delays(frame(spark, "deliveries", deliveries))
    found = {row["run"]: row for row in rows_of(summarise_delays(counts, percentiles=shares))}
    assert found.keys() == groups.keys()
    for run, delays in groups.items():
        expected = np.quantile(delays, shares) / 10
        ours = [found[run][percentile_name(share)] for share in shares]
        assert ours == pytest.approx(expected.tolist(), rel=1e-12), run


def test_groups_may_be_others_than_runs(spark: SparkSession) -> None:
    deliveries = [
        delivery("a", 10, region="x"),
        delivery("a", 30, region="y"),
        delivery("b", 50, region="y"),
    ]
    counts = count_delays(frame(spark, "deliveries", deliveries), ["region"])
    summary = rows_of(summarise_delays(counts, ["region"]).select("region", "mean_ms"))
    assert summary == [{"region": "x", "mean_ms": 1.0}, {"region": "y", "mean_ms": 4.0}]


def test_a_distribution_ends_at_one(spark: SparkSession) -> None:
    deliveries = [delivery("a", d) for d in (5, 5, 5, 10)] + [delivery("a", 99, due=False)]
    counts = count_delays(frame(spark, "deliveries", deliveries))
    assert rows_of(distribute_delays(counts)) == [
        {"run": "a", "delay_ms": 0.5, "n": 3, "share": 0.75},
        {"run": "a", "delay_ms": 1.0, "n": 1, "share": 1.0},
    ]


def test_names_of_percentiles() -> None:
    assert [percentile_name(share) for share in (0.5, 0.99, 0.999, 1.0)] == [
        "p50_ms", "p99_ms", "p99_9_ms", "p100_ms",
    ]  # fmt: skip


def test_messages_are_counted(spark: SparkSession) -> None:
    messages = [message("a", 0, expected=3, duplicates=2), message("a", 1, expected=4)]
    assert rows_of(count_messages(frame(spark, "messages", messages))) == [
        {"run": "a", "messages": 2, "expected": 7, "returned": 2}
    ]


def test_a_run_is_summarised_with_its_coverage_and_its_copies(spark: SparkSession) -> None:
    deliveries = [
        delivery("a", 10, duplicates=2),
        delivery("a", 30, duplicates=1),
        delivery("a", 70, duplicates=4, due=False),
    ]
    messages = [
        message("a", 0, expected=3, duplicates=1),
        message("a", 1, expected=1),
        message("silent", 0, expected=2),
        message("alone", 0, expected=0),
    ]
    summary = summarise_runs(
        frame(spark, "deliveries", deliveries), frame(spark, "messages", messages)
    )
    a, alone, silent = rows_of(summary)
    assert (a["messages"], a["expected"], a["delivered"], a["delivered_besides"]) == (2, 4, 2, 1)
    assert a["coverage"] == 0.5
    assert a["duplicates_per_message"] == 8 / 5, "copies, per message and node that has it"
    assert (a["mean_ms"], a["min_ms"], a["max_ms"], a["p50_ms"]) == (2.0, 1.0, 3.0, 2.0)
    assert (silent["run"], silent["coverage"], silent["mean_ms"]) == ("silent", 0.0, None)
    assert (alone["run"], alone["coverage"], alone["delivered"]) == ("alone", None, 0)


def test_the_penalty_is_against_the_mean_of_the_delay_table(spark: SparkSession) -> None:
    delays = [
        table_delay("a", "x", "x", 0),
        table_delay("a", "x", "y", 3000),
        table_delay("a", "y", "x", 5000),
        table_delay("a", "y", "y", 0),
        table_delay("flat", "x", "x", 0),
    ]
    assert rows_of(unicast_mean(frame(spark, "delays", delays))) == [
        {"run": "a", "unicast_ms": 2.0},
        {"run": "flat", "unicast_ms": 0.0},
    ]
    summary = spark.createDataFrame(
        [("a", 7.0), ("flat", 7.0), ("unknown", 7.0)], "run string, mean_ms double"
    )
    assert rows_of(add_penalty(summary, frame(spark, "delays", delays))) == [
        {"run": "a", "mean_ms": 7.0, "unicast_ms": 2.0, "rdp": 3.5},
        {"run": "flat", "mean_ms": 7.0, "unicast_ms": 0.0, "rdp": None},
        {"run": "unknown", "mean_ms": 7.0, "unicast_ms": None, "rdp": None},
    ]
