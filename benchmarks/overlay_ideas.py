"""Ways to a faster overlay, side by side: what each makes of a random one in the same CPU time.

    .venv/bin/python benchmarks/overlay_ideas.py                       AWS, transit-stub, sphere
    .venv/bin/python benchmarks/overlay_ideas.py --underlay sphere --seconds 20
    .venv/bin/python benchmarks/overlay_ideas.py --json

All of them know the true delays, and begin with the same random overlay of degree 4. Each makes
exchanges of two links, a-b and c-e to a-c and b-e:

    k near      that shorten links; 4 - k links of each member stay random
    2-opt       that lower the mean delay from 16 members, drawn anew every 50 tries
    annealing   the same, but at first also such that raise it
    gradient    those of `improvement.py`, which the aware policy uses

RDP is the mean delay over all ordered pairs, 0.1 ms for each hop included, by that of direct ways.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from random import Random

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.base.ids import NodeId
from shoal.protocols.streams.topology.link_swaps import HOP_MS, Worth, best_swaps
from shoal.protocols.streams.topology.random_policy import RandomPolicy
from shoal.sim.delays import load_table

DEGREE = 4
SOURCES = 32
PER_ROUND = 0.02  # of all members, the swaps of one round of the gradient
HEAT = 0.5

Delays = NDArray[np.float64]
Link = tuple[int, int]


class Line(msgspec.Struct, frozen=True):
    """One line of the result."""

    underlay: str
    members: int
    idea: str
    rdp: float | None
    """None: the overlay fell apart."""
    p99_ms: float | None
    cpu_s: float


class Overlay:
    """Links that are exchanged."""

    def __init__(self, delays_ms: Delays, seed: int) -> None:
        self.delays_ms = delays_ms
        self.size = len(delays_ms)
        self.rng = Random(seed)
        policy = RandomPolicy(DEGREE, Random(seed))
        nodes = [NodeId(number.to_bytes(20, "big")) for number in range(self.size)]
        for node in nodes:
            policy.join(node)
        self.near = [[int.from_bytes(b, "big") for b in policy.neighbours(a)] for a in nodes]

    def links(self) -> list[Link]:
        """Each once."""
        return [(a, b) for a in range(self.size) for b in self.near[a] if a < b]

    def fits(self, a: int, b: int, c: int, e: int) -> bool:
        """Whether a-b and c-e may be exchanged for a-c and b-e."""
        return len({a, b, c, e}) == 4 and c not in self.near[a] and e not in self.near[b]

    def swap(self, a: int, b: int, c: int, e: int) -> None:
        """Do it; swap(a, c, b, e) takes it back."""
        for one, old, new in ((a, b, c), (b, a, e), (c, e, a), (e, c, b)):
            self.near[one][self.near[one].index(old)] = new

    def any_swap(self, c_of: Callable[[int], int]) -> tuple[int, int, int, int]:
        """One at random, given who is to be linked to whom."""
        a = self.rng.randrange(self.size)
        c = c_of(a)
        return a, self.rng.choice(self.near[a]), c, self.rng.choice(self.near[c])

    def from_some(self, sources: list[int] | None = None) -> Delays:
        """Delays over the overlay."""
        a, b = np.array([(a, b) for a in range(self.size) for b in self.near[a]]).T
        weights = self.delays_ms[a, b] + HOP_MS
        graph = csr_array((weights, (a, b)), shape=(self.size, self.size))
        distances: Delays = dijkstra(graph, indices=sources)
        return distances


def shorten(overlay: Overlay, near: int, seconds: float) -> None:
    """Link classes: near links are as short as exchanges make them, the others stay."""
    kept: set[Link] = set()
    count = [0] * overlay.size
    for a, b in overlay.links():
        if count[a] < DEGREE - near and count[b] < DEGREE - near:
            kept.update(((a, b), (b, a)))
            count[a], count[b] = count[a] + 1, count[b] + 1
    delays = overlay.delays_ms
    nearest = np.argsort(delays + np.eye(overlay.size) * 1e9, axis=1)
    last = overlay.size - 2
    begin_s = time.process_time()
    while time.process_time() - begin_s < seconds:
        a, b, c, e = overlay.any_swap(
            lambda a: int(nearest[a][min(int(overlay.rng.expovariate(1 / 20)), last)])
        )
        shorter = delays[a, c] + delays[b, e] < delays[a, b] + delays[c, e]
        if shorter and overlay.fits(a, b, c, e) and not {(a, b), (c, e)} & kept:
            overlay.swap(a, b, c, e)


def lower(overlay: Overlay, heat: float, seconds: float) -> None:
    """2-opt on the mean delay itself; annealing if there is heat."""
    rng, begin_s, tries, mean_ms = overlay.rng, time.process_time(), 0, 0.0
    sources: list[int] = []
    while (elapsed_s := time.process_time() - begin_s) < seconds:
        if tries % 50 == 0:
            sources = rng.sample(range(overlay.size), 16)
            mean_ms = float(overlay.from_some(sources).mean())
        tries += 1
        swap = overlay.any_swap(lambda _: rng.randrange(overlay.size))
        if not overlay.fits(*swap):
            continue
        overlay.swap(*swap)
        now_ms = float(overlay.from_some(sources).mean())
        warmth = heat * (1 - elapsed_s / seconds) * mean_ms / overlay.size
        if now_ms < mean_ms or (warmth and rng.random() < math.exp((mean_ms - now_ms) / warmth)):
            mean_ms = now_ms
        else:
            a, b, c, e = swap
            overlay.swap(a, c, b, e)


def follow(overlay: Overlay, seconds: float) -> None:
    """The gradient, in rounds."""
    rng = np.random.default_rng(overlay.rng.getrandbits(64))
    size, delays = overlay.size, overlay.delays_ms
    nearest = np.argsort(delays + np.eye(size) * 1e9, axis=1)[:, :16]
    most = max(1, int(PER_ROUND * size))
    begin_s = time.process_time()
    while time.process_time() - begin_s < seconds:
        a, b = np.array(overlay.links()).T
        sources = rng.choice(size, SOURCES, replace=False)
        worth = Worth(size, a, b, sources, lambda x, y: delays[x, y], np.zeros(len(a), bool))
        one = rng.integers(size, size=4 * size)
        near = nearest[one, rng.integers(nearest.shape[1], size=len(one))]
        other = np.where(rng.random(len(one)) < 0.5, rng.integers(size, size=len(one)), near)
        touched: set[int] = set()
        for swap in best_swaps(worth, one, other, 2, 4 * most):
            four = (swap.a, swap.b, swap.c, swap.e)
            if len(touched) < 4 * most and not touched & {*four} and overlay.fits(*four):
                overlay.swap(*four)
                touched.update(four)


def ideas(seconds: float) -> dict[str, Callable[[Overlay], None]]:
    """By name."""
    return {
        "random": lambda overlay: None,
        "2 near": lambda overlay: shorten(overlay, 2, seconds),
        "3 near": lambda overlay: shorten(overlay, 3, seconds),
        "4 near": lambda overlay: shorten(overlay, 4, seconds),
        "2-opt": lambda overlay: lower(overlay, 0.0, seconds),
        "annealing": lambda overlay: lower(overlay, HEAT, seconds),
        "gradient": lambda overlay: follow(overlay, seconds),
    }


def compare(underlay: str, members: int, idea: str, seconds: float, seed: int) -> Line:
    """One idea on one underlay."""
    table = load_table(underlay)
    at = np.arange(members) % len(table.names)
    delays_ms = np.array(table.delays_ns)[np.ix_(at, at)] / 1e6
    delays_ms = (delays_ms + delays_ms.T) / 2
    np.fill_diagonal(delays_ms, 0.0)
    overlay = Overlay(delays_ms, seed)
    begin_s = time.process_time()
    ideas(seconds)[idea](overlay)
    cpu_s = round(time.process_time() - begin_s, 1)
    over_ms = overlay.from_some()
    if not np.isfinite(over_ms).all():
        return Line(underlay, members, idea, None, None, cpu_s)
    rdp, p99_ms = over_ms.sum() / delays_ms.sum(), np.quantile(over_ms, 0.99)
    return Line(underlay, members, idea, round(float(rdp), 3), round(float(p99_ms), 1), cpu_s)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everywhere = ["aws", "transit-stub", "sphere"]
    parser.add_argument("--underlay", action="append", help="a table that ships, or a TSV file")
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of CPU, for each idea")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    for underlay in options.underlay or everywhere:
        for idea in ideas(options.seconds):
            line = compare(underlay, options.members, idea, options.seconds, options.seed)
            if options.json:
                print(msgspec.json.encode(line).decode(), flush=True)
            else:
                figure = "in parts" if line.rdp is None else f"RDP {line.rdp:.3f}"
                print(f"{underlay}, {options.members}: {idea:<10} {figure}", flush=True)


if __name__ == "__main__":
    main()
