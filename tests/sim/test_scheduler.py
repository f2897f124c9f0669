"""Virtual time: what is earlier comes first, and of two at once what was scheduled first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.sim.scheduler import DAY_BITS, Action, Scheduler

times = st.lists(st.integers(0, 20), max_size=50)


@given(times)
def test_things_happen_by_time_and_then_in_the_order_of_scheduling(times_ns: list[int]) -> None:
    scheduler = Scheduler(0)
    happened: list[tuple[int, int]] = []
    for number, time_ns in enumerate(times_ns):
        scheduler.at(time_ns, lambda n: happened.append((scheduler.now_ns, n)), number)
    scheduler.run_until(20)
    assert happened == sorted((t, n) for n, t in enumerate(times_ns))
    assert scheduler.happened == len(times_ns)
    assert scheduler.now_ns == 20


Steps = list[tuple[int, int]]

DAY_NS = 1 << DAY_BITS
DELAYS_NS = [0, 1, 2, DAY_NS // 3, DAY_NS - 1, DAY_NS, DAY_NS + 1, 3 * DAY_NS]


@given(st.lists(st.tuples(st.sampled_from(DELAYS_NS), st.integers(0, 3)), max_size=60))
def test_within_a_day_and_across_days_all_is_in_order(steps: Steps) -> None:
    assert _played(steps, Scheduler(0)) == _played(steps, NaiveScheduler())


class NaiveScheduler:
    """Looks through everything for what comes next."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[tuple[int, Action, Any]] = []

    def after(self, delay_ns: int, action: Action, argument: Any) -> None:
        self._due.append((self.now_ns + delay_ns, action, argument))

    def run_until(self, end_ns: int, events_max: int) -> bool:
        while self._due:
            self._due.sort(key=lambda due: due[0])  # stable: the rest is the order of scheduling
            self.now_ns, action, argument = self._due.pop(0)
            action(argument)
        return True


def _played(steps: Steps, scheduler: Scheduler | NaiveScheduler) -> list[tuple[int, int]]:
    """Whatever happens schedules the next step, and a few things besides."""
    order: list[tuple[int, int]] = []

    def note(number: int) -> None:
        order.append((scheduler.now_ns, number))

    def step(number: int) -> None:
        note(number)
        if number < len(steps):
            delay_ns, more = steps[number]
            for at in range(more):
                scheduler.after(DELAYS_NS[at] + delay_ns, note, 1000 * number + at)
            scheduler.after(delay_ns, step, number + 1)

    step(0)
    while not scheduler.run_until(1000 * DAY_NS, 7):
        pass
    return order


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-10, 5)), max_size=30))
def test_time_never_goes_back(steps: list[tuple[int, int]]) -> None:
    """Whatever happens schedules more, also for times that are over: those happen now."""
    scheduler = Scheduler(0)
    seen: list[int] = []

    def happen(more: list[tuple[int, int]]) -> None:
        seen.append(scheduler.now_ns)
        if more:
            (delay_ns, shift_ns), rest = more[0], more[1:]
            scheduler.after(delay_ns, happen, rest)
            scheduler.at(scheduler.now_ns + shift_ns, happen, [])

    scheduler.at(0, happen, steps)
    scheduler.run_until(10_000)
    assert seen == sorted(seen)
    assert len(seen) == 2 * len(steps) + 1


@given(times, st.integers(1, 7))
def test_stopping_and_going_on_changes_nothing(times_ns: list[int], events_max: int) -> None:
    orders: list[list[int]] = []
    for limit in (None, events_max):
        scheduler = Scheduler(0)
        order: list[int] = []
        for number, time_ns in enumerate(times_ns):
            scheduler.at(time_ns, order.append, number)
        while not scheduler.run_until(20, limit):
            assert scheduler.now_ns <= 20
        assert scheduler.happened == len(times_ns)
        orders.append(order)
    assert orders[0] == orders[1]


def test_what_lies_beyond_the_end_waits() -> None:
    scheduler = Scheduler(0)
    happened: list[int] = []
    for time_ns in (5, 6):
        scheduler.at(time_ns, happened.append, time_ns)
    scheduler.run_until(5)
    assert happened == [5]
    scheduler.run_until(6)
    assert happened == [5, 6]


def test_what_is_scheduled_while_it_rests_may_lie_before_what_it_has_seen() -> None:
    scheduler = Scheduler(0)
    happened: list[int] = []
    for time_ns in (5, 9 * DAY_NS):
        scheduler.at(time_ns, happened.append, time_ns)
    assert not scheduler.run_until(10 * DAY_NS, 1)
    scheduler.at(DAY_NS, happened.append, DAY_NS)
    scheduler.run_until(2 * DAY_NS)
    scheduler.at(3 * DAY_NS, happened.append, 3 * DAY_NS)
    scheduler.run_until(10 * DAY_NS)
    assert happened == sorted(happened)
    assert len(happened) == 4
