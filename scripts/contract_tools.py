"""The contracts' compiler and a chain to test against, inside .venv: vyper, and anvil.

Both in a folder of their own: vyper does not go together with what Shoal needs. anvil is had from
npm: one executable file, for Linux on x86-64. Elsewhere the one on PATH is used.

    python -m scripts.contract_tools
"""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

from scripts.node_tools import ROOT, NodeTools

REQUIREMENTS = ROOT / "requirements" / "contracts.txt"
ANVIL = ROOT / "requirements" / "anvil"
ANVIL_FILE = "node_modules/@foundry-rs/anvil-*/bin/anvil"


def tools() -> NodeTools:
    """What is fetched. The script of anvil's package only puts it where we do not look for it."""
    is_for_here = (sys.platform, platform.machine()) == ("linux", "x86_64")
    return NodeTools(
        "contract-tools",
        "vyper and anvil",
        REQUIREMENTS.read_text(),
        ANVIL,
        needed=ANVIL_FILE if is_for_here else "",
    )


def vyper() -> Path:
    """The compiler."""
    return tools().python.with_name("vyper")


def anvil() -> Path:
    """The chain; FileNotFoundError says what to do if there is none."""
    for found in tools().npm.glob(ANVIL_FILE):
        return found
    if on_path := shutil.which("anvil"):
        return Path(on_path)
    raise FileNotFoundError(
        "no anvil: run python -m scripts.contract_tools, or on another system than Linux on x86-64"
        " install Foundry"
    )


if __name__ == "__main__":
    tools().prepare(keep_node=False)
