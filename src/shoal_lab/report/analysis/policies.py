"""Overlays of several topology policies beside one another: delay against the direct way, and what
the links look like on a map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark user knows

from shoal_lab.report.analysis.deliveries import MS_US, TENTHS, group_key
from shoal_lab.report.analysis.points import NODES, PointOfRuns, policy_of
from shoal_lab.report.analysis.report_data import STRETCH_MAX, STRETCH_STEPS, LinkMap, Stretch
from shoal_lab.runs.run_frames import FoundRun, Runs

QUANTILES = (0.1, 0.5, 0.9, 0.99)
CURVE_STEPS = 200
MAP_NODES_MAX = 1024
"""On a map of more nodes nobody sees a link."""


class PolicyFigures(msgspec.Struct, frozen=True):
    """What there is to say of runs and points whose scenario has several policies."""

    direct_ms: dict[str, float]
    """By run: the mean over all ordered pairs of distinct nodes."""
    stretches: dict[int, Stretch]
    maps: dict[int, LinkMap]
    """Both by point."""

    def of_run(self, run: str) -> dict[str, float]:
        """What is to be known of a run."""
        return {"direct_ms": self.direct_ms[run]} if run in self.direct_ms else {}


def compared_points(groups: Sequence[PointOfRuns]) -> list[int]:
    """Numbers of the points whose scenario has more than one policy, and messages."""
    policies: dict[str, set[str]] = {}
    for group in groups:
        policies.setdefault(group.scenario, set()).add(policy_of(group.settings))
    return [
        number
        for number, group in enumerate(groups)
        if len(policies[group.scenario]) > 1 and any("delays" in run.files for run in group.runs)
    ]


def collect_policies(runs: Runs, groups: Sequence[PointOfRuns]) -> PolicyFigures:
    """Empty if there is nothing to compare."""
    chosen = {number: groups[number] for number in compared_points(groups)}
    if not chosen:
        return PolicyFigures({}, {}, {})

    members = [(run.run, number) for number, group in chosen.items() for run in group.runs]
    points = runs.session.createDataFrame(members, "run string, point long")
    involved = Runs(runs.session, [run for group in chosen.values() for run in group.runs], ())
    nodes, delays = involved.table("nodes"), involved.table("delays")
    direct = {
        row["run"]: row["direct_ms"]
        for row in direct_means(nodes, delays).collect()
        if row["direct_ms"] is not None
    }
    counted: dict[int, dict[int, int]] = {}
    # A few thousand steps for each point, however many pairs there are.
    for row in count_stretches(involved.table("deliveries"), nodes, delays, points).collect():
        counted.setdefault(row["point"], {})[row["stretch_hundredths"]] = row["n"]
    stretches = {point: sum_up_stretch(steps) for point, steps in counted.items()}
    return PolicyFigures(direct, stretches, _collect_maps(runs, chosen))


def sum_up_stretch(counts: Mapping[int, int]) -> Stretch:
    """Of pairs of nodes by hundredths. A quantile is the least stretch that so many do not pass."""
    steps = np.array(sorted(counts))
    through = np.cumsum([counts[int(step)] for step in steps])
    pairs = int(through[-1])

    def at(share: float) -> float:
        return float(steps[np.searchsorted(through, share * pairs)]) / STRETCH_STEPS

    shares = np.linspace(0, 1, CURVE_STEPS + 1)
    kept = np.unique(np.minimum(np.searchsorted(through, shares * pairs), len(steps) - 1))
    no_longer = sum(n for step, n in counts.items() if step <= STRETCH_STEPS)
    return Stretch(
        pairs=pairs,
        quantiles=tuple((share, at(share)) for share in QUANTILES),
        no_longer=no_longer / pairs,
        cdf=tuple((float(steps[i]) / STRETCH_STEPS, float(through[i]) / pairs) for i in kept),
    )


# Maps


def mapped_points(groups: Mapping[int, PointOfRuns]) -> dict[int, FoundRun]:
    """One run of each policy of each scenario, of the largest size that can be seen."""
    sizes: dict[str, int] = {}
    for group in groups.values():
        nodes = _nodes(group)
        if nodes <= MAP_NODES_MAX:
            sizes[group.scenario] = max(nodes, sizes.get(group.scenario, 0))
    found: dict[int, FoundRun] = {}
    seen: set[tuple[str, str]] = set()
    for number, group in groups.items():
        which = group.scenario, policy_of(group.settings)
        with_links = [run for run in group.runs if "topologies" in run.files]
        if with_links and _nodes(group) == sizes.get(group.scenario) and which not in seen:
            seen.add(which)
            found[number] = with_links[0]
    return found


def _collect_maps(runs: Runs, groups: Mapping[int, PointOfRuns]) -> dict[int, LinkMap]:
    found: dict[int, LinkMap] = {}
    layouts: dict[str, Floats] = {}
    for number, run in mapped_points(groups).items():
        scenario = groups[number].scenario
        alone = Runs(runs.session, [run], ())
        if scenario not in layouts:
            # One for all policies: only then can their maps be told apart.
            nodes = alone.table("nodes").orderBy("node").select("region").toArrow()
            delays = alone.table("delays").select("a", "b", "delay_us").toArrow().to_pydict()
            layouts[scenario] = lay_out(nodes["region"].to_pylist(), **delays)
        links = alone.table("topologies").where("a < b").select("a", "b", "delay_us").distinct()
        places = layouts[scenario]
        found[number] = LinkMap(
            places=tuple((round(float(x), 4), round(float(y), 4)) for x, y in places),
            links=tuple(
                (row["a"], row["b"], row["delay_us"] / MS_US)
                for row in links.orderBy("a", "b").collect()
                if row["b"] < len(places)
            ),
        )
    return found


def _nodes(group: PointOfRuns) -> int:
    nodes = group.settings.get(NODES)
    return nodes if isinstance(nodes, int) else 0


# Ways through an overlay beside the direct ones: how long these take, and how much is lost.
#
# Nodes are where their region is, and the delay table of a run says how far regions are apart. In
# some tables every node is a region of its own.


def direct_means(nodes: DataFrame, delays: DataFrame) -> DataFrame:
    """The mean direct delay over all ordered pairs of distinct nodes: run, direct_ms. Null where a
    run has a single node."""
    counts = nodes.groupBy("run", F.col("region").alias("a")).agg(F.count("*").alias("n_a"))
    others = counts.select("run", F.col("a").alias("b"), F.col("n_a").alias("n_b"))
    itself = F.when(F.col("a") == F.col("b"), F.col("n_a")).otherwise(0)
    pairs = F.col("n_a") * F.col("n_b") - itself
    return (
        delays.join(F.broadcast(counts), on=["run", "a"])
        .join(F.broadcast(others), on=["run", "b"])
        .groupBy("run")
        .agg(
            (F.try_divide(F.sum(F.col("delay_us") * pairs), F.sum(pairs)) / MS_US).alias(
                "direct_ms"
            )
        )
    )


def count_stretches(
    deliveries: DataFrame, nodes: DataFrame, delays: DataFrame, points: DataFrame
) -> DataFrame:
    """Ordered pairs of nodes by their stretch, the mean delay of what one sent to the other over
    the direct delay: point, stretch_hundredths, n. Of deliveries that were due; pairs whose direct
    way takes no time are left out. `points` has run and point."""
    run, region = group_key(), F.xxhash64("region")
    # Names as numbers: millions of pairs are grouped, and looked up among as many delays.
    pairs = (
        deliveries.where("due")
        .select(run, "publisher", "node", region.alias("b"), "delay_tenths_ms")
        .join(F.broadcast(points.select(run, "point")), on="key")
        .groupBy("key", "point", "publisher", "node")
        .agg(F.max("b").alias("b"), F.avg("delay_tenths_ms").alias("tenths"))
    )
    publishers = nodes.select(run, F.col("node").alias("publisher"), region.alias("a"))
    ends = [F.xxhash64(end).alias(end) for end in ("a", "b")]
    ways = delays.where("delay_us > 0").select(run, *ends, "delay_us")
    ratio = F.col("tenths") * (MS_US / TENTHS) / F.col("delay_us")
    steps = F.round(ratio * STRETCH_STEPS).cast("long")
    most = F.lit(STRETCH_MAX * STRETCH_STEPS).cast("long")
    return (
        pairs.join(F.broadcast(publishers), on=["key", "publisher"])
        .join(ways, on=["key", "a", "b"])
        .groupBy("point", F.least(steps, most).alias("stretch_hundredths"))
        .agg(F.count("*").alias("n"))
    )


# Where nodes go on a map, if all that is known is how far apart they are.


Floats = npt.NDArray[np.float64]

CLUSTER = 0.04
"""How far the nodes of one region lie around its place, as a part of the map."""
GOLDEN_ANGLE = np.pi * (3 - np.sqrt(5))


def lay_out(
    regions: Sequence[str], a: Sequence[str], b: Sequence[str], delay_us: Sequence[int]
) -> Floats:
    """A place in the unit square for each node, given its region, and from where to where each
    delay is. Nodes of one region lie around its place."""
    names = sorted(set(regions))
    at = {name: number for number, name in enumerate(names)}
    delays = np.zeros((len(names), len(names)))
    for one, other, us in zip(a, b, delay_us, strict=True):
        if one in at and other in at:
            delays[at[one], at[other]] = us
    places = unit_square(scale_down(delays))[[at[region] for region in regions]]
    sizes, seen = Counter(regions), Counter[str]()
    for place, region in zip(places, regions, strict=True):
        # Like the seeds of a sunflower: as dense at the edge as in the middle.
        angle = seen[region] * GOLDEN_ANGLE
        radius = CLUSTER * np.sqrt(seen[region] / sizes[region])
        place += radius * np.array([np.cos(angle), np.sin(angle)])
        seen[region] += 1
    return unit_square(places)


def scale_down(delays: Floats) -> Floats:
    """Classical multidimensional scaling: places in the plane whose distances come as near to the
    delays as two dimensions allow. Delays that differ by direction count with their mean."""
    squares = ((delays + delays.T) / 2) ** 2
    np.fill_diagonal(squares, 0)
    rows = squares.mean(axis=0)
    products = -(squares - rows - rows[:, None] + squares.mean()) / 2
    values, vectors = np.linalg.eigh(products)
    values, vectors = values[::-1][:2], vectors[:, ::-1][:, :2]
    # Mirrored it would be as good: the farthest one lies to the right, and on top.
    farthest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[farthest, range(vectors.shape[1])])
    places = np.zeros((len(delays), 2))
    places[:, : len(values)] = vectors * np.sqrt(np.maximum(values, 0))
    return places


def unit_square(places: Floats) -> Floats:
    """The same in the same proportions, between 0 and 1, in the middle of the square."""
    low, high = places.min(axis=0), places.max(axis=0)
    width = float((high - low).max()) or 1.0
    moved: Floats = (places - (low + high) / 2) / width + 0.5
    return moved
