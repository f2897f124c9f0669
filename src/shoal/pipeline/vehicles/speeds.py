"""Speed and delay in sliding windows, of routes and of cells of the map."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal.pipeline.vehicles.rules import Rules


def speeds(positions: DataFrame, rules: Rules) -> DataFrame:
    """scope (route or cell), name, start, end, readings, vehicles, speed_mps, delay_s: of vehicles
    on a trip. Live, a window comes out once, when nothing that is not late can change it."""
    scoped = positions.where("not terminus").select(
        "*",
        # One aggregation for both: a second one would be a second query over the same stream.
        F.explode(
            F.array(
                F.struct(F.lit("route").alias("scope"), F.col("route").alias("name")),
                F.struct(F.lit("cell").alias("scope"), _cell(rules).alias("name")),
            )
        ).alias("of"),
    )
    window = F.window("time", f"{rules.window_s} seconds", f"{rules.slide_s} seconds")
    counted = scoped.groupBy(window, "of.scope", "of.name").agg(
        F.count("*").alias("readings"),
        # Exact, and Spark has no count of distinct values for streams.
        F.size(F.collect_set("vehicle")).alias("vehicles"),
        F.sum("speed_cms").alias("speed_cms"),
        F.sum("delay_s").alias("delay_s"),
    )
    return counted.select(
        "scope",
        "name",
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        "readings",
        "vehicles",
        F.round(F.col("speed_cms") / F.col("readings") / 100, 3).alias("speed_mps"),
        F.round(F.col("delay_s") / F.col("readings"), 1).alias("delay_s"),
    )


def _cell(rules: Rules) -> Column:
    """Its south-western corner, in steps of the grid: 6020:1245."""
    south = F.floor(F.col("lat") / rules.cell_degrees).cast("string")
    west = F.floor(F.col("lon") / (2 * rules.cell_degrees)).cast("string")
    return F.concat_ws(":", south, west)
