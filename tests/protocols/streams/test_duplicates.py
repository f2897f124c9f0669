"""The duplicate detector against a model that writes every marked position down."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shoal.protocols.streams.delivery.chain_table import DuplicateDetector
from shoal.protocols.streams.signed_message import BEGINNING, Number

# A small grid of positions, on which the model can name every one: sequence numbers 0..3 within
# each of 12 timestamps.
SEQUENCES = 4
GRID: list[Number] = [(t, s) for t in range(12) for s in range(SEQUENCES)]
grid_numbers = st.sampled_from(GRID)
MANY = 1000


class MarkedPositions:
    """The contract without its bound: a set of every marked position of the grid."""

    def __init__(self) -> None:
        self.marked: set[Number] = set()

    def seen(self, number: Number) -> bool:
        return number in self.marked

    def mark(self, previous: Number, number: Number) -> bool:
        if number in self.marked:
            return False
        self.marked.add(number)
        start = previous
        self.marked.update(n for n in GRID if start < n <= number)
        return True


class BoundedRanges(MarkedPositions):
    """The contract with its bound: ranges melted by brute force, the lowest dropped to a floor."""

    def __init__(self, ranges_max: int) -> None:
        super().__init__()
        self.ranges_max = ranges_max
        self.ranges: list[tuple[Number, Number]] = []

    def mark(self, previous: Number, number: Number) -> bool:
        if not super().mark(previous, number):
            return False
        start = previous
        new = (min(start, (number[0], number[1] - 1)), number)
        while touching := [r for r in self.ranges if r[0] <= new[1] and new[0] <= r[1]]:
            self.ranges.remove(touching[0])
            new = (min(new[0], touching[0][0]), max(new[1], touching[0][1]))
        self.ranges = sorted([*self.ranges, new])
        if len(self.ranges) > self.ranges_max:
            _, floor = self.ranges.pop(0)
            self.marked.update(n for n in GRID if n <= floor)
        return True


def assert_sound(detector: DuplicateDetector, ranges_max: int) -> None:
    ranges = detector.ranges
    assert len(ranges) <= ranges_max
    for start, end in ranges:
        assert start < end
    for (_, end), (start, _) in itertools.pairwise(ranges):
        assert end < start  # sorted, disjoint, and touching ones have melted


# A chain as its publisher made it, from which copies come in any order, some never, some again.


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[Number, Number]]:
    numbers = sorted(draw(st.sets(grid_numbers, min_size=1, max_size=20)))
    return list(zip([BEGINNING, *numbers], numbers, strict=False))


@given(chains().flatmap(lambda chain: st.lists(st.sampled_from(chain), max_size=60)))
def test_a_message_of_an_honest_chain_is_new_exactly_once(
    arrivals: list[tuple[Number, Number]],
) -> None:
    detector = DuplicateDetector(MANY)
    seen: set[Number] = set()
    for previous, number in arrivals:
        assert detector.seen(number) == (number in seen)
        assert detector.mark(previous, number) == (number not in seen)
        seen.add(number)
        assert_sound(detector, MANY)
        assert detector.newest == max(seen)


@given(chains().flatmap(st.permutations))
def test_a_whole_chain_is_one_range_in_whatever_order_it_came(
    arrivals: list[tuple[Number, Number]],
) -> None:
    detector = DuplicateDetector(MANY)
    for previous, number in arrivals:
        assert detector.mark(previous, number)
    assert detector.ranges == [(BEGINNING, max(n for _, n in arrivals))]


@given(chains())
def test_in_order_it_never_holds_more_than_one_range(
    chain: list[tuple[Number, Number]],
) -> None:
    detector = DuplicateDetector(1)
    for previous, number in chain:
        assert detector.mark(previous, number)
        assert len(detector.ranges) == 1


# A publisher that contradicts itself: any previous reference with any number.

arbitrary_marks = st.lists(st.tuples(st.just(BEGINNING) | grid_numbers, grid_numbers), max_size=40)


def assert_agree(detector: DuplicateDetector, model: MarkedPositions) -> None:
    assert [n for n in GRID if detector.seen(n)] == [n for n in GRID if model.seen(n)]


@given(arbitrary_marks)
def test_with_room_it_agrees_with_the_model_on_every_position(
    marks: list[tuple[Number, Number]],
) -> None:
    detector, model = DuplicateDetector(MANY), MarkedPositions()
    for previous, number in marks:
        assert detector.mark(previous, number) == model.mark(previous, number)
        assert_agree(detector, model)
        assert_sound(detector, MANY)


@given(st.integers(1, 4), arbitrary_marks)
def test_past_the_bound_all_up_to_the_lowest_range_counts_as_seen(
    ranges_max: int, marks: list[tuple[Number, Number]]
) -> None:
    detector, model = DuplicateDetector(ranges_max), BoundedRanges(ranges_max)
    for previous, number in marks:
        assert detector.mark(previous, number) == model.mark(previous, number)
        assert_agree(detector, model)
        assert_sound(detector, ranges_max)
        assert detector.ranges == model.ranges


@given(st.integers(1, 4), arbitrary_marks)
def test_what_was_seen_stays_seen_whatever_is_dropped(
    ranges_max: int, marks: list[tuple[Number, Number]]
) -> None:
    detector = DuplicateDetector(ranges_max)
    seen: set[Number] = set()
    for previous, number in marks:
        if detector.mark(previous, number):
            assert number not in seen  # nothing is ever new twice
        seen.update(n for n in GRID if detector.seen(n))
        assert all(detector.seen(n) for n in seen)


def test_below_the_floor_even_what_never_came_counts_as_seen() -> None:
    detector = DuplicateDetector(2)
    for timestamp in (10, 20, 30):
        assert detector.mark((timestamp - 1, 0), (timestamp, 0))
    assert detector.ranges == [((19, 0), (20, 0)), ((29, 0), (30, 0))]
    assert detector.seen((5, 0))
    assert detector.seen((10, 0))
    assert not detector.mark((4, 0), (5, 0))
    assert not detector.seen((10, 1))  # above the floor, in the gap


def test_a_late_message_below_a_full_table_is_new_once_and_raises_the_floor() -> None:
    detector = DuplicateDetector(2)
    for timestamp in (20, 30):
        detector.mark((timestamp - 1, 0), (timestamp, 0))
    assert detector.mark((9, 0), (10, 0))
    assert not detector.mark((9, 0), (10, 0))
    assert detector.ranges == [((19, 0), (20, 0)), ((29, 0), (30, 0))]


def test_a_range_that_reaches_below_the_floor_is_kept_whole() -> None:
    detector = DuplicateDetector(3)
    for timestamp in (10, 20, 30, 40):
        detector.mark((timestamp, -1), (timestamp, 0))
    assert detector.mark((5, 0), (20, 1))  # contradicts the chain: all up to 10 is seen already
    assert detector.ranges == [((5, 0), (20, 1)), ((30, -1), (30, 0)), ((40, -1), (40, 0))]
    assert detector.seen((4, 0))
    assert not detector.seen((20, 2))


def test_nothing_is_seen_at_first() -> None:
    detector = DuplicateDetector(MANY)
    assert not detector.seen((0, 0))
    assert detector.newest == (-1, 0)
    assert detector.ranges == []
    assert detector.mark(BEGINNING, (0, 0))
    assert detector.seen((0, 0))


def test_ten_thousand_gaps_fit_and_the_next_one_drops_the_oldest() -> None:
    ranges_max = 10_000
    detector = DuplicateDetector(ranges_max)
    for number in range(ranges_max):
        assert detector.mark((2 * number, 0), (2 * number + 1, 0))
    assert not detector.seen((0, 0))
    assert len(detector.ranges) == ranges_max
    assert detector.mark((2 * ranges_max, 0), (2 * ranges_max + 1, 0))
    assert detector.ranges[0] == ((2, 0), (3, 0))
    assert detector.seen((0, 0))
    assert detector.seen((1, 0))
    assert not detector.seen((2, 0))
