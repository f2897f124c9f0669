"""Virtual time: what is earlier comes first, and of two at once what was scheduled first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.sim.scheduler import Action, Scheduler

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


Steps = list[tuple[bool, int, int]]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 3)), max_size=60))
def test_single_things_come_before_lanes_and_all_in_the_order_of_scheduling(steps: Steps) -> None:
    assert _played(steps, Scheduler(0)) == _played(steps, NaiveScheduler())


class NaiveScheduler:
    """Looks through everything for what comes next."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[tuple[int, int, Action, Any]] = []
        self._lanes: dict[int, int] = {}
        self._delay_ns = 0

    def after(self, delay_ns: int, action: Action, argument: Any) -> None:
        self._add(delay_ns, 0, action, argument)

    def lane(self, delay_ns: int) -> NaiveScheduler:
        self._lanes.setdefault(delay_ns, len(self._lanes) + 1)
        self._delay_ns = delay_ns
        return self

    def put(self, action: Action, argument: Any) -> None:
        self._add(self._delay_ns, self._lanes[self._delay_ns], action, argument)

    def run_until(self, end_ns: int, events_max: int) -> bool:
        while self._due:
            self._due.sort(key=lambda due: due[:2])  # stable: the rest is the order of scheduling
            self.now_ns, _, action, argument = self._due.pop(0)
            action(argument)
        return True

    def _add(self, delay_ns: int, lane: int, action: Action, argument: Any) -> None:
        self._due.append((self.now_ns + delay_ns, lane, action, argument))


def _played(steps: Steps, scheduler: Scheduler | NaiveScheduler) -> list[tuple[int, int]]:
    """Whatever happens schedules the next step, one way or the other, and a few things besides."""
    order: list[tuple[int, int]] = []

    def later(delay_ns: int, action: Action, argument: int, in_lane: bool) -> None:
        if in_lane:
            scheduler.lane(delay_ns).put(action, argument)
        else:
            scheduler.after(delay_ns, action, argument)

    def note(number: int) -> None:
        order.append((scheduler.now_ns, number))

    def step(number: int) -> None:
        note(number)
        if number < len(steps):
            in_lane, delay_ns, more = steps[number]
            for at in range(more):
                later(delay_ns, note, 1000 * number + at, in_lane)
            later(delay_ns, step, number + 1, not in_lane)

    step(0)
    while not scheduler.run_until(1000, 7):
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
