"""Networks below an overlay: delay tables in which every place is that of one node.

Two kinds that overlays are measured over in the literature. `scripts/underlays.py` writes them to
the tables that ship, which scenarios name as "sphere" and "transit-stub".

Both are symmetric. Two nodes at one place, as in a run with more nodes than the table has places,
are as far apart as their two accesses make them. Chance is taken from `Random.random` alone, whose
numbers Python promises not to change: a seed means the same table everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from shoal.base.units import ns_of_ms
from shoal.sim.delays import RegionTable

GRAIN_MS = 0.1  # of the tables: finer than any figure that is taken from them

# The sphere

EARTH_KM = 6371.0
FIBRE_KM_MS = 200.0  # light in glass
INFLATION = 1.6
"""Median length of a route over the great circle: cables go along coasts and roads, and traffic
through exchanges. Measured medians lie between 1.5 and 2 times the time of light in fibre."""
INFLATION_SIGMA = 0.1
"""Of its logarithm, pair by pair: half of the routes are within 7 % of the median. Enough that for
every second pair some third node is a shortcut of 10 % or more, as on the Internet; no route beats
light."""
ACCESS_MS = 2.0  # mean, exponential, at each end: last miles differ more than backbones do

# Transit and stub domains, in the proportions of the graphs with about 500 routers that GT-ITM made
# for the overlays of the literature: 4 x 5 transit routers, 3 stubs each, of 8 routers.

TRANSIT_DOMAINS = 4
TRANSIT_ROUTERS = 5
STUBS = 3
STUB_ROUTERS = 8
DOMAIN_CHANCE = 0.6  # of a link between two transit domains, besides the chain that joins all
TRANSIT_CHANCE = 0.5  # the same between two routers of a transit domain, besides a tree
STUB_CHANCE = 0.3  # and of a stub

Range = tuple[float, float]

DOMAIN_MS: Range = (30.0, 80.0)  # an ocean, or a continent
TRANSIT_MS: Range = (10.0, 30.0)  # between cities
UPLINK_MS: Range = (3.0, 8.0)  # from a stub to its transit router
STUB_MS: Range = (1.0, 3.0)  # within a city
HOST_MS: Range = (0.1, 0.5)  # to the router of a node

Matrix = npt.NDArray[np.float64]


def sphere(nodes: int, seed: int) -> RegionTable:
    """Points spread evenly over a globe; delay is distance with detours, and access at each end."""
    rng = Random(seed)
    points, access_ms = [], []
    for _ in range(nodes):
        up, angle = 2 * rng.random() - 1, 2 * math.pi * rng.random()
        across = math.sqrt(1 - up * up)
        points.append((across * math.cos(angle), across * math.sin(angle), up))
        access_ms.append(_exponential(rng, ACCESS_MS))
    delays_ms = np.zeros((nodes, nodes))
    for a, (x, y, z) in enumerate(points):
        for b in range(a):
            u, v, w = points[b]
            cosine = max(-1.0, min(1.0, x * u + y * v + z * w))
            detour = max(1.0, INFLATION * math.exp(INFLATION_SIGMA * _normal(rng)))
            delays_ms[a, b] = EARTH_KM * math.acos(cosine) / FIBRE_KM_MS * detour
    return _table(delays_ms + delays_ms.T, access_ms)


def transit_stub(nodes: int, seed: int) -> RegionTable:
    """Nodes at random routers of stub domains; delay is that of the shortest way between these."""
    rng = Random(seed)
    routers = _Routers(rng)
    domains = [
        routers.domain(TRANSIT_ROUTERS, TRANSIT_CHANCE, TRANSIT_MS) for _ in range(TRANSIT_DOMAINS)
    ]
    for number, domain in enumerate(domains):
        for other in range(number):
            if other == number - 1 or rng.random() < DOMAIN_CHANCE:
                routers.link(_one_of(domain, rng), _one_of(domains[other], rng), DOMAIN_MS)
    edges: list[int] = []
    for router in [router for domain in domains for router in domain]:
        for _ in range(STUBS):
            stub = routers.domain(STUB_ROUTERS, STUB_CHANCE, STUB_MS)
            routers.link(router, _one_of(stub, rng), UPLINK_MS)
            edges += stub
    at = [_one_of(edges, rng) for _ in range(nodes)]
    access_ms = [_between(HOST_MS, rng) for _ in range(nodes)]
    return _table(routers.distances_ms()[np.ix_(at, at)], access_ms)


class _Routers:
    """A graph that grows domain by domain."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._count = 0
        self._links: list[tuple[int, int, float]] = []

    def domain(self, size: int, chance: float, delay_ms: Range) -> list[int]:
        """Routers in one piece: a random tree, and more links besides."""
        members = list(range(self._count, self._count + size))
        self._count += size
        for number in range(1, size):
            above = _one_of(range(number), self._rng)
            for other in range(number):
                if other == above or self._rng.random() < chance:
                    self.link(members[number], members[other], delay_ms)
        return members

    def link(self, a: int, b: int, delay_ms: Range) -> None:
        self._links.append((a, b, _between(delay_ms, self._rng)))

    def distances_ms(self) -> Matrix:
        a, b, delay_ms = zip(*self._links, strict=True)
        graph = csr_array((delay_ms, (a, b)), shape=(self._count, self._count))
        found: Matrix = dijkstra(graph, directed=False)
        return found


def _table(delays_ms: Matrix, access_ms: Sequence[float]) -> RegionTable:
    access = np.array(access_ms)
    tenths = np.rint((delays_ms + access[:, None] + access) / GRAIN_MS).astype(np.int64)
    # One number object for each delay that there is, not one for each of a million pairs.
    known = {tenth: ns_of_ms(tenth * GRAIN_MS) for tenth in np.unique(tenths).tolist()}
    rows = tuple(tuple([known[tenth] for tenth in row]) for row in tenths.tolist())
    width = len(str(len(rows) - 1))
    return RegionTable(tuple(f"p{number:0{width}}" for number in range(len(rows))), rows)


# Of what Random offers only random() is promised to stay as it is.


def _one_of(values: Sequence[int], rng: Random) -> int:
    return values[int(rng.random() * len(values))]


def _between(values: Range, rng: Random) -> float:
    low, high = values
    return low + (high - low) * rng.random()


def _exponential(rng: Random, mean: float) -> float:
    return -mean * math.log(1 - rng.random())


def _normal(rng: Random) -> float:
    return math.sqrt(-2 * math.log(1 - rng.random())) * math.cos(2 * math.pi * rng.random())
