"""Places by bandwidth and load."""

from __future__ import annotations

import pytest

from shoal.base.errors import ConfigError
from shoal.base.units import KIB, S_NS
from shoal.protocols.search.config import SearchConfig
from shoal.protocols.search.upload_limit import (
    IDLE_BELOW,
    IDLE_NS,
    SHED_AFTER_NS,
    Capacity,
    locations_for,
)
from tests.support.circle import CircleBench, Peer

BEAT_NS = 5 * S_NS
CONGESTED_BEATS, IDLE_BEATS = SHED_AFTER_NS // BEAT_NS, IDLE_NS // BEAT_NS


@pytest.mark.parametrize(
    ("upload", "download", "places"),
    [(100.0, 100.0, 3), (200.0, 1000.0, 6), (1000.0, 200.0, 6), (150.0, 150.0, 4), (1.0, 1.0, 2)],
)
def test_places_are_proportional_to_the_narrower_way(
    upload: float, download: float, places: int
) -> None:
    assert locations_for(3, upload, download, 100.0) == places


def test_who_says_nothing_has_the_usual_number() -> None:
    assert Capacity(SearchConfig(locations=5)).wanted == 5


@pytest.mark.parametrize(
    ("upload_kib", "download_kib", "places"),
    [(128, None, 3), (256, None, 6), (256, 128, 3), (16, None, 2), (1 << 20, None, 32)],
)
def test_bandwidth_gives_places(upload_kib: int, download_kib: int | None, places: int) -> None:
    down = None if download_kib is None else float(download_kib * KIB)
    config = SearchConfig(upload_bytes_s=float(upload_kib * KIB), download_bytes_s=down)
    assert Capacity(config).wanted == places


def test_a_node_asks_for_as_many_as_it_can_afford() -> None:
    bench = CircleBench(Peer(1), config=SearchConfig(upload_bytes_s=256.0 * KIB))
    assert len(bench.asked) == 6


def test_who_is_congested_gives_one_up_and_keeps_half() -> None:
    capacity = Capacity(SearchConfig(locations=6))
    for _ in range(CONGESTED_BEATS - 1):
        assert capacity.beat(1.0, BEAT_NS, congested=True) == 6
    assert capacity.beat(1.0, BEAT_NS, congested=True) == 5
    for _ in range(CONGESTED_BEATS * 10):
        capacity.beat(1.0, BEAT_NS, congested=True)
    assert capacity.wanted == 3


def test_a_short_congestion_changes_nothing() -> None:
    capacity = Capacity(SearchConfig(locations=6))
    for beat in range(100):
        capacity.beat(1.0, BEAT_NS, congested=beat % CONGESTED_BEATS != 0)
    assert capacity.wanted == 6


def test_who_is_idle_takes_more_up_to_twice_as_many() -> None:
    capacity = Capacity(SearchConfig(locations=3))
    for _ in range(IDLE_BEATS - 1):
        assert capacity.beat(0.0, BEAT_NS, congested=False) == 3
    assert capacity.beat(0.0, BEAT_NS, congested=False) == 4
    for _ in range(IDLE_BEATS * 10):
        capacity.beat(IDLE_BELOW / 2, BEAT_NS, congested=False)
    assert capacity.wanted == 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"locations": 1},
        {"locations": 33},
        {"confidence": 1.0},
        {"confidence": 0.0},
        {"split": 0},
        {"beat_ns": 0},
        {"download_bytes_s": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SearchConfig(**wrong)  # type: ignore[arg-type]


def test_quick_beats_change_nothing() -> None:
    capacity = Capacity(SearchConfig(locations=6))
    for _ in range(29):
        assert capacity.beat(1.0, S_NS, congested=True) == 6
    assert capacity.beat(1.0, S_NS, congested=True) == 5
