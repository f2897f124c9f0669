"""How a demo goes, and how it went: sums over what its workers say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from shoal.cli.demo.checker import Verdict
from shoal.cli.demo.protocol import Figures
from shoal.cli.demo.settings import DemoSettings


class Delays(msgspec.Struct, frozen=True):
    """Percentiles of the age of messages at their first arrival."""

    p50: float | None
    p99: float | None


class Summary(msgspec.Struct, frozen=True):
    """How it went; what --json prints."""

    published: int
    expected: int
    delivered: int
    lost: int
    double: int
    invented: int
    duplicates_per_message: float
    delay_ms: Delays
    nodes: int
    degrees: tuple[int, ...]
    seconds: float
    rate: float
    wanted_rate: float
    cpu_seconds: float

    @property
    def good(self) -> bool:
        """Nothing lost, doubled or invented."""
        return not (self.lost or self.double or self.invented)


class Snapshot(msgspec.Struct, frozen=True):
    """For the live table."""

    seconds: float
    published: int
    delivered: int
    received: int
    duplicates: int
    delay_ms: Delays
    degrees: tuple[int, ...]
    nodes: int


def degrees_of(known: Sequence[Figures]) -> tuple[int, ...]:
    """Neighbours of every node."""
    return tuple(degree for figures in known for degree in figures.degrees)


def snapshot_of(known: Sequence[Figures], settings: DemoSettings, elapsed_s: float) -> Snapshot:
    """How it goes."""
    return Snapshot(
        elapsed_s,
        sum(f.published for f in known),
        sum(f.delivered for f in known),
        sum(f.received for f in known),
        sum(f.duplicates for f in known),
        _delays(known),
        degrees_of(known),
        settings.nodes,
    )


def summarise(
    verdict: Verdict,
    known: Sequence[Figures],
    settings: DemoSettings,
    elapsed_s: float,
    degrees: tuple[int, ...],
) -> Summary:
    """How it went. Degrees are from when the overlay still stood."""
    received = sum(f.received for f in known)
    publishing_s = elapsed_s if settings.seconds is None else min(settings.seconds, elapsed_s)
    # The journal of the publisher's own subscriber counts for nothing: it is no delivery.
    return Summary(
        published=verdict.published,
        expected=verdict.expected - verdict.published,
        delivered=verdict.delivered - verdict.published,
        lost=verdict.lost,
        double=verdict.double,
        invented=verdict.invented,
        duplicates_per_message=sum(f.duplicates for f in known) / received if received else 0.0,
        delay_ms=_delays(known),
        nodes=settings.nodes,
        degrees=degrees,
        seconds=elapsed_s,
        rate=verdict.published / publishing_s if publishing_s else 0.0,
        wanted_rate=settings.rate,
        cpu_seconds=sum(f.cpu_seconds for f in known) + time.process_time(),
    )


def _delays(known: Sequence[Figures]) -> Delays:
    ages: Counter[int] = Counter()
    for figures in known:
        ages.update(figures.ages_tenth_ms)
    return Delays(_percentile(ages, 0.5), _percentile(ages, 0.99))


def _percentile(ages: Counter[int], share: float) -> float | None:
    total, passed = sum(ages.values()), 0
    for age in sorted(ages):
        passed += ages[age]
        if passed >= share * total:
            return age / 10
    return None
