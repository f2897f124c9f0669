"""HTTP for whoever is not Python: health, metrics, and what a tracker knows."""

from shoal.gateway.server import Gateway

__all__ = ["Gateway"]
