"""The explorer's page, built from web/: Node.js and npm packages inside .venv, and vite.

Both are pinned, and had only where the page is built: ./test does, to see that what ships is what
the source gives. Node.js is the one that contracts.txt pins.

    python -m scripts.web_build            build into src/shoal/explorer/static
    python -m scripts.web_build --fetch    only fetch what that needs
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from scripts.contract_tools import REQUIREMENTS
from scripts.node_tools import NODE, ROOT, NodeTools, pinned

SOURCE = ROOT / "web"
BUILT = ROOT / "src" / "shoal" / "explorer" / "static"
BUILD_S_MAX = 300


def tools() -> NodeTools:
    """What is fetched."""
    node = pinned(REQUIREMENTS.read_text(), NODE)
    return NodeTools("web-tools", "what builds the explorer", node, SOURCE)


def build(out: Path) -> None:
    """Build the page into a folder; what was there before goes."""
    used = tools()
    room = used.npm
    for name in ("index.html", "vite.config.js"):
        shutil.copy(SOURCE / name, room)
    shutil.rmtree(room / "src", ignore_errors=True)
    shutil.copytree(SOURCE / "src", room / "src")
    settings = {"SHOAL_EXPLORER_OUT": str(out.absolute()), "NODE_ENV": "production"}
    vite = used.starts("node", "node_modules/vite/bin/vite.js", "build")
    used.call(vite, BUILD_S_MAX, room, settings)


if __name__ == "__main__":
    tools().prepare(keep_node=True)
    if sys.argv[1:] != ["--fetch"]:
        build(BUILT)
