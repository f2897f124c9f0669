"""Where vehicles go: routes through a city, as paths with stops."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CENTRE_LAT, CENTRE_LON = 60.2, 24.9
METRES_PER_DEGREE = 111_195.0
METRES_PER_DEGREE_LON = METRES_PER_DEGREE * math.cos(math.radians(CENTRE_LAT))
CITY_RADIUS_M = 12_000.0
LENGTH_M = (14_000.0, 20_000.0)
"""With ten vehicles a route this is a headway of eight to eleven minutes: vehicles come together
when they are made to, and not by chance."""
STOP_EVERY_M = 450.0
BEND_EVERY_M = 150.0


class Route(NamedTuple):
    """A line of a city; direction 0 goes along its path, 1 comes back."""

    name: str
    destination: tuple[str, str]
    """What vehicles show in each direction."""
    along_m: Floats
    """Of each bend, from the first terminus."""
    east_m: Floats
    north_m: Floats
    stops_m: Floats
    """Along the path; the first and the last are the termini."""

    @property
    def length_m(self) -> float:
        return float(self.along_m[-1])

    def place(self, direction: int, done_m: Floats) -> tuple[Floats, Floats, Floats]:
        """East, north and heading in degrees, so far into a trip."""
        along = done_m if direction == 0 else self.length_m - done_m
        east = np.interp(along, self.along_m, self.east_m)
        north = np.interp(along, self.along_m, self.north_m)
        bend = np.clip(np.searchsorted(self.along_m, along, side="right"), 1, len(self.along_m) - 1)
        d_east = self.east_m[bend] - self.east_m[bend - 1]
        d_north = self.north_m[bend] - self.north_m[bend - 1]
        heading = np.degrees(np.arctan2(d_east, d_north)) + 180.0 * direction
        return east, north, heading % 360.0


def draw_route(number: int, random: np.random.Generator) -> Route:
    """A path that wanders towards a goal, from somewhere in the city."""
    length = float(random.uniform(*LENGTH_M))
    bends = int(length / BEND_EVERY_M)
    angle = random.uniform(0.0, 2 * math.pi)
    radius = CITY_RADIUS_M * math.sqrt(random.uniform(0.0, 1.0))
    # Through the middle rather than out of town.
    heading = angle + math.pi + np.cumsum(random.normal(0.0, 0.12, bends))
    step = length / bends
    north = np.concatenate([[0.0], np.cumsum(step * np.cos(heading))]) + radius * math.cos(angle)
    east = np.concatenate([[0.0], np.cumsum(step * np.sin(heading))]) + radius * math.sin(angle)
    return Route(
        name=f"{2000 + 7 * number}",
        destination=("Harbour", "Old Mill"),
        along_m=np.linspace(0.0, length, bends + 1),
        east_m=east,
        north_m=north,
        stops_m=np.linspace(0.0, length, round(length / STOP_EVERY_M) + 1),
    )


def to_degrees(east_m: Floats, north_m: Floats) -> tuple[Floats, Floats]:
    """Latitude and longitude of places around the centre."""
    return CENTRE_LAT + north_m / METRES_PER_DEGREE, CENTRE_LON + east_m / METRES_PER_DEGREE_LON
