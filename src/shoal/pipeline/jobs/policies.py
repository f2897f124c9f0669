"""Overlays of several topology policies beside one another: delay against the direct way, and what
the links look like on a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from shoal.pipeline.jobs.collected import STRETCH_STEPS, LinkMap, Stretch
from shoal.pipeline.jobs.layout import Floats, lay_out
from shoal.pipeline.jobs.points import PointOfRuns
from shoal.pipeline.reading import FoundRun, Runs

POLICY = "network.policy"
NODES = "network.nodes"
QUANTILES = (0.1, 0.5, 0.9, 0.99)
CURVE_STEPS = 200
MAP_NODES_MAX = 1024
"""On a map of more nodes nobody sees a link."""
MS_US = 1000


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


def policy_of(settings: Mapping[str, object]) -> str:
    """Of a point; of one that says nothing of its settings, none."""
    return str(settings.get(POLICY, ""))


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
    from shoal.pipeline.transforms.direct import count_stretches, direct_means

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
