"""The explorer: a page on which people see the network, and what it asks for.

Begin with `routes.py`. `feed.py` tells a page what happens, `nodes.py`, `overlays.py` and
`searches.py` what is there. The page itself is in `web/`.
"""

from shoal.explorer.nodes import SeenNode
from shoal.explorer.routes import ExplorerRoutes

__all__ = ["ExplorerRoutes", "SeenNode"]
