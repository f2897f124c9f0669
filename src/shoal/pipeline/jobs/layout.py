"""Where nodes go on a map, if all that is known is how far apart they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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
