"""Token buckets: how much at once, how much per interval, how many are remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.containers import RateLimit

REFILL_NS = 100


def test_a_burst_and_then_one_per_interval() -> None:
    limit = RateLimit(3, REFILL_NS, 10)
    assert [limit.allow("a", 0) for _ in range(5)] == [True, True, True, False, False]
    assert not limit.allow("a", REFILL_NS - 1)
    assert limit.allow("a", REFILL_NS)
    assert not limit.allow("a", REFILL_NS)
    assert [limit.allow("a", 10 * REFILL_NS) for _ in range(4)] == [True, True, True, False]


def test_several_tokens_are_taken_together_or_not_at_all() -> None:
    limit = RateLimit(5, REFILL_NS, 10)
    assert limit.allow("a", 0, 3)
    assert not limit.allow("a", 0, 3)
    assert limit.allow("a", 0, 2)
    assert not limit.allow("a", 0, 1)
    assert not limit.allow("b", 0, 6)


def test_keys_do_not_share() -> None:
    limit = RateLimit(1, REFILL_NS, 10)
    assert limit.allow("a", 0)
    assert limit.allow("b", 0)
    assert not limit.allow("a", 0)


def test_asking_in_vain_costs_nothing() -> None:
    limit = RateLimit(1, REFILL_NS, 10)
    assert limit.allow("a", 0)
    for now_ns in range(REFILL_NS):
        assert not limit.allow("a", now_ns)
    assert limit.allow("a", REFILL_NS)


def test_the_longest_unused_key_is_forgotten_first() -> None:
    limit = RateLimit(1, REFILL_NS, 2)
    assert limit.allow("a", 0)
    assert limit.allow("b", 0)
    assert not limit.allow("a", 0)  # used, though in vain
    assert limit.allow("c", 0)  # b makes room
    assert not limit.allow("a", 0)
    assert limit.allow("b", 0)


@given(
    burst=st.integers(1, 5),
    gaps_ns=st.lists(st.integers(0, 250), max_size=60),
)
def test_no_window_ever_holds_more_than_the_burst_and_its_refills(
    burst: int, gaps_ns: list[int]
) -> None:
    limit = RateLimit(burst, REFILL_NS, 10)
    now_ns, allowed_ns = 0, []
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        if limit.allow("a", now_ns):
            allowed_ns.append(now_ns)
    for at, start_ns in enumerate(allowed_ns):
        for count, end_ns in enumerate(allowed_ns[at:], 1):
            assert count <= burst + (end_ns - start_ns) / REFILL_NS


@given(st.lists(st.integers(0, 20), max_size=100))
def test_no_more_keys_are_remembered_than_the_bound(keys: list[int]) -> None:
    limit = RateLimit(1, REFILL_NS, 4)
    last: dict[int, None] = {}
    for key in keys:
        assert limit.allow(key, 0) == (key not in last)
        last.pop(key, None)
        last[key] = None
        if len(last) > 4:
            del last[next(iter(last))]
