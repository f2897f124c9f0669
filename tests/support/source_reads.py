"""What Spark does with the source, without Spark around it: batch by batch until nothing is new."""

from __future__ import annotations

from shoal.base.offsets import Offset
from shoal_spark.source.follower import Follower, Target
from shoal_spark.source.offsets import EVERYTHING, LogRange, RowFilter, ranges_between
from shoal_spark.source.options import SourceOptions, parse_options
from shoal_spark.source.readers import read_range
from tests.support.log_server import STREAM, LogServer, numbers, servers_of


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


def options(*servers: LogServer, **more: str) -> SourceOptions:
    """Of a read that waits for nobody."""
    given = {"servers": servers_of(*servers), "stream": STREAM, "patienceSeconds": "0", **more}
    return parse_options(given, streaming="endingOffsets" not in more)


def rows_of(
    chosen: SourceOptions, parts: list[LogRange], wanted: RowFilter = EVERYTHING
) -> list[int]:
    """The numbers that messages of these ranges say."""
    found = []
    for part in parts:
        for batch in read_range(chosen, part, wanted):
            assert batch.column("error").null_count == batch.num_rows
            found += batch.column("value").to_pylist()
    return numbers(found)


class Query:
    """What Spark does with the source, batch by batch."""

    def __init__(self, *servers: LogServer, **more: str) -> None:
        self.options = options(*servers, **more)
        self.at = Offset()
        self.got: list[int] = []

    def run(self, limit: int | None = None, target: Target | None = None) -> None:
        """Until there is nothing new."""
        follower = Follower(self.options)
        try:
            while (ahead := follower.ahead(self.at, limit, target)).offset != self.at:
                parts = ranges_between(self.at, ahead.offset)
                got = rows_of(self.options, parts)
                assert limit is None or len(got) <= limit
                self.got += got
                self.at = ahead.offset
        finally:
            follower.close()
