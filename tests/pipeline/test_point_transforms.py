"""What points and overlays come to, on tables that fit on a screen."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from shoal_lab.report.analysis.deliveries import merge_counts, thin_distribution
from shoal_lab.report.analysis.overlays import (
    combine_p_values,
    pair_matrix,
    square_pairs,
    summarise_diameters,
    summarise_pairs,
)
from tests.pipeline.frames import diameter, pair
from tests.pipeline.test_transforms import frame, rows_of

COUNTS = "key long, delay_tenths_ms long, due boolean, n long, hops_sum long, hops_max long, \
duplicates long"


@pytest.mark.spark
def test_counts_of_runs_add_up_to_those_of_their_point(spark: SparkSession) -> None:
    counts = spark.createDataFrame(
        [
            (7, 10, True, 2, 5, 3, 1),
            (8, 10, True, 1, 4, 4, 0),
            (8, 10, False, 9, 9, 1, 2),
            (9, 10, True, 6, 6, 1, 0),
            (5, 10, True, 100, 100, 1, 0),
        ],
        COUNTS,
    )
    points = spark.createDataFrame([(7, 0), (8, 0), (9, 1)], "key long, point long")
    assert rows_of(merge_counts(counts, points)) == [
        {"point": 0, "delay_tenths_ms": 10, "due": False, "n": 9, "hops_sum": 9, "hops_max": 1,
         "duplicates": 2},
        {"point": 0, "delay_tenths_ms": 10, "due": True, "n": 3, "hops_sum": 9, "hops_max": 4,
         "duplicates": 1},
        {"point": 1, "delay_tenths_ms": 10, "due": True, "n": 6, "hops_sum": 6, "hops_max": 1,
         "duplicates": 0},
    ]  # fmt: skip


@pytest.mark.spark
def test_a_thin_distribution_has_the_ends_and_exact_steps_between(spark: SparkSession) -> None:
    rows = [(0, float(n), n / 100) for n in range(1, 101)] + [(1, 5.0, 1.0)]
    distribution = spark.createDataFrame(rows, "point long, delay_ms double, share double")
    thin = thin_distribution(distribution, steps=4)
    found = sorted((r["point"], r["delay_ms"], r["share"]) for r in thin.collect())
    assert found == [
        (0, 1.0, 0.01), (0, 25.0, 0.25), (0, 50.0, 0.5), (0, 75.0, 0.75), (0, 100.0, 1.0),
        (1, 5.0, 1.0),
    ]  # fmt: skip


@pytest.mark.spark
def test_pairs_are_summed_and_squared(spark: SparkSession) -> None:
    rows = [pair("a", 0, 1, 2), pair("a", 0, 2, 0), pair("a", 1, 2, 4), pair("b", 0, 1, 1)]
    pairs = frame(spark, "pairs", rows)
    a, b = rows_of(summarise_pairs(pairs))
    assert a == {
        "run": "a", "nodes": 3, "pairs": 3, "total": 6, "squares": 20, "least": 0, "most": 4,
    }  # fmt: skip
    assert (b["run"], b["nodes"], b["total"]) == ("b", 2, 1)
    assert rows_of(square_pairs(pairs, 2)) == [
        {"run": "a", "x": 0, "y": 0, "links": 2},
        {"run": "a", "x": 0, "y": 1, "links": 4},
        {"run": "b", "x": 0, "y": 0, "links": 1},
    ]


@pytest.mark.spark
def test_diameters_are_summed_by_size(spark: SparkSession) -> None:
    rows = [diameter("a", 5), diameter("a", 7), diameter("a", 9, nodes=128)]
    assert rows_of(summarise_diameters(frame(spark, "diameters", rows))) == [
        {"run": "a", "nodes": 128, "degree": 4, "overlays": 1, "total": 9, "min": 9, "max": 9},
        {"run": "a", "nodes": 64, "degree": 4, "overlays": 2, "total": 12, "min": 5, "max": 7},
    ]


def test_a_matrix_holds_probabilities_of_both_halves() -> None:
    # Three nodes in squares of two a side: the last one is alone in its row.
    summary = {"nodes": 3, "pairs": 3, "total": 6, "squares": 20, "least": 0, "most": 4}
    figures = {"overlays": 4, "degree": 2, "block_p_value": None}
    matrix = pair_matrix(summary, [(0, 0, 2), (0, 1, 4)], 2, [figures])
    assert matrix.mean == 0.5
    assert matrix.deviation == pytest.approx((((0.5 - 0.5) ** 2 + 0.5**2 + 0.5**2) / 3) ** 0.5)
    assert (matrix.least, matrix.most) == (0.0, 1.0)
    assert matrix.cells == ((0.5, 0.5), (0.5, 0.0))
    assert matrix.block_p_value is None


def test_a_matrix_of_several_repeats_has_the_overlays_of_all() -> None:
    summary = {"nodes": 3, "pairs": 3, "total": 6, "squares": 20, "least": 0, "most": 4}
    figures = [
        {"overlays": overlays, "degree": 2, "block_p_value": p}
        for overlays, p in ((4, 0.5), (3, 0.5), (1, None))
    ]
    # The squares of both: their links add up.
    matrix = pair_matrix(summary, [(0, 0, 2), (0, 1, 3), (0, 1, 1)], 2, figures)
    assert (matrix.overlays, matrix.mean, matrix.most) == (8, 0.25, 0.5)
    assert matrix.cells == ((0.25, 0.25), (0.25, 0.0))
    # 0.25 - 0.25 ln 0.25: of two numbers between 0 and 1, the chance of so small a product.
    assert matrix.block_p_value == pytest.approx(0.5966, abs=1e-4)


def test_tests_for_blocks_are_combined() -> None:
    assert combine_p_values([]) is None
    assert combine_p_values([0.3]) == pytest.approx(0.3)
    assert combine_p_values([0.3, 0.0]) == 0.0
    assert combine_p_values([0.04] * 3) == pytest.approx(0.0037, abs=1e-4)
