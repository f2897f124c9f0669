"""DataFrames into streams: Spark's sink, through a node's outbox."""
