"""Spark looks for formats in modules whose names begin so: with Shoal installed, `format("shoal")`
needs no registering."""

from shoal.pipeline.sources.source import DefaultSource

__all__ = ["DefaultSource"]
