"""Digests: what differs between two sets of heads is named, and not much else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.identity.topics.cid import Cid, cid_of
from shoal.protocols.topics.config import SPANS_MAX
from shoal.protocols.topics.heads import DAY_MS, HOUR_MS, MINUTE_MS, differing, digest, floor_of

NOW_MS = 1_767_225_600_000
Heads = dict[Cid, int]


def span_of(created_ms: int, now_ms: int = NOW_MS) -> int:
    """Where the span of a moment begins: minutes for two hours, hours for two days, then days."""
    age_ms = now_ms - created_ms
    if age_ms < 2 * HOUR_MS:
        return created_ms - created_ms % MINUTE_MS
    return created_ms - created_ms % (HOUR_MS if age_ms < 2 * DAY_MS else DAY_MS)


ages_ms = (
    st.integers(-2 * MINUTE_MS, 5 * MINUTE_MS)
    | st.integers(0, 3 * HOUR_MS)
    | st.integers(0, 3 * DAY_MS)
    | st.integers(0, 100 * DAY_MS)
)
moments = ages_ms.map(lambda age_ms: NOW_MS - age_ms)
heads = st.dictionaries(st.integers(0, 40), moments, max_size=12).map(
    lambda some: {cid_of(b"%d" % number): created_ms for number, created_ms in some.items()}
)
floors = st.just(0) | moments


@st.composite
def two_sets(draw: st.DrawFn) -> tuple[Heads, Heads]:
    """Heads of two neighbours: an event was created when it was, wherever it is held."""
    every = draw(heads)
    names = sorted(every)
    chosen = [draw(st.sets(st.sampled_from(names))) if names else set() for _ in range(2)]
    ours, theirs = [{name: every[name] for name in sorted(some)} for some in chosen]
    return ours, theirs


@given(two_sets(), floors, floors)
def test_what_the_other_lacks_is_named(
    sets: tuple[Heads, Heads], our_floor_ms: int, their_floor_ms: int
) -> None:
    ours, theirs = sets
    told_floor_ms, told = digest(theirs, their_floor_ms, NOW_MS)
    named = set(differing(ours, our_floor_ms, told, told_floor_ms, NOW_MS))
    floor_ms = max(our_floor_ms, told_floor_ms)
    whole_ms = our_floor_ms if our_floor_ms > told_floor_ms else 0
    comparable = {head for head, at in ours.items() if at >= floor_ms and span_of(at) >= whole_ms}
    assert {head for head in comparable if head not in theirs} <= named
    # Named is what lies in a span that differs, and nothing else.
    spans = {
        span_of(at)
        for head, at in (ours | theirs).items()
        if at >= floor_ms and (head in ours) != (head in theirs)
    }
    assert named == {head for head in comparable if span_of(ours[head]) in spans}


@given(two_sets(), floors, floors)
def test_equal_digests_mean_equal_heads(
    sets: tuple[Heads, Heads], our_floor_ms: int, their_floor_ms: int
) -> None:
    ours, theirs = sets
    digests = [digest(ours, our_floor_ms, NOW_MS), digest(theirs, their_floor_ms, NOW_MS)]
    floor_ms = max(floor for floor, _ in digests)
    comparable = [tuple(one for one in spans if one[0] >= floor_ms) for _, spans in digests]
    held = [{head for head, at in some.items() if span_of(at) >= floor_ms} for some in sets]
    assert (comparable[0] == comparable[1]) == (held[0] == held[1])
    above = [{head for head, at in some.items() if at >= floor_ms} for some in sets]
    if above[0] == above[1]:
        assert not set(differing(ours, our_floor_ms, digests[1][1], digests[1][0], NOW_MS))


def test_spans_are_minutes_then_hours_then_days() -> None:
    ages = [0, MINUTE_MS, 3 * HOUR_MS, 3 * HOUR_MS + MINUTE_MS, 3 * DAY_MS, 3 * DAY_MS + HOUR_MS]
    noon_ms = NOW_MS + 12 * HOUR_MS + 30 * MINUTE_MS
    some = {cid_of(b"%d" % age): noon_ms - age for age in ages}
    floor_ms, spans = digest(some, 0, noon_ms)
    assert floor_ms == 0
    assert [begin for begin, _ in spans] == [
        NOW_MS - 3 * DAY_MS,
        NOW_MS + 9 * HOUR_MS,
        noon_ms - MINUTE_MS,
        noon_ms,
    ]


def test_a_digest_says_from_where_on_it_speaks() -> None:
    old, new = cid_of(b"old"), cid_of(b"new")
    some = {old: NOW_MS - 10 * MINUTE_MS, new: NOW_MS}
    floor_ms = NOW_MS - 5 * MINUTE_MS
    told = digest(some, floor_ms, NOW_MS)
    assert told == (floor_ms, ((NOW_MS, int.from_bytes(new[-8:])),))
    # Of what is below its floor it does not hear either.
    assert list(differing(some, 0, (), floor_ms, NOW_MS)) == [new]


def test_too_many_spans_leave_out_the_oldest() -> None:
    some = {cid_of(b"%d" % n): NOW_MS - n * DAY_MS for n in range(3, 3 + SPANS_MAX + 10)}
    floor_ms, spans = digest(some, 0, NOW_MS)
    assert len(spans) == SPANS_MAX
    assert floor_ms == spans[0][0] > min(some.values())
    assert list(differing(some, 0, spans, floor_ms, NOW_MS)) == []


def test_heads_of_the_future_do_not_hide_those_of_the_present() -> None:
    future = {cid_of(b"%d" % n): NOW_MS + n * MINUTE_MS for n in range(2, 2 + 2 * SPANS_MAX)}
    floor_ms, spans = digest(future, 0, NOW_MS)
    assert floor_ms == 0
    present = cid_of(b"present")
    both = {**future, present: NOW_MS - HOUR_MS}
    assert list(differing(both, 0, spans, floor_ms, NOW_MS)) == [present]


def test_clocks_do_not_matter_the_senders_stamp_does() -> None:
    some = {cid_of(b"a"): NOW_MS - 3 * HOUR_MS, cid_of(b"b"): NOW_MS - 3 * DAY_MS}
    for now_ms in (0, NOW_MS, NOW_MS + 900 * DAY_MS, -(10**13), 2 * 10**14):
        floor_ms, spans = digest(some, 0, now_ms)
        assert list(differing(some, 0, spans, floor_ms, now_ms)) == []


def test_an_hour_is_compared_only_above_both_floors() -> None:
    """Whoever came in the middle of what is one span today does not know its first half."""
    early, late = cid_of(b"early"), cid_of(b"late")
    hour_ms = NOW_MS - 5 * HOUR_MS
    both = {early: hour_ms, late: hour_ms + 40 * MINUTE_MS}
    floor_ms = hour_ms + 20 * MINUTE_MS
    told_floor_ms, spans = digest({late: both[late]}, floor_ms, NOW_MS)
    assert list(differing(both, 0, spans, told_floor_ms, NOW_MS)) == []


def test_what_came_after_a_floor_in_its_own_span_is_compared() -> None:
    """Retention raised it to where the other's topic ends."""
    seen, next = cid_of(b"seen"), cid_of(b"next")
    floor_ms = NOW_MS + 20_000
    told_floor_ms, spans = digest({seen: NOW_MS + 30_000}, floor_ms, NOW_MS)
    assert list(differing({next: NOW_MS + 40_000}, 0, spans, told_floor_ms, NOW_MS)) == [next]
    # Whose floor is the higher one cannot tell what of the other's sum lies below it.
    both = {seen: NOW_MS + 10_000, next: NOW_MS + 40_000}
    _, spans = digest(both, 0, NOW_MS)
    assert list(differing({next: NOW_MS + 40_000}, floor_ms, spans, 0, NOW_MS)) == []


def test_the_floor_of_a_newcomer_is_a_minute_or_two_ago() -> None:
    assert floor_of(NOW_MS) == NOW_MS - MINUTE_MS
    assert floor_of(NOW_MS + 59_999) == NOW_MS - MINUTE_MS
    assert floor_of(30_000) == 0
