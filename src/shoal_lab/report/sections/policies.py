"""The section about topology policies: what an overlay gains by knowing where its nodes are."""

from __future__ import annotations

from collections.abc import Sequence

from shoal_lab.report import published
from shoal_lab.report.analysis.points import NODES, POLICY, policy_of, settings_but
from shoal_lab.report.analysis.report_data import STRETCH_MAX, Collected, Point
from shoal_lab.report.blocks import Block, Comparison, Figure, Section, Table, Text
from shoal_lab.report.labels import NOTHING, number, percent, spread
from shoal_lab.report.published import network_as_published
from shoal_lab.report.svg import COLOURS, PUBLISHED, Series, line_chart, link_map

POLICIES = ("random", "near-half", "aware")
"""From the one that knows nothing to the one that learns; others come after them."""
TYPES = {
    "random": ("d-regular random graph", "no"),
    "near-half": ("d-regular graph, half of it near", "yes, told"),
    "aware": ("d-regular graph", "yes, learned"),
}
STRETCH_SHOWN = 8.0
PENALTY = (
    "The relative delay penalty (RDP) is the mean delay of deliveries over the mean direct delay "
    "of all ordered pairs of distinct nodes. In other sections it is taken against the mean of "
    "the delay table, a region with itself included, as the sources do: the two differ by 3 % "
    "with two nodes in each AWS region, and by less with more. Stretch is the same pair by pair: "
    "the mean delay of what one node got from another over their direct delay, for all pairs that "
    "had messages. Below 1 the overlay is faster than the direct way."
)


def policies_section(collected: Collected) -> tuple[Section, list[Comparison]] | None:
    """Every scenario that was run with more than one policy."""
    compared = [p for p in collected.points if p.values("node_rdp")]
    compared.sort(key=lambda point: (point.scenario, *_order(point)))
    scenarios = list(dict.fromkeys(point.scenario for point in compared))
    if not scenarios:
        return None
    blocks: list[Block] = [Text(PENALTY)]
    for scenario in scenarios:
        points = [point for point in compared if point.scenario == scenario]
        blocks += [_delays(scenario, points), _stretches(scenario, points)]
        if len({point.nodes for point in points}) > 1:
            blocks.append(_scaling(scenario, points))
        blocks += _stretch_curves(scenario, points)
        blocks += _maps(scenario, points)
    blocks.append(_literature(compared))
    return Section(title="Topology policies", blocks=tuple(blocks)), []


def _policy(point: Point) -> str:
    return policy_of(point.settings)


def _order(point: Point) -> tuple[int, int, str, str]:
    policy = _policy(point)
    place = POLICIES.index(policy) if policy in POLICIES else len(POLICIES)
    return point.nodes, place, policy, point.label


def _name(point: Point, points: Sequence[Point]) -> str:
    """The policy; with all that tells the point from others if the policy does not."""
    alike = [p for p in points if (p.nodes, _policy(p)) == (point.nodes, _policy(point))]
    return _policy(point) if len(alike) == 1 else point.label


def _delays(scenario: str, points: Sequence[Point]) -> Table:
    blind = {
        settings_but(p.settings, POLICY): p.over_repeats("mean_ms")
        for p in points
        if _policy(p) == "random"
    }
    rows = []
    for point in points:
        mean, direct = point.over_repeats("mean_ms"), point.over_repeats("direct_ms")
        hops = point.over_repeats("hops_mean")
        base = blind.get(settings_but(point.settings, POLICY))
        gain = mean.mean / base.mean - 1 if mean and base and _policy(point) != "random" else None
        size = published.propagation().get(point.nodes) if _as_published(point) else None
        rows.append(
            (
                f"{point.nodes:,}",
                _name(point, points),
                str(len(point.runs)),
                spread(mean),
                percent(gain, signed=True),
                number(direct.mean if direct else None),
                spread(point.over_repeats("node_rdp"), 2),
                *(
                    number(getattr(point.delays, name) if point.delays else None)
                    for name in ("p50_ms", "p95_ms", "p99_ms")
                ),
                number(hops.mean if hops else None, 2),
                percent(min(point.values("coverage"), default=None), 3),
                _beside(point, size),
            )
        )
    columns: tuple[str, ...] = (
        "nodes", "policy", "runs", "mean", "against random", "direct", "RDP", "p50", "p95", "p99",
        "hops", "least coverage",
    )  # fmt: skip
    caption = f"{scenario}: delay in milliseconds by size and policy."
    if any(row[-1] != NOTHING for row in rows):
        caption += (
            " Published: mean of the sources' overlays of that size, random (WebRTC), and aware "
            "of delay by accident (WebSocket)."
        )
        columns = (*columns, "published")
    shown = tuple(row[: len(columns)] for row in rows)
    return Table(caption=caption, columns=columns, rows=shown, left=2)


def _as_published(point: Point) -> bool:
    return network_as_published(point.settings, POLICY)


def _beside(point: Point, size: published.PublishedDelay | None) -> str:
    if size is None:
        return NOTHING
    if _policy(point) == "random":
        return number(size.mean_ms, 0)
    return f"{number(size.websocket_ms, 0)} (by accident)"


def _stretches(scenario: str, points: Sequence[Point]) -> Table:
    known = [(point, point.stretch) for point in points if point.stretch is not None]
    shares = [share for share, _ in known[0][1].quantiles] if known else []
    return Table(
        caption=f"{scenario}: stretch of ordered pairs of nodes, and the share of pairs for which "
        "the overlay takes no longer than the direct way.",
        columns=(
            "nodes",
            "policy",
            "pairs",
            *(f"p{100 * share:g}" for share in shares),
            "no longer",
        ),
        rows=tuple(
            (
                f"{point.nodes:,}",
                _name(point, points),
                f"{stretch.pairs:,}",
                *(
                    f"{STRETCH_MAX} or more" if value >= STRETCH_MAX else number(value, 2)
                    for _, value in stretch.quantiles
                ),
                percent(stretch.no_longer),
            )
            for point, stretch in known
        ),
        left=2,
    )


