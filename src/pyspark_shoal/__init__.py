"""Spark looks for formats in modules whose names begin so: with Shoal installed, `format("shoal")`
needs no registering."""

from shoal_spark.format import DefaultSource

__all__ = ["DefaultSource"]
