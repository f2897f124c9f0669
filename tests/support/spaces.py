"""A space of an application, for tests: points on a line, found by others that are near."""

from __future__ import annotations

from shoal.protocols.search.spaces import MatchedSpace

REACH = 10


class Near:
    """Numbers as text; a question meets those less than REACH away, the nearest best."""

    def match(self, data: bytes, query: bytes) -> float | None:
        far = abs(int(data) - int(query))
        return float(REACH - far) if far < REACH else None


def line() -> MatchedSpace:
    return MatchedSpace("line", Near())
