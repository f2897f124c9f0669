"""The commands that set up networks: the machine's, or those under our own environment."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"  # where they are, also if PATH has no sbin


def own_tools() -> Path:
    """Where scripts/network_tools.py puts what the machine lacks."""
    return Path(sys.prefix, "network-tools")


def find_tool(name: str) -> str | None:
    """The path of a command; None if there is none."""
    folders = (os.environ.get("PATH", ""), _SYSTEM_FOLDERS, str(own_tools() / "bin"))
    return shutil.which(name, path=":".join(folders))