def _lines(points: Sequence[Point]) -> list[list[Point]]:
    """Points of one scenario that differ in their size alone, smallest first; by policy."""
    lines: dict[bytes, list[Point]] = {}
    for point in sorted(points, key=lambda p: (*_order(p)[1:3], p.nodes)):
        lines.setdefault(settings_but(point.settings, NODES), []).append(point)
    return list(lines.values())


def _line_names(lines: Sequence[Sequence[Point]]) -> list[str]:
    """The policies; where one has several lines, all that tells them apart."""
    policies = [_policy(line[0]) for line in lines]
    return [
        policy
        if policies.count(policy) == 1
        else line[0].label.removeprefix(f"nodes {line[0].nodes:,}, ")
        for policy, line in zip(policies, lines, strict=True)
    ]


def _colours(policies: Sequence[str]) -> list[str]:
    """The same for a policy in all pictures, unless it is more than once in this one."""
    places = [POLICIES.index(p) if p in POLICIES else len(POLICIES) for p in policies]
    if len(set(places)) < len(places):
        places = [number % len(COLOURS) for number in range(len(policies))]
    return [COLOURS[place] for place in places]


def _scaling(scenario: str, points: Sequence[Point]) -> Figure:
    found = _lines(points)
    colours = _colours([_policy(line[0]) for line in found])
    lines = []
    for line, name, colour in zip(found, _line_names(found), colours, strict=True):
        ours = [(p.nodes, s) for p in line if (s := p.over_repeats("mean_ms"))]
        lines.append(
            Series(
                name=name,
                points=tuple((n, s.mean) for n, s in ours),
                spread=tuple((s.min, s.max) for _, s in ours),
                colour=colour,
            )
        )
    sizes = {point.nodes for point in points}
    known = [size for n, size in sorted(published.propagation().items()) if n in sizes]
    if known and all(map(_as_published, points)):
        lines.append(
            Series(
                name="published, random",
                points=tuple((size.nodes, size.mean_ms) for size in known),
                colour=PUBLISHED,
                dashed=True,
            )
        )
    return Figure(
        caption=f"{scenario}: mean delay by number of nodes; bars from the least to the greatest "
        "of the runs.",
        svg=line_chart(lines, x_title="nodes", y_title="mean delay, ms", doubling=True),
    )


def _stretch_curves(scenario: str, points: Sequence[Point]) -> list[Block]:
    largest = max(point.nodes for point in points)
    shown = [
        (point, steps)
        for point in points
        if point.nodes == largest and point.stretch is not None
        if (steps := tuple((x, y) for x, y in point.stretch.cdf if x <= STRETCH_SHOWN))
    ]
    colours = _colours([_policy(point) for point, _ in shown])
    lines = [
        Series(name=_name(point, points), points=steps, colour=colour, dots=False)
        for (point, steps), colour in zip(shown, colours, strict=True)
    ]
    if not lines:
        return []
    return [
        Figure(
            caption=f"{scenario}, {largest:,} nodes: share of pairs with so much stretch or less, "
            f"up to {STRETCH_SHOWN:g}.",
            svg=line_chart(lines, x_title="stretch", y_title="share of pairs", y_max=1.0),
        )
    ]


def _maps(scenario: str, points: Sequence[Point]) -> list[Block]:
    return [
        Figure(
            caption=f"{scenario}: the {len(point.links.links):,} links of one overlay of "
            f"{point.nodes:,} nodes, policy {_policy(point)}. Nodes that are near in delay are "
            "near on the map, as far as two dimensions allow.",
            svg=link_map(
                point.links.places, point.links.links, title=f"{_policy(point)}, one way in ms"
            ),
        )
        for point in points
        if point.links is not None
    ]


def _literature(points: Sequence[Point]) -> Table:
    ours = []
    for scenario in dict.fromkeys(point.scenario for point in points):
        lines = _lines([point for point in points if point.scenario == scenario])
        for line, name in zip(lines, _line_names(lines), strict=True):
            mine = [(p.nodes, s.mean) for p in line if (s := p.over_repeats("node_rdp"))]
            near = [mean for nodes, mean in mine if 900 <= nodes <= 1100]
            values, sizes = [mean for _, mean in mine], [nodes for nodes, _ in mine]
            kind, aware = TYPES.get(_policy(line[0]), (NOTHING, NOTHING))
            ours.append(
                (
                    f"Shoal, {name} ({scenario})",
                    kind,
                    aware,
                    f"simulated ({line[0].settings.get('network.delays')})",
                    number(near[0] if near else None, 2),
                    _range(min(values), max(values), 2),
                    _range(min(sizes), max(sizes), 0),
                )
            )
    known = (
        (p.overlay, p.type, p.aware, p.underlay, p.at_1000, p.range, p.nodes)
        for p in published.penalties()
    )
    return Table(
        caption="Mean relative delay penalty, ours beside overlays in the literature (Table 5.4 of "
        "the thesis). Underlays that go by one name differ in their delays.",
        columns=("overlay", "type", "aware", "underlay", "at 1,000 nodes", "range", "nodes"),
        rows=(*ours, *known),
        left=4,
    )


def _range(low: float, high: float, digits: int) -> str:
    one, other = number(low, digits), number(high, digits)
    return one if one == other else f"{one}–{other}"
