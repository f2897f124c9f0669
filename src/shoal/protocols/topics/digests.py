"""Comparing heads without naming them.

Every event has one parent, so a topic with several publishers forks, and the tips of forks remain
heads for ever: there may be thousands. Neighbours therefore compare what the heads of a span of
time come to, and name only those of spans that differ. Spans are minutes, hours or days, the longer
the longer ago: what differs between neighbours is recent, as a rule.

The sender's stamp says when "now" is, and events say when they were created: both sides cut the
same spans, whatever their clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.identity.topics.cid import Cid
from shoal.protocols.topics.config import SPANS_MAX

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
_NAME_BYTES = 8

Spans = tuple[tuple[int, int], ...]


def floor_of(moment_ms: int) -> int:
    """The floor of who is interested in what comes: on a minute, and one more for slow clocks."""
    return max(0, (moment_ms - MINUTE_MS) // MINUTE_MS * MINUTE_MS)


def digest(heads: Mapping[Cid, int], floor_ms: int, now_ms: int) -> tuple[int, Spans]:
    """From where on, and what the heads of each span come to; the newest spans, if there are too
    many."""
    sums: dict[int, int] = {}
    for head, created_ms in heads.items():
        if created_ms >= floor_ms:
            span = _span(created_ms, now_ms)
            sums[span] = sums.get(span, 0) ^ int.from_bytes(head[-_NAME_BYTES:])
    spans = sorted(sums.items())
    if len(spans) > SPANS_MAX:
        spans = spans[-SPANS_MAX:]
        floor_ms = max(floor_ms, spans[0][0])
    return floor_ms, tuple(spans)


def differing(
    heads: Mapping[Cid, int], floor_ms: int, theirs: Spans, their_floor_ms: int, now_ms: int
) -> Sequence[Cid]:
    """Our heads of the spans that come to something else at a neighbour."""
    other = dict(theirs)
    # Of the span that a floor lies in, a neighbour sums up what is above its own; so can we, unless
    # ours is the higher one. Retention leaves it anywhere, also among the last events of a topic.
    least_ms = max(floor_ms, their_floor_ms)
    whole_ms = floor_ms if floor_ms > their_floor_ms else 0
    _, spans = digest(heads, least_ms, now_ms)
    differ = {span for span, sum in spans if span >= whole_ms and other.get(span) != sum}
    if not differ:
        return ()
    return [
        head
        for head, created_ms in heads.items()
        if created_ms >= least_ms and _span(created_ms, now_ms) in differ
    ]


def _span(created_ms: int, now_ms: int) -> int:
    # Those of the future must not crowd out the present; an hour is left for the sender's clock.
    created_ms = min(created_ms, now_ms + HOUR_MS)
    age_ms = now_ms - created_ms
    width_ms = MINUTE_MS if age_ms < 2 * HOUR_MS else HOUR_MS if age_ms < 2 * DAY_MS else DAY_MS
    return max(0, created_ms) // width_ms * width_ms
