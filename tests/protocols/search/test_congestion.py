"""What goes first, and what does not go, when upload is scarce."""

from __future__ import annotations

from math import log

import pytest

from shoal.base.errors import ConfigError
from shoal.base.units import S_NS
from shoal.protocols.search.messages import (
    BreakEdge,
    Cancel,
    EdgeClosed,
    EdgeName,
    MergeEdge,
    Ping,
    Totals,
    UserEnd,
)
from shoal.protocols.search.upload_limit import BUBBLES, Throttle, has_room, priority_of, window_ns

EDGE = EdgeName(1, 2, True)


def test_the_window_grows_with_the_part() -> None:
    assert window_ns(1, 1000) == 2 * S_NS
    assert window_ns(1000, 1000) == 4 * S_NS
    assert window_ns(10, 1000) == pytest.approx((2 + 2 * log(10) / log(1000)) * S_NS)
    assert window_ns(1, 1) == 4 * S_NS


@pytest.mark.parametrize(
    ("wait_s", "size", "goes"),
    [
        (0, 1, True),
        (1.99, 1, True),
        (2.1, 1, False),
        (2.1, 2, True),
        (3, 30, False),
        (3, 40, True),
        (4, 1000, True),
        (4.1, 1000, False),
    ],
)
def test_small_remainders_are_given_up_first(wait_s: float, size: int, goes: bool) -> None:
    assert has_room(int(wait_s * S_NS), size, 1000) is goes


def test_a_bubble_of_one_goes_until_nothing_does() -> None:
    assert has_room(4 * S_NS, 1, 1)
    assert not has_room(4 * S_NS + 1, 1, 1)


def test_messages_of_the_circle_come_before_pings_and_those_before_the_rest() -> None:
    ping = Ping(EDGE, 1, 0, Totals(0, 0, 0), 0)
    order = [Cancel(EDGE), MergeEdge(EDGE, None, 0), BreakEdge(EDGE), EdgeClosed(EDGE), ping]
    assert [priority_of(message) for message in order] == [0, 1, 1, 1, 2]
    assert priority_of(UserEnd(3)) == BUBBLES == 3


def drained(throttle: Throttle[str], now_ns: int) -> list[str]:
    items = []
    while (item := throttle.next_ready(now_ns)) is not None:
        items.append(item)
    return items


def test_a_throttle_keeps_to_its_rate() -> None:
    throttle: Throttle[str] = Throttle(1000, 0, 10_000)
    for name in "abcde":
        assert throttle.offer(name, 500, 3)
    sent = {step: drained(throttle, step * S_NS // 4) for step in range(9)}
    assert [step for step, items in sent.items() if items] == [0, 2, 4, 6, 8]
    assert "".join("".join(items) for items in sent.values()) == "abcde"
    assert throttle.ready_in_ns(2 * S_NS) is None
    assert throttle.queued_bytes == 0


def test_a_throttle_serves_by_priority_then_in_order() -> None:
    throttle: Throttle[str] = Throttle(1e9, S_NS, 10_000)
    for name, priority in (("d", 3), ("b", 1), ("e", 3), ("a", 0), ("c", 2)):
        throttle.offer(name, 10, priority)
    assert drained(throttle, 0) == ["a", "b", "c", "d", "e"]


def test_what_waits_is_told() -> None:
    throttle: Throttle[str] = Throttle(1000, 0, 10_000)
    throttle.offer("a", 1000, 3)
    throttle.offer("b", 3000, 3)
    assert throttle.wait_ns(0) == 4 * S_NS
    assert throttle.ready_in_ns(0) == 0
    assert throttle.next_ready(0) == "a"
    assert throttle.wait_ns(0) == 4 * S_NS, "a is on the line"
    assert throttle.ready_in_ns(S_NS // 4) == S_NS * 3 // 4
    assert throttle.next_ready(S_NS - 1) is None
    assert throttle.next_ready(S_NS) == "b"
    assert throttle.wait_ns(9 * S_NS) == 0


def test_an_idle_line_has_a_burst_and_no_more() -> None:
    throttle: Throttle[str] = Throttle(1000, S_NS, 100_000)
    for name in "abcdefgh":
        throttle.offer(name, 500, 3)
    assert "".join(drained(throttle, 100 * S_NS)) == "abc", "two from the burst, one now"
    assert "".join(drained(throttle, 101 * S_NS)) == "de"
    assert "".join(drained(throttle, 900 * S_NS)) == "fgh"
    for name in "ijkl":
        throttle.offer(name, 500, 3)
    assert drained(throttle, 900 * S_NS) == []
    assert "".join(drained(throttle, 999 * S_NS)) == "ijk", "hours of rest are no larger burst"


def test_a_full_queue_takes_only_what_has_to_go() -> None:
    throttle: Throttle[str] = Throttle(1000, 0, 100)
    assert throttle.offer("a", 60, 3)
    assert not throttle.offer("b", 60, 3)
    throttle.force("c", 60, 0)
    assert throttle.queued_bytes == 120
    assert throttle.next_ready(0) == "c"


@pytest.mark.parametrize("wrong", [(0, 0, 1), (-5, 0, 1), (1, -1, 1), (1, 0, 0)])
def test_a_throttle_that_cannot_be_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="write"):
        Throttle(*wrong)
