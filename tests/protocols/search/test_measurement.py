"""Push-sum with fish at one node, message by message."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from shoal.base.errors import UsageError
from shoal.protocols.search.config import EXTRAS_MAX
from shoal.protocols.search.measuring.measurement import ROUND_BEATS_MAX, WINDOW_MORE, Measurement
from shoal.protocols.search.messages import Ping, Totals

DEGREE = 4
WINDOW = DEGREE + WINDOW_MORE
BIG = 2**63 - 1
SMALL = -(2**63)
PART = Totals(1, 6, 36)


def ping(
    number: int, totals: Totals = PART, fish: float = 0.5, size: int = BIG, **extras: float
) -> Ping:
    columns = tuple((name.replace("_", ":"), value) for name, value in extras.items())
    return Ping(None, number, size, totals, fish, columns)


def founder(seed: int = 1) -> Measurement:
    measurement = Measurement(Random(seed))
    measurement.found(DEGREE)
    return measurement


def times(count: int, do: Callable[[], object]) -> None:
    for _ in range(count):
        do()


def test_a_node_divides_what_it_has() -> None:
    node = founder()
    share = node.share(DEGREE)
    assert share.round == 1
    assert share.fish == 0.2
    assert share.totals == Totals(0.2, 0.8, 3.2)
    assert node.share(DEGREE).fish == pytest.approx(0.04), "what stayed is divided again"
    assert node.estimate == Totals(1, 4, 16)


def test_big_fish_eat_small_ones_and_like_each_other() -> None:
    node = founder()
    assert node.received(ping(1, size=BIG, fish=0.25), DEGREE)
    assert node.estimate == Totals(2 / 0.25, 10 / 0.25, 52 / 0.25)
    node.received(ping(1, size=SMALL, fish=0.9), DEGREE)
    assert node.estimate == Totals(3 / 0.25, 16 / 0.25, 88 / 0.25)
    node.received(ping(1, size=BIG, fish=0.25), DEGREE)
    assert node.estimate == Totals(4 / 0.5, 22 / 0.5, 124 / 0.5)


def test_the_first_node_measures_itself() -> None:
    node = founder()
    for _ in range(10):
        mine = node.share(DEGREE).ping(None)
        times(DEGREE, lambda mine=mine: node.received(mine, DEGREE))  # type: ignore[misc]
    assert node.known == Totals(1, 4, 16)
    assert node.round > 1, "at rest, so rounds go on"


def test_a_newcomer_follows_and_puts_nothing_in() -> None:
    node = Measurement(Random(1))
    nothing = node.share(DEGREE).ping(None)
    assert (nothing.round, nothing.fish, nothing.totals) == (0, 0, Totals(0, 0, 0))
    assert founder().received(nothing, DEGREE)
    node.received(ping(700_000, fish=0.25), DEGREE)
    assert node.round == 700_000
    assert node.estimate == Totals(4, 24, 144)
    node.received(ping(700_001, fish=0.5, size=BIG), DEGREE)
    assert node.estimate == Totals(2 / 0.5, 10 / 0.5, 52 / 0.5), "it counts from the next round on"


def test_older_rounds_are_ignored() -> None:
    node = founder()
    node.received(ping(5), DEGREE)
    before = node.estimate
    for old in (4, 0, 2**32 - 1):
        assert node.received(ping(old), DEGREE)
    assert node.estimate == before


def test_a_round_ends_when_nothing_has_moved_for_a_window() -> None:
    node = founder()
    node.received(ping(1, Totals(9, 54, 324), 1.0), DEGREE)  # ten nodes, as far as fish tell
    still = node.estimate
    assert still is not None
    as_we_have = ping(1, Totals(*(value / 100 for value in _all(still))), 0.01)
    times(WINDOW - 1, lambda: node.received(as_we_have, DEGREE))
    assert node.round == 1
    node.received(as_we_have, DEGREE)
    assert node.round == 2
    assert node.known is not None
    assert _all(node.known) == pytest.approx(_all(still))
    assert node.estimate == Totals(1, 4, 16), "the next one has begun"


def test_what_moves_is_not_at_rest() -> None:
    node = founder()
    for number in range(1, 200):  # each receipt adds 1 / number of all there is
        node.received(ping(1, fish=1e-12, size=SMALL), DEGREE)
        assert node.round == 1, number


def test_a_node_that_is_still_moving_saves_what_it_has() -> None:
    node = founder()
    times(WINDOW, lambda: node.received(ping(1, fish=1e-12, size=SMALL), DEGREE))
    node.received(ping(2), DEGREE)
    assert node.round == 2
    assert node.known == Totals(21, 4 + 120, 16 + 720)


def test_a_round_that_was_hardly_heard_of_changes_nothing() -> None:
    node = founder()
    for number in range(1, 50):
        node.received(ping(number, fish=1e-9), DEGREE)
    assert node.known == Totals(1, 4, 16)


def test_a_round_that_is_kept_in_motion_ends() -> None:
    node = founder()
    for _ in range(ROUND_BEATS_MAX):
        node.received(ping(1, size=SMALL), DEGREE)
        assert node.share(DEGREE).round == 1
    assert node.share(DEGREE).round == 2
    assert node.known is not None
    assert node.known.nodes > 100


def test_a_node_out_of_step_with_everybody_becomes_a_newcomer() -> None:
    node = Measurement(Random(1))
    node.received(ping(3_000_000_000), DEGREE)
    times(WINDOW - 1, lambda: node.received(ping(7), DEGREE))
    assert node.round == 3_000_000_000
    times(2, lambda: node.received(ping(7, fish=0.25), DEGREE))
    assert node.round == 7
    assert node.estimate == Totals(4, 24, 144)


def test_one_neighbour_in_step_is_enough_to_stay() -> None:
    node = founder()
    node.received(ping(9), DEGREE)
    for _ in range(WINDOW):
        node.received(ping(8), DEGREE)
        node.received(ping(9), DEGREE)
        node.received(Measurement(Random(2)).share(DEGREE).ping(None), DEGREE)
    assert node.round == 9


def test_newcomers_among_themselves_begin() -> None:
    node, other = Measurement(Random(1)), Measurement(Random(2))
    times(WINDOW, lambda: node.received(other.share(DEGREE).ping(None), DEGREE))
    assert node.round == 1
    assert node.estimate == Totals(1, 4, 16)


def test_what_a_leaver_has_is_not_lost() -> None:
    node, leaver = founder(1), founder(2)
    leaver.received(ping(1, fish=0.5), DEGREE)
    had = leaver.hand_over().ping(None)
    assert leaver.estimate is None
    node.received(had, DEGREE)
    assert node.estimate == Totals(3 / 0.5, 14 / 0.5, 68 / 0.5)


def test_what_the_dead_were_given_is_taken_back() -> None:
    node = founder()
    times(3, lambda: node.share(DEGREE))
    kept = node.share(DEGREE)
    node.edge_lost(2)  # it had what each edge got at the last two beats
    back = node.hand_over()
    assert back.fish == pytest.approx(kept.fish * (1 + 1 + 5))
    assert back.totals.degrees == pytest.approx(kept.totals.degrees * 7)
    node.edge_lost(9)
    assert node.estimate is None, "nothing was sent in this round"


def test_hellos_count_until_there_is_a_result() -> None:
    node = Measurement(Random(1))
    node.told(Totals(0, 0, 0))
    assert node.known is None
    node.told(Totals(500, 3000, 18_000))
    assert node.known == Totals(500, 3000, 18_000)
    founded = founder()
    founded.told(Totals(500, 3000, 18_000))
    assert founded.known == Totals(1, 4, 16)


def test_a_lie_is_refused_and_changes_nothing() -> None:
    node = founder()
    assert not node.received(ping(2, Totals(1e12, 6e12, 36e12)), DEGREE)
    assert node.round == 1
    assert node.estimate == Totals(1, 4, 16)


def test_results_follow_a_liar_slowly() -> None:
    node = Measurement(Random(1))
    node.told(Totals(10_000, 60_000, 360_000))
    node.received(ping(1, fish=1e-6), DEGREE)  # a million
    known = []
    for number in (2, 3, 4, 5):
        for _ in range(1000):
            if node.round < number:
                node.received(ping(node.round, fish=1e-6), DEGREE)
        assert node.known is not None
        known.append(node.known.nodes)
    assert known[:3] == [40_000, 160_000, 640_000]
    assert known[3] == pytest.approx(1e6, rel=0.05)


# Columns of users


def test_sums_are_divided_and_extremes_are_not() -> None:
    node = Measurement(Random(1))
    for column, value in (("s:load", 10.0), ("min:age", 3.0), ("max:age", 3.0)):
        node.put(column, value)
    node.found(DEGREE)
    assert dict(node.share(DEGREE).extras) == {"s:load": 2.0, "min:age": 3.0, "max:age": 3.0}
    node.received(ping(1, s_load=5.0, min_age=2.0, max_age=2.0, s_other=1.0), DEGREE)
    assert dict(node.hand_over().extras) == {
        "s:load": 7.0,
        "min:age": 2.0,
        "max:age": 3.0,
        "s:other": 1.0,
    }


def test_a_column_begins_and_ends_with_a_round() -> None:
    node = founder()
    node.put("s:load", 10)
    assert node.share(DEGREE).extras == ()
    node.received(ping(2), DEGREE)
    assert node.share(DEGREE).extras == (("s:load", 2.0),)
    node.withdraw("s:load")
    node.received(ping(3), DEGREE)
    assert node.share(DEGREE).extras == ()


def test_columns_have_bounds() -> None:
    node = founder()
    for name in ("load", "s", "avg:x", "s:" + "x" * 70):
        with pytest.raises(UsageError, match="s:, min: or max:"):
            node.put(name, 1)
    for value in (float("inf"), float("nan"), 1e31):
        with pytest.raises(UsageError, match="write a number"):
            node.put("s:load", value)
    for number in range(EXTRAS_MAX):
        node.put(f"s:{number}", 1)
    node.put("s:3", 2)
    with pytest.raises(UsageError, match="withdraw"):
        node.put("s:more", 1)
    node.received(ping(2, s_more=1.0, s_3=1.0, odd=1.0), DEGREE)
    assert "s:more" not in dict(node.share(DEGREE).extras), "there is no room"


def _all(totals: Totals) -> tuple[float, float, float]:
    return totals.nodes, totals.degrees, totals.squares
