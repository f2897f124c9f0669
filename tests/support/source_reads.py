"""What Spark does with the source, without Spark around it: batch by batch until nothing is new."""

from __future__ import annotations

from shoal.base.offsets import Offset
from shoal.pipeline.sources.following import Follower
from shoal.pipeline.sources.options import SourceOptions
from shoal.pipeline.sources.ranges import EVERYTHING, ranges_between
from shoal.pipeline.sources.reading import read_range


def read_on(options: SourceOptions, at: Offset, limit: int = 50) -> tuple[Offset, list[str]]:
    """All that is new after an offset, and where that ends."""
    follower, found = Follower(options), []
    try:
        while (ahead := follower.ahead(at, limit=limit)).offset != at:
            for part in ranges_between(at, ahead.offset):
                for batch in read_range(options, part, EVERYTHING):
                    assert batch.column("error").null_count == batch.num_rows
                    found += batch.column("value").to_pylist()
            at = ahead.offset
    finally:
        follower.close()
    return at, found
