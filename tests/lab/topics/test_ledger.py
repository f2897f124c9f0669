"""The ledger sees what is missing, broken, or told twice: it is what runs are judged by."""

from __future__ import annotations

import pytest

from shoal_lab.experiments.topics.ledger import Ledger, event_of, payload_of
from shoal_lab.experiments.topics.workload import EventPlan, TopicPlan, Workload

READERS = (0, 1, 2)
WORKLOAD = Workload(
    (TopicPlan(0, READERS), TopicPlan(3, (3, 0))),
    tuple(EventPlan(topic, 0, 20, 0.0) for topic in (0, 0, 0, 1)),
)
ALL = (0, 1, 2, 3)


def chain(*numbers: int) -> list[tuple[int, bytes, bytes | None]]:
    """Events of topic 0, each after the one before."""
    names = [bytes([n]) * 8 for n in numbers]
    return list(zip(numbers, names, [None, *names[:-1]], strict=True))


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(WORKLOAD, 4, ordered=True)
    for event in range(3):
        made.issue(event, event)
        made.accept(event, event + 1)
    return made


def give(ledger: Ledger, reader: int, *numbers: int) -> None:
    for event, id, parent in chain(*numbers):
        ledger.arrive(reader, event, id, parent, 10 + event)


def test_payloads_name_their_events() -> None:
    assert event_of(payload_of(17_610, b"text")) == 17_610


def test_all_is_well(ledger: Ledger) -> None:
    for reader in READERS:
        give(ledger, reader, 0, 1, 2)
    assert ledger.due(ALL).tolist() == [3, 3, 3, 0], "an event that was not accepted is not due"
    assert len(ledger.arrivals(ALL).events) == 9
    assert ledger.missing(ALL) == []
    assert ledger.check_order(ALL) == []


def test_the_last_event_may_be_missing(ledger: Ledger) -> None:
    give(ledger, 0, 0, 1, 2)
    give(ledger, 1, 0, 1, 2)
    give(ledger, 2, 0, 1)
    assert ledger.missing(ALL) == [(2, 2)]
    assert len(ledger.check_order(ALL)) == 1, "its chain has no hole, but another end"
    assert ledger.missing((0, 1, 3)) == [], "the dead need nothing"
    assert ledger.check_order((0, 1, 3)) == []
    assert ledger.due((0, 1, 3)).tolist() == [2, 2, 2, 0]
    assert len(ledger.arrivals((0, 3)).events) == 3


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (0, 2, 1)])
def test_holes_are_seen(ledger: Ledger, order: tuple[int, ...]) -> None:
    for event, id, parent in sorted(chain(0, 1, 2), key=lambda e: (*order, 0, 1, 2).index(e[0])):
        if event in order:
            ledger.arrive(0, event, id, parent, 0)
    assert "node 0 was given" in ledger.check_order((0,))[0]


def test_a_fork_is_no_order(ledger: Ledger) -> None:
    give(ledger, 0, 0, 1, 2)
    give(ledger, 1, 0, 2, 1)
    give(ledger, 2, 0, 1, 2)
    assert ledger.missing(ALL) == []
    assert ledger.check_order(ALL) == [
        "topic 0 ends differently for its readers: 01010101, 02020202"
    ]


def test_a_chain_goes_on_where_its_reader_died(ledger: Ledger) -> None:
    give(ledger, 0, 0, 1)
    ledger.resume(0)
    assert ledger.last[0, 0] == bytes([1]) * 8
    ledger.arrive(0, 2, bytes([2]) * 8, bytes([1]) * 8, 50)
    assert ledger.check_order((0,)) == []
    ledger.arrive(0, 2, bytes([2]) * 8, bytes([1]) * 8, 51)
    assert "twice" in ledger.check_order((0,))[-1]


def test_forks_may_be_told_again_to_one_who_came_back() -> None:
    ledger = Ledger(WORKLOAD, 4, ordered=False)
    give(ledger, 0, 1, 0)
    ledger.resume(0)
    give(ledger, 0, 0)
    assert ledger.told_again == 1
    assert ledger.check_order((0,)) == []
    give(ledger, 0, 0)
    assert "twice" in ledger.check_order((0,))[0], "but not twice in one life"
