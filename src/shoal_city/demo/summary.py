"""How a demo goes, and how it went: sums over what its workers say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from shoal_city.demo.checker import Verdict
from shoal_city.demo.messages import DemoSettings, Figures, SparkFigures


class Delays(msgspec.Struct, frozen=True):
    """Percentiles: of the age of messages at their first arrival, or of alerts."""

    p50: float | None
    p99: float | None


class PipelineSummary(msgspec.Struct, frozen=True):
    """What Spark made of the stream."""

    rows: int
    """Messages that the query of alerts has read: all that were published, if all went well."""
    behind: int
    """Messages that the slowest query has not read: the machine could not keep up."""
    reread: int
    """Messages that it has read more than once."""
    alerts: int
    """That were published."""
    alerts_delivered: int
    alerts_lost: int
    alerts_double: int
    alerts_invented: int
    speeds: int
    """Rows of speeds that were published."""
    delay_ms: Delays
    """From the publication of the reading that makes an alert to the arrival of the alert."""
    batches: int
    slowest_batch_s: float

    @property
    def good(self) -> bool:
        """All was read, and all alerts arrived."""
        wrong = self.alerts_lost or self.alerts_double or self.alerts_invented
        return not (self.behind or self.reread or wrong)


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
    """Of the network: of tracker, nodes and checks."""
    pipeline: PipelineSummary | None = None

    @property
    def good(self) -> bool:
        """Nothing lost, doubled or invented."""
        wrong = self.lost or self.double or self.invented
        return not wrong and (self.pipeline is None or self.pipeline.good)


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
    spark: SparkFigures | None
    alerts: int
    """That have arrived."""


def degrees_of(known: Sequence[Figures]) -> tuple[int, ...]:
    """Neighbours of every node."""
    return tuple(degree for figures in known for degree in figures.degrees)


def snapshot_of(
    known: Sequence[Figures],
    settings: DemoSettings,
    elapsed_s: float,
    spark: SparkFigures | None = None,
) -> Snapshot:
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
        spark,
        sum(f.alerts for f in known),
    )


def summarise(
    verdict: Verdict,
    known: Sequence[Figures],
    settings: DemoSettings,
    elapsed_s: float,
    degrees: tuple[int, ...],
    spark: SparkFigures | None = None,
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
        pipeline=_pipeline(verdict, spark),
    )


def _pipeline(verdict: Verdict, spark: SparkFigures | None) -> PipelineSummary | None:
    alerts = verdict.alerts
    if spark is None or alerts is None:
        return None
    return PipelineSummary(
        rows=spark.rows["alerts"],
        behind=max(0, *(verdict.published - rows for rows in spark.rows.values())),
        reread=max(0, spark.rows["alerts"] - verdict.published),
        alerts=spark.out["alerts"],
        alerts_delivered=alerts.delivered,
        # What Spark published and nobody keeps is lost as well.
        alerts_lost=alerts.lost + max(0, spark.out["alerts"] - alerts.kept),
        alerts_double=alerts.double,
        alerts_invented=alerts.invented,
        speeds=spark.out["speeds"],
        delay_ms=Delays(*(_of_sorted(alerts.delays_ms, share) for share in (0.5, 0.99))),
        batches=spark.batches,
        slowest_batch_s=spark.slowest_s,
    )


def _of_sorted(values: Sequence[int], share: float) -> float | None:
    return float(values[min(int(share * len(values)), len(values) - 1)]) if values else None


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
