"""The workload has the sums that were published, whatever the dice say."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from shoal.base.errors import ConfigError
from shoal_lab.experiments.topics.workload import EVENTS, Workload, events_per_topic, make_workload


@pytest.fixture(scope="module")
def published() -> Workload:
    return make_workload(Random(7), nodes=100)


def test_the_published_sums(published: Workload) -> None:
    assert len(published.topics) == 23
    assert len(published.events) == EVENTS == 17_611
    assert published.subscriptions == 762
    assert published.deliveries == pytest.approx(1_734_851, rel=0.001)
    assert sum(e.size_bytes for e in published.events) / EVENTS == pytest.approx(79, abs=1)


def test_popularity_is_a_power_law() -> None:
    counts = events_per_topic(23, EVENTS)
    assert sum(counts) == EVENTS
    assert counts == sorted(counts, reverse=True)
    assert min(counts) >= 1
    # On paper with two logarithmic axes it is a line.
    slopes = [math.log(counts[0] / counts[r - 1]) / math.log(r) for r in range(2, 16)]
    assert max(slopes) - min(slopes) < 0.05


def test_whoever_speaks_reads_the_topic(published: Workload) -> None:
    assert all(e.author in published.topics[e.topic].readers for e in published.events)
    assert all(t.author in t.readers for t in published.topics)
    assert len({t.author for t in published.topics}) == 23
    assert all(len(set(t.readers)) == len(t.readers) for t in published.topics)
    sizes = [len(t.readers) for t in published.topics]
    assert max(sizes) == 100
    assert min(sizes) == 4


def test_five_injectors_share_the_events_and_the_time(published: Workload) -> None:
    times = [event.at_ms for event in published.events]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] == pytest.approx(EVENTS * 200, rel=0.001)
    rounds = Counter(int(at // 1000) for at in times)
    assert rounds.pop(EVENTS // 5) == EVENTS % 5, "the last round is not full"
    assert rounds == dict.fromkeys(range(EVENTS // 5), 5), "each has one in every round"


def test_a_small_one_has_the_same_shape() -> None:
    small = make_workload(Random(1), nodes=24, topics=6, events=200, interval_ms=50)
    assert [len(t.readers) for t in small.topics] == [24, 8, 4, 2, 2, 2]
    assert Counter(e.topic for e in small.events)[0] > 150
    assert len(Counter(e.topic for e in small.events)) == 6


def test_equal_dice_draw_equal_workloads() -> None:
    draws = [make_workload(Random(seed), nodes=30, events=100) for seed in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0].deliveries == pytest.approx(draws[2].deliveries), "sums do not depend on them"


def test_topics_need_authors() -> None:
    with pytest.raises(ConfigError, match="23 topics of 10 nodes"):
        make_workload(Random(1), nodes=10)
