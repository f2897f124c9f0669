"""The section about durable topics: coverage beside what the source measured, times, and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal_lab.report import published
from shoal_lab.report.analysis.report_data import Collected, Point, Spread
from shoal_lab.report.blocks import Comparison, Section, Table
from shoal_lab.report.labels import NOTHING, number, spread
from shoal_lab.report.published import topics_as_published
from shoal_lab.runs.result_schema import Messages, OverNodes, Times, TopicFigures

KIB = 1024

Figure = Callable[[TopicFigures], float | None]


def topics_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """No figure is compared as reproduced: the aim is to cover more than the source."""
    points = [p for p in collected.points if any(run.topics is not None for run in p.runs)]
    if not points:
        return None
    return Section(title="Durable topics", blocks=(_coverage(points), _costs(points))), []


def _coverage(points: Sequence[Point]) -> Table:
    rows = []
    for name, point in zip(_scenarios(points), points, strict=True):
        source = _published(point)
        rows.append(
            (
                name,
                *_names(point),
                str(len(point.runs)),
                _over(point, lambda f: f.injected, 0),
                _over(point, lambda f: f.coverage_of_issued_percent, 2),
                NOTHING if source is None else f"{source.of_injected_percent:g}",
                _over(point, lambda f: f.coverage_percent, 2),
                NOTHING if source is None else f"{source.of_published_percent:g}",
                _over(point, lambda f: _s(f.delivery_ms, "p50"), 2),
                _over(point, lambda f: _s(f.delivery_ms, "p99"), 2),
                _over(point, lambda f: _s(f.to_100_ms, "p50"), 2),
                _over(point, lambda f: _s(f.to_100_ms, "p99"), 2),
                _over(point, lambda f: f.run_to_100_s, 1),
                _over(point, lambda f: f.wrong, 0),
            )
        )
    return Table(
        caption="Part of the deliveries that came, in per cent: of all events handed to a node, "
        "and of those that were then accepted, beside the source, whose words for the two are "
        "injected and published. Seconds from handing an event over to its deliveries, and until "
        "all of its readers had it; and from the last event until everything was there. Wrong: "
        "chains of ordered topics with holes or different ends, and events told twice.",
        columns=(
            "scenario",
            "system",
            "order",
            "network",
            "runs",
            "events",
            "of handed over",
            "source",
            "of accepted",
            "source",
            "delivery, p50",
            "delivery, p99",
            "all, p50",
            "all, p99",
            "rest",
            "wrong",
        ),
        rows=tuple(rows),
        left=4,
    )


def _costs(points: Sequence[Point]) -> Table:
    rows = []
    for name, point in zip(_scenarios(points), points, strict=True):
        source = _published(point)
        rows.append(
            (
                name,
                *_names(point),
                _over(point, lambda f: f.rpc.per_event, 1),
                _over(point, lambda f: None if f.dht is None else f.dht.per_event, 1),
                _over(point, lambda f: f.copies_per_delivery, 3),
                _nodes(point, lambda f: f.rpc.sent),
                _nodes(point, lambda f: f.rpc.received),
                _nodes(point, lambda f: _sent(f.dht)),
                _over(point, lambda f: f.network_mib, 0),
                NOTHING if source is None else number(source.network_mib, 0),
                _sizes(point, lambda f: f.topic_state_bytes),
                _sizes(point, lambda f: f.dht_state_bytes),
            )
        )
    return Table(
        caption="What it cost: messages of topics and of the DHT for each event, messages with an "
        "event for each delivery; messages of a node over the whole run (mean, standard "
        "deviation, 95th and 99th percentile); all bytes on links, beside the source; what a "
        "node holds at the end, in KiB (mean, 95th percentile, most). Columns with slashes are "
        "over the nodes of the point's first run: percentiles have no mean over runs.",
        columns=(
            "scenario",
            "system",
            "order",
            "network",
            "RPCs",
            "DHT",
            "copies",
            "RPCs sent",
            "RPCs received",
            "DHT sent",
            "MiB",
            "source",
            "topics KiB",
            "DHT KiB",
        ),
        rows=tuple(rows),
        left=4,
    )


def _scenarios(points: Sequence[Point]) -> list[str]:
    """Of each row; with nodes, kills and whatever else differs where the row would be the same."""
    whole = [(point.scenario, *_names(point)) for point in points]
    return [
        point.scenario if whole.count(names) == 1 else f"{point.scenario} ({point.label})"
        for names, point in zip(whole, points, strict=True)
    ]


def _names(point: Point) -> tuple[str, str, str]:
    ordered, slow = (bool(point.settings.get(f"options.{name}")) for name in ("ordered", "slow"))
    system = str(point.settings.get("options.system", "topics"))
    return system, "yes" if ordered else "no", "slow" if slow else "plain"


def _published(point: Point) -> published.PublishedCoverage | None:
    if not topics_as_published(point.settings):
        return None
    system, order, network = _names(point)
    called = {"topics": "pulsarcast"}.get(system, system)
    return published.coverage().get((called, order == "yes", network == "slow"))


def _told(point: Point) -> list[TopicFigures]:
    return [run.topics for run in point.runs if run.topics is not None]


def _over(point: Point, figure: Figure, digits: int) -> str:
    values = [value for told in _told(point) if (value := figure(told)) is not None]
    if not values:
        return NOTHING
    return spread(Spread(sum(values) / len(values), min(values), max(values), len(values)), digits)


def _s(times: Times | None, percentile: str) -> float | None:
    return None if times is None else float(getattr(times, percentile)) / 1000


def _sent(messages: Messages | None) -> OverNodes | None:
    return None if messages is None else messages.sent


def _nodes(point: Point, figure: Callable[[TopicFigures], OverNodes | None]) -> str:
    """Of the first run that has it."""
    for told in _told(point):
        if (found := figure(told)) is not None:
            values = (found.mean, found.sd, found.p95, found.p99)
            return " / ".join(number(value, 0) for value in values)
    return NOTHING


def _sizes(point: Point, figure: Callable[[TopicFigures], OverNodes]) -> str:
    found = figure(_told(point)[0])
    return " / ".join(number(value / KIB, 0) for value in (found.mean, found.p95, found.max))
