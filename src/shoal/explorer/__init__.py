"""The explorer: a page on which people see the network, and what it asks for."""

from shoal.explorer.routes import ExplorerRoutes
from shoal.explorer.seen import SeenNode

__all__ = ["ExplorerRoutes", "SeenNode"]
