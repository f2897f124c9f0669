"""Where on the globe a node is: what its network file says, or where its region is."""

from __future__ import annotations

Place = tuple[float, float]
"""Latitude and longitude, in degrees."""

# The city or the state that the cloud's own list of regions names.
REGIONS: dict[str, Place] = {
    "af-south-1": (-33.9, 18.4),
    "ap-east-1": (22.3, 114.2),
    "ap-northeast-1": (35.7, 139.7),
    "ap-northeast-2": (37.6, 127.0),
    "ap-south-1": (19.1, 72.9),
    "ap-southeast-1": (1.35, 103.8),
    "ap-southeast-2": (-33.9, 151.2),
    "ca-central-1": (45.5, -73.6),
    "eu-central-1": (50.1, 8.7),
    "eu-north-1": (59.3, 18.1),
    "eu-south-1": (45.5, 9.2),
    "eu-west-1": (53.3, -6.3),
    "eu-west-2": (51.5, -0.1),
    "eu-west-3": (48.9, 2.4),
    "me-south-1": (26.2, 50.6),
    "sa-east-1": (-23.5, -46.6),
    "us-east-1": (38.9, -77.5),
    "us-east-2": (40.0, -83.0),
    "us-west-1": (37.8, -122.4),
    "us-west-2": (45.8, -119.7),
}


def place_of(region: str, location: Place | None = None) -> Place | None:
    """What was said, or where a region of that name is; None if nobody knows."""
    return REGIONS.get(region) if location is None else location
